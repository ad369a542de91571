"""Speedrun-like GPT: Muon for the matrices, AdamW for embeddings and scalars, value embeddings."""

import torch
import torch.nn as nn
import torch.nn.functional as F

CUDA = torch.cuda.is_available()
dev = "cuda" if CUDA else "cpu"
VOCAB = 50304 if CUDA else 200
DIM, LAYERS, HEADS = (1024, 10, 8) if CUDA else (32, 2, 2)
TABLES = 2
BATCH, SEQ, STEPS = (6, 512, 12) if CUDA else (2, 16, 8)


@torch.no_grad()
def newton_schulz(g, iters=5):
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.bfloat16()
    tall = x.size(0) > x.size(1)
    x = x.T if tall else x
    x = x / (x.norm() + 1e-7)
    for _ in range(iters):
        m = x @ x.T
        x = a * x + (b * m + c * m @ m) @ x
    return x.T if tall else x


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02, momentum=0.95):
        super().__init__(params, dict(lr=lr, momentum=momentum))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                buf = self.state[p].setdefault("m", torch.zeros_like(p))
                buf.lerp_(p.grad, 1 - group["momentum"])
                update = newton_schulz(p.grad.lerp(buf, group["momentum"]))
                p.add_(
                    update.to(p.dtype), alpha=-group["lr"] * max(1, p.size(0) / p.size(1)) ** 0.5
                )


def norm(x):
    return F.rms_norm(x, (x.size(-1),))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM, bias=False)
        self.out = nn.Linear(DIM, DIM, bias=False)
        nn.init.zeros_(self.out.weight)
        self.mix = nn.Parameter(torch.tensor([0.5, 0.5]))

    def forward(self, x, ve, cos, sin):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, HEADS, -1).unbind(2)
        if ve is not None:
            v = self.mix[0] * v + self.mix[1] * ve.view_as(v)
        q, k = (self.rotate(norm(u), cos, sin).transpose(1, 2) for u in (q, k))
        v = v.to(q.dtype).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, -1))

    @staticmethod
    def rotate(u, cos, sin):
        a, b = u.chunk(2, -1)
        return torch.cat([a * cos + b * sin, b * cos - a * sin], -1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = Attention()
        self.fc, self.proj = (
            nn.Linear(DIM, 4 * DIM, bias=False),
            nn.Linear(4 * DIM, DIM, bias=False),
        )
        nn.init.zeros_(self.proj.weight)
        self.lambdas = nn.Parameter(torch.tensor([1.0, 0.0]))

    def forward(self, x, x0, ve, cos, sin):
        x = self.lambdas[0] * x + self.lambdas[1] * x0
        x = x + self.attn(norm(x), ve, cos, sin)
        return x + self.proj(F.relu(self.fc(norm(x))).square())


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.values = nn.ModuleList(nn.Embedding(VOCAB, DIM) for _ in range(TABLES))
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(DIM, VOCAB, bias=False)
        nn.init.zeros_(self.head.weight)
        half = DIM // HEADS // 2
        angle = torch.arange(SEQ)[:, None] * (1 / 1024) ** torch.linspace(0, 1, half)
        self.register_buffer("cos", angle.cos()[None, :, None])
        self.register_buffer("sin", angle.sin()[None, :, None])

    def forward(self, ids, targets):
        x = x0 = norm(self.embed(ids))
        ve = [v(ids) for v in self.values]
        # first and last blocks share the tables, the middle has none
        plan = ve + [None] * (LAYERS - 2 * TABLES) + ve if LAYERS >= 2 * TABLES else ve[:LAYERS]
        for block, v in zip(self.blocks, plan):
            x = block(x, x0, v, self.cos, self.sin)
        logits = 15 * torch.tanh(self.head(norm(x)).float() / 15)
        return F.cross_entropy(logits.view(-1, VOCAB), targets.view(-1))


torch.manual_seed(1600)
with torch.device(dev):
    model = GPT()
matrices = [p for b in model.blocks for p in b.parameters() if p.ndim == 2]
scalars = [p for b in model.blocks for p in b.parameters() if p.ndim < 2]
tables = [model.embed.weight, *(v.weight for v in model.values)]
adam = torch.optim.AdamW(
    [
        {"params": tables, "lr": 0.05},
        {"params": [model.head.weight], "lr": 0.004},
        {"params": scalars, "lr": 0.02},
    ],
    betas=(0.8, 0.95),
    eps=1e-10,
    weight_decay=0.0,
)
muon = Muon(matrices)
optimizers = [adam, muon]
for o in optimizers:
    for group in o.param_groups:
        group["base"] = group["lr"]

stream = torch.Generator().manual_seed(16)
for step in range(STEPS):
    toks = torch.randint(0, VOCAB // 4, (BATCH, SEQ + 1), generator=stream)
    toks = (toks.sort(1).values * 3 + step).remainder(VOCAB).to(dev)
    with torch.autocast(dev, dtype=torch.bfloat16):
        loss = model(toks[:, :-1].contiguous(), toks[:, 1:].contiguous())
    loss.backward()
    frac = step / STEPS
    for o in optimizers:
        for group in o.param_groups:
            group["lr"] = group["base"] * (1.0 if frac < 0.6 else (1 - frac) / 0.4)
        if o is muon:
            o.param_groups[0]["momentum"] = 0.85 + 0.1 * min(step / 8, 1)
        o.step()
    model.zero_grad(set_to_none=True)
    print(f"step {step} loss {loss.item():.8f}", flush=True)
