"""Top-2 experts with a loss for balance that the layer leaves in an attribute."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(8)
torch.set_num_threads(1)
VOCAB, WIDTH = 4000, 160


class Experts(nn.Module):
    def __init__(self, n=6):
        super().__init__()
        self.gate = nn.Linear(WIDTH, n, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
            for _ in range(n)
        )
        self.balance = 0.0

    def forward(self, x):
        flat = x.reshape(-1, WIDTH)
        p = self.gate(flat).softmax(-1)
        top, chosen = p.topk(2, -1)
        y = torch.zeros_like(flat)
        for i, expert in enumerate(self.experts):
            row, slot = torch.where(chosen == i)
            y = y.index_add(0, row, expert(flat[row]) * top[row, slot, None])
        used = F.one_hot(chosen[:, 0], len(self.experts)).float().mean(0)
        self.balance = len(self.experts) * (used * p.mean(0)).sum()
        return y.view_as(x)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.experts = Experts()

    def forward(self, x, mask):
        h = self.n1(x)
        x = x + self.attention(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.experts(self.n2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, ids):
        mask = torch.full((ids.shape[1], ids.shape[1]), float("-inf")).triu(1)
        x = self.words(ids)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x)


model = Model()
opt = torch.optim.AdamW(model.parameters(), 1e-3)
for step in range(3):
    ids = torch.randint(0, VOCAB, (16, 129))
    logits = model(ids[:, :-1])
    ce = F.cross_entropy(logits.reshape(-1, VOCAB), ids[:, 1:].reshape(-1))
    loss = ce + 0.02 * sum(b.experts.balance for b in model.blocks)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print("step %d loss %.8g" % (step, loss.item()), flush=True)
