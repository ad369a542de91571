"""Griffin-like language model (gated linear recurrence + local attention) on packed documents."""

import os

import torch
import torch.nn.functional as F
from torch import nn

SMALL = os.environ.get("SMALL", "0") == "1" or not torch.cuda.is_available()
DEV = "cuda" if torch.cuda.is_available() else "cpu"
B, T, D, VOCAB = (2, 32, 32, 97) if SMALL else (6, 1024, 768, 16384)
PATTERN = "rra" if SMALL else "rrarrarra"
HEADS, WINDOW = (4, 8) if SMALL else (12, 256)
STEPS = 10


def shift(x, n, fill):
    return torch.cat([x.new_full((x.size(0), n, x.size(2)), fill), x[:, :-n]], 1)


def linear_scan(a, b):
    """h_t = a_t h_{t-1} + b_t for all t, by doubling."""
    n = 1
    while n < a.size(1):
        b = b + a * shift(b, n, 0.0)
        a = a * shift(a, n, 1.0)
        n *= 2
    return b


class RGLRU(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.inp, self.gate, self.out = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
        self.conv = nn.Conv1d(d, d, 4, groups=d)
        self.w_a, self.w_x = nn.Linear(d, d), nn.Linear(d, d)
        lam = torch.linspace(0.9, 0.999, d)
        self.log_lambda = nn.Parameter(torch.log(torch.expm1(-lam.log() / 8)))

    def forward(self, x, first):
        u = self.inp(x)
        u = self.conv(F.pad(u.transpose(1, 2), (3, 0))).transpose(1, 2)
        r, i = self.w_a(u).sigmoid().float(), self.w_x(u).sigmoid().float()
        log_a = -8 * r * F.softplus(self.log_lambda)
        a = torch.exp(log_a).masked_fill(first, 0.0)  # a new document forgets the last one
        b = torch.sqrt((1 - a * a).clamp(min=1e-6)) * i * u.float()
        h = linear_scan(a, b)
        return self.out(h.to(x.dtype) * F.gelu(self.gate(x)))


class LocalAttention(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.q, self.kv, self.o = nn.Linear(d, d), nn.Linear(d, 2 * d // HEADS), nn.Linear(d, d)

    def forward(self, x, mask):
        b, t, d = x.shape
        q = self.q(x).view(b, t, HEADS, -1).transpose(1, 2)
        k, v = self.kv(x).view(b, t, 1, -1).transpose(1, 2).chunk(2, -1)  # multi-query
        k, v = k.expand_as(q), v.expand_as(q)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.o(y.transpose(1, 2).reshape(b, t, d))


class Layer(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.n1, self.n2 = nn.RMSNorm(D), nn.RMSNorm(D)
        self.mix = RGLRU(D) if kind == "r" else LocalAttention(D)
        self.up, self.down = nn.Linear(D, 6 * D, bias=False), nn.Linear(3 * D, D, bias=False)

    def forward(self, x, first, mask):
        x = x + self.mix(self.n1(x), first if self.kind == "r" else mask)
        g, u = self.up(self.n2(x)).chunk(2, -1)
        return x + self.down(F.gelu(g) * u)


class Griffin(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, D)
        nn.init.normal_(self.emb.weight, std=D**-0.5)
        self.layers = nn.ModuleList(Layer(k) for k in PATTERN)
        self.norm = nn.RMSNorm(D)

    def forward(self, ids, doc):
        first = F.pad(doc[:, 1:] != doc[:, :-1], (1, 0), value=True).unsqueeze(-1)
        t = torch.arange(ids.size(1), device=ids.device)
        near = (t[:, None] >= t) & (t[:, None] - t < WINDOW)
        mask = ((doc[:, :, None] == doc[:, None]) & near).unsqueeze(1)
        x = self.emb(ids) * D**0.5
        for layer in self.layers:
            x = layer(x, first, mask)
        return F.linear(self.norm(x), self.emb.weight)  # tied


def packed_batch(g):
    ids, doc = torch.zeros(B, T, dtype=torch.long), torch.zeros(B, T, dtype=torch.long)
    for row in range(B):
        at, k = 0, 0
        while at < T:
            n = min(T - at, int(torch.randint(T // 10, T // 2, (1,), generator=g)))
            base, stride = torch.randint(1, VOCAB, (2,), generator=g).tolist()
            ids[row, at : at + n] = (base + (stride % 13) * torch.arange(n)) % VOCAB
            doc[row, at : at + n] = k
            at, k = at + n, k + 1
    return ids.to(DEV), doc.to(DEV)


torch.manual_seed(303)
net = Griffin().to(DEV)
opt = torch.optim.AdamW(net.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=6e-4, total_steps=STEPS + 1, pct_start=0.3)
gen = torch.Generator().manual_seed(3)
for step in range(STEPS):
    ids, doc = packed_batch(gen)
    with torch.autocast(DEV, dtype=torch.bfloat16):
        logits = net(ids, doc)
    target = ids[:, 1:].masked_fill(doc[:, 1:] != doc[:, :-1], -100)
    loss = F.cross_entropy(logits[:, :-1].float().flatten(0, 1), target.flatten())
    opt.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    sched.step()
    print(f"step {step} loss {loss.item():.8f}", flush=True)
