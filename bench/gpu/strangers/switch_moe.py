# A language model with switch layers: top-1 routing, experts with a capacity (tokens beyond it pass
# by), a balancing loss collected from the layers.
# tiny: --d 16 --layers 2 --batch 4 --seq 12 --vocab 80 --device cpu
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

ap = argparse.ArgumentParser()
ap.add_argument("--d", type=int, default=512)
ap.add_argument("--layers", type=int, default=6)
ap.add_argument("--batch", type=int, default=32)
ap.add_argument("--seq", type=int, default=256)
ap.add_argument("--vocab", type=int, default=12000)
ap.add_argument("--device", default="cuda")
a = ap.parse_args()
torch.manual_seed(0)


class Switch(nn.Module):
    def __init__(self, d, experts=4, factor=1.25):
        super().__init__()
        self.router = nn.Linear(d, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(d, 4 * d), nn.ReLU(), nn.Linear(4 * d, d))
            for _ in range(experts)
        )
        self.factor = factor
        self.balance = None

    def forward(self, x):
        flat = x.reshape(-1, x.size(-1))
        probs = self.router(flat).softmax(-1)
        top, expert = probs.max(-1)
        capacity = int(self.factor * len(flat) / len(self.experts))
        self.balance = (
            len(self.experts)
            * (probs.mean(0) * F.one_hot(expert, len(self.experts)).float().mean(0)).sum()
        )
        out = flat.clone()
        for e, net in enumerate(self.experts):
            mine = (expert == e).nonzero()[:capacity, 0]
            out[mine] = net(flat[mine]) * top[mine, None]
        return out.view_as(x)


class Layer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.att = nn.MultiheadAttention(d, max(1, d // 64), batch_first=True)
        self.moe = Switch(d)

    def forward(self, x, mask):
        h = self.n1(x)
        x = x + self.att(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.moe(self.n2(x))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.pos = nn.Embedding(a.vocab, a.d), nn.Embedding(a.seq, a.d)
        self.layers = nn.ModuleList(Layer(a.d) for _ in range(a.layers))
        self.head = nn.Linear(a.d, a.vocab)

    def forward(self, x):
        mask = torch.full((x.size(1),) * 2, float("-inf"), device=x.device).triu(1)
        h = self.emb(x) + self.pos.weight[: x.size(1)]
        for layer in self.layers:
            h = layer(h, mask)
        return self.head(h), sum(layer.moe.balance for layer in self.layers)


net = LM().to(a.device)
opt = torch.optim.AdamW(net.parameters(), 1e-4)
rng = torch.Generator().manual_seed(2)
for i in range(12):
    t = torch.randint(0, a.vocab, (a.batch, a.seq + 1), generator=rng).to(a.device)
    logits, aux = net(t[:, :-1])
    loss = F.cross_entropy(logits.reshape(-1, a.vocab), t[:, 1:].reshape(-1)) + 0.01 * aux
    opt.zero_grad()
    loss.backward()
    opt.step()
    print("step %d loss %.9g" % (i, loss.item()), flush=True)
