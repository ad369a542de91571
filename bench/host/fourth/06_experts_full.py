"""Experts with room for so many tokens of the whole batch; what is too much is passed by. The
balance of the experts is part of the loss.
"""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(36)
torch.set_num_threads(1)
WIDTH, EXPERTS = 128, 6


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 512), nn.GELU(), nn.Linear(512, WIDTH))
            for _ in range(EXPERTS)
        )

    def forward(self, x):
        flat = x.flatten(0, 1)
        share = self.gate(flat).softmax(-1)
        best, which = share.max(-1)
        most = int(1.1 * len(flat) / EXPERTS)
        out = torch.zeros_like(flat)
        for i, expert in enumerate(self.experts):
            mine = (which == i).nonzero().flatten()[:most]
            out = out.index_add(0, mine, expert(flat[mine]) * best[mine, None])
        used = F.one_hot(which, EXPERTS).float().mean(0)
        return out.view_as(x), EXPERTS * (used * share.mean(0)).sum()


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attend = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.experts = Experts()

    def forward(self, x):
        y = self.n1(x)
        x = x + self.attend(y, y, y, need_weights=False)[0]
        y, balance = self.experts(self.n2(x))
        return x + y, balance


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(2000, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(5))
        self.head = nn.Linear(WIDTH, 2000)

    def forward(self, ids):
        x, total = self.words(ids), 0.0
        for layer in self.layers:
            x, balance = layer(x)
            total = total + balance
        return self.head(x), total


model = Mixture()
opt = torch.optim.AdamW(model.parameters(), 1e-3)
for step in range(3):
    ids = torch.randint(0, 2000, (32, 129))
    logits, balance = model(ids[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()) + 0.01 * balance
    opt.zero_grad()
    loss.backward()
    opt.step()
    print("step %d loss %.8g balance %.6g" % (step, loss.item(), balance.item()), flush=True)
