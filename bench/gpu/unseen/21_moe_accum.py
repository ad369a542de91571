"""Top-2 mixture-of-experts LM with load-balancing + router z-loss, grad accumulation by hand."""

import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.use_deterministic_algorithms(True, warn_only=True)

CONFIGS = {
    "small": dict(
        d=32, layers=2, heads=2, experts=4, ff=64, vocab=100, seq=16, micro=2, accum=2, steps=12
    ),
    "base": dict(
        d=512,
        layers=6,
        heads=8,
        experts=8,
        ff=1536,
        vocab=8192,
        seq=512,
        micro=16,
        accum=2,
        steps=12,
    ),
}
conf = CONFIGS["small" if os.environ.get("SMALL") == "1" else "base"]


class Expert(nn.Module):
    def __init__(self, d, ff):
        super().__init__()
        self.w1, self.w2, self.w3 = (
            nn.Linear(d, ff, bias=False),
            nn.Linear(ff, d, bias=False),
            nn.Linear(d, ff, bias=False),
        )

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class MoE(nn.Module):
    def __init__(self, d, ff, n_experts, k=2):
        super().__init__()
        self.gate = nn.Linear(d, n_experts, bias=False)
        self.experts = nn.ModuleList([Expert(d, ff) for _ in range(n_experts)])
        self.n, self.k = n_experts, k

    def forward(self, x):
        shape = x.shape
        x = x.view(-1, shape[-1])
        logits = self.gate(x).float()
        probs = logits.softmax(-1)
        topw, topi = probs.topk(self.k, dim=-1)
        topw = topw / topw.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            tok, slot = torch.where(topi == e)
            if tok.numel() == 0:
                continue
            out = out.index_add(0, tok, expert(x[tok]) * topw[tok, slot, None])
        # switch-transformer style balance loss: n * sum_e f_e * p_e
        f = F.one_hot(topi, self.n).float().sum(1).mean(0) / self.k
        balance = self.n * torch.sum(f * probs.mean(0))
        z = torch.logsumexp(logits, -1).pow(2).mean()
        return out.view(shape), balance, z


class RMSNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        d = c["d"]
        self.h = c["heads"]
        self.n1, self.n2 = RMSNorm(d), RMSNorm(d)
        self.wqkv, self.wo = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.moe = MoE(d, c["ff"], c["experts"])

    def attend(self, x, mask):
        B, T, D = x.shape
        q, k, v = (t.view(B, T, self.h, -1).transpose(1, 2) for t in self.wqkv(x).chunk(3, -1))
        w = (q @ k.transpose(-1, -2)) * (D // self.h) ** -0.5 + mask
        return self.wo((w.softmax(-1) @ v).transpose(1, 2).reshape(B, T, D))

    def forward(self, x, mask):
        x = x + self.attend(self.n1(x), mask)
        y, bal, z = self.moe(self.n2(x))
        return x + y, bal, z


class MoELM(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.tok, self.pos = nn.Embedding(c["vocab"], c["d"]), nn.Embedding(c["seq"], c["d"])
        self.layers = nn.ModuleList([Layer(c) for _ in range(c["layers"])])
        self.norm, self.head = RMSNorm(c["d"]), nn.Linear(c["d"], c["vocab"], bias=False)
        m = torch.full((c["seq"], c["seq"]), float("-inf")).triu(1)
        self.register_buffer("mask", m, persistent=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight[None]
        bal = zl = 0.0
        for layer in self.layers:
            x, b, z = layer(x, self.mask)
            bal, zl = bal + b, zl + z
        return self.head(self.norm(x)), bal / len(self.layers), zl / len(self.layers)


def microbatches(c):
    g = torch.Generator().manual_seed(55)
    table = torch.randint(0, c["vocab"], (c["vocab"],), generator=g)
    while True:
        seq = [torch.randint(0, c["vocab"], (c["micro"],), generator=g)]
        for _ in range(c["seq"]):
            rnd = torch.randint(0, c["vocab"], (c["micro"],), generator=g)
            seq.append(torch.where(torch.rand(c["micro"], generator=g) < 0.8, table[seq[-1]], rnd))
        yield torch.stack(seq, 1)


torch.manual_seed(55)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = MoELM(conf).to(device)
optim = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1)
stream = microbatches(conf)

optim.zero_grad()
running = 0.0
for micro_step in range(conf["steps"] * conf["accum"]):
    batch = next(stream).to(device)
    logits, bal, z = model(batch[:, :-1])
    ce = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
    loss = (ce + 0.01 * bal + 0.001 * z) / conf["accum"]
    loss.backward()
    running += loss.item()
    if (micro_step + 1) % conf["accum"] == 0:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optim.step()
        optim.zero_grad()
        print(f"step {micro_step // conf['accum']} loss {running:.6f} balance {bal.item():.4f}")
        running = 0.0
