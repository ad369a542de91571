"""
speedrun-ish nanoGPT: rotary, QK norm, relu^2, Muon for matrices and Adam for the rest, compiled.
"""

import os
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

small = bool(os.environ.get("SMALL"))
device = "cuda" if torch.cuda.is_available() else "cpu"
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
torch.use_deterministic_algorithms(True, warn_only=True)
torch.manual_seed(1234)


@dataclass
class Config:
    vocab: int = 256 if small else 50304
    layers: int = 2 if small else 6
    heads: int = 2 if small else 6
    dim: int = 64 if small else 768
    seq: int = 32 if small else 1024
    micro: int = 2 if small else 8
    accum: int = 2
    steps: int = 15


cfg = Config()


def rms(x):
    return F.rms_norm(x, (x.size(-1),))


class Rotary(nn.Module):
    def __init__(self, dim, base=10000):
        super().__init__()
        inv = 1.0 / base ** (torch.arange(0, dim, 2).float() / dim)
        f = torch.outer(torch.arange(cfg.seq).float(), inv)
        self.register_buffer("cos", f.cos()[None, None], persistent=False)
        self.register_buffer("sin", f.sin()[None, None], persistent=False)

    def forward(self, x):
        a, b = x.chunk(2, dim=-1)
        y1 = a * self.cos + b * self.sin
        y2 = -a * self.sin + b * self.cos
        return torch.cat([y1, y2], -1).type_as(x)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        d = cfg.dim
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.o = nn.Linear(d, d, bias=False)
        self.up = nn.Linear(d, 4 * d, bias=False)
        self.down = nn.Linear(4 * d, d, bias=False)
        self.rotary = Rotary(d // cfg.heads)
        self.o.weight.data.zero_()
        self.down.weight.data.zero_()

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(rms(x)).view(B, T, 3, cfg.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = self.rotary(rms(q)), self.rotary(rms(k))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(B, T, C))
        return x + self.down(F.relu(self.up(rms(x))).square())


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(cfg.vocab, cfg.dim)
        self.blocks = nn.ModuleList(Block() for _ in range(cfg.layers))
        self.head = nn.Linear(cfg.dim, cfg.vocab, bias=False)
        self.head.weight.data.zero_()

    def forward(self, idx, target):
        x = rms(self.wte(idx))
        for b in self.blocks:
            x = b(x)
        logits = self.head(rms(x))
        logits = 30 * torch.tanh(logits / 30)
        return F.cross_entropy(logits.float().view(-1, cfg.vocab), target.reshape(-1))


def newton_schulz(g, steps=5):
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.bfloat16()
    x = x / (x.norm() + 1e-7)
    flip = x.size(0) > x.size(1)
    if flip:
        x = x.T
    for _ in range(steps):
        m = x @ x.T
        x = a * x + (b * m + c * m @ m) @ x
    return (x.T if flip else x).to(g.dtype)


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02, momentum=0.95):
        super().__init__(params, dict(lr=lr, momentum=momentum))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "buf" not in state:
                    state["buf"] = torch.zeros_like(p)
                buf = state["buf"]
                buf.lerp_(p.grad, 1 - group["momentum"])
                u = newton_schulz(p.grad.lerp(buf, group["momentum"]))
                p.add_(u, alpha=-group["lr"] * max(1, p.size(0) / p.size(1)) ** 0.5)


raw = GPT().to(device)
model = torch.compile(raw)
matrices = [p for p in raw.blocks.parameters() if p.ndim == 2]
opts = [
    Muon(matrices),
    torch.optim.Adam(
        [*raw.wte.parameters(), *raw.head.parameters()], lr=3e-3, fused=device == "cuda"
    ),
]
tokens = torch.randint(0, cfg.vocab, (cfg.seq * 200 + 1,))
position = 0
for step in range(cfg.steps):
    total = 0.0
    for _ in range(cfg.accum):
        n = cfg.micro * cfg.seq
        chunk = tokens[position : position + n + 1].to(device, non_blocking=True)
        position = (position + n) % (len(tokens) - n - 1)
        x, y = chunk[:-1].view(cfg.micro, -1), chunk[1:].view(cfg.micro, -1)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = model(x, y) / cfg.accum
        loss.backward()
        total += loss.item()
    for opt in opts:
        for g in opt.param_groups:
            g.setdefault("initial", g["lr"])
            g["lr"] = g["initial"] * (1 - step / cfg.steps)
        opt.step()
        opt.zero_grad(set_to_none=True)
    print(f"step {step} loss {total:.9f}", flush=True)
