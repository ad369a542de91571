"""Multi-token prediction: a shared trunk and n future heads, one head's graph alive at a time."""

from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    vocab: int = 16384
    dim: int = 768
    layers: int = 12
    heads: int = 12
    futures: int = 4
    batch: int = 12
    seq: int = 1024
    steps: int = 12
    lr: float = 5e-4


cuda = torch.cuda.is_available()
cfg = Config() if cuda else Config(256, 48, 2, 4, 3, 2, 48, 10)
device = torch.device("cuda" if cuda else "cpu")
torch.manual_seed(2024)


def rope(x, base=10000.0):
    t, d = x.shape[-2:]
    inv = base ** (-torch.arange(0, d, 2, device=x.device).float() / d)
    ang = torch.outer(torch.arange(t, device=x.device).float(), inv)
    cos, sin = ang.cos().to(x.dtype), ang.sin().to(x.dtype)
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        hidden = (8 * c.dim // 3 + 63) // 64 * 64
        self.h = c.heads
        self.n1, self.n2 = nn.RMSNorm(c.dim), nn.RMSNorm(c.dim)
        self.wq = nn.Linear(c.dim, c.dim, bias=False)
        self.wkv = nn.Linear(c.dim, 2 * c.dim, bias=False)
        self.wo = nn.Linear(c.dim, c.dim, bias=False)
        self.gate = nn.Linear(c.dim, hidden, bias=False)
        self.up = nn.Linear(c.dim, hidden, bias=False)
        self.down = nn.Linear(hidden, c.dim, bias=False)

    def forward(self, x):
        y = self.n1(x)
        k, v = self.wkv(y).chunk(2, -1)
        q, k, v = (z.unflatten(-1, (self.h, -1)).transpose(1, 2) for z in (self.wq(y), k, v))
        o = F.scaled_dot_product_attention(rope(q), rope(k), v, is_causal=True)
        x = x + self.wo(o.transpose(1, 2).flatten(2))
        y = self.n2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class MultiTokenLM(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed = nn.Embedding(c.vocab, c.dim)
        self.trunk = nn.Sequential(*(Layer(c) for _ in range(c.layers)))
        self.future = nn.ModuleList(Layer(c) for _ in range(c.futures))
        self.norm = nn.RMSNorm(c.dim)
        self.unembed = nn.Linear(c.dim, c.vocab, bias=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def body(self, ids):
        return self.trunk(self.embed(ids))

    def head(self, i, z):
        return self.unembed(self.norm(self.future[i](z)))


def corpus(n):
    """A second-order Markov stream over a small random successor table."""
    g = torch.Generator().manual_seed(5)
    table = torch.randint(0, cfg.vocab, (997, 4), generator=g)
    out = torch.empty(n, dtype=torch.long)
    picks = torch.randint(0, 4, (n,), generator=g).tolist()
    rows = table.tolist()
    a = b = 1
    stream = []
    for p in picks:
        a, b = b, rows[(31 * a + b) % 997][p]
        stream.append(b)
    out[:] = torch.tensor(stream)
    return out


data = corpus(40 * cfg.seq)
span = cfg.seq + cfg.futures


def get_batch():
    at = torch.randint(0, len(data) - span, (cfg.batch,))
    return torch.stack([data[i : i + span] for i in at.tolist()]).to(device)


model = MultiTokenLM(cfg).to(device)
print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}M parameters")
opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, betas=(0.9, 0.95), weight_decay=0.1)
sched = torch.optim.lr_scheduler.LinearLR(opt, 0.25, 1.0, total_iters=4)

for step in range(cfg.steps):
    chunk = get_batch()
    opt.zero_grad(set_to_none=True)
    amp = torch.autocast(device.type, dtype=torch.bfloat16)
    with amp:
        z = model.body(chunk[:, : cfg.seq])
    # the heads run and go backward in turn on a detached copy; the trunk follows once
    z_leaf = z.detach().requires_grad_()
    losses = []
    for i in range(cfg.futures):
        with amp:
            logits = model.head(i, z_leaf)
            target = chunk[:, i + 1 : i + 1 + cfg.seq]
            loss = F.cross_entropy(logits.float().view(-1, cfg.vocab), target.reshape(-1))
        (loss / cfg.futures).backward()
        losses.append(loss.detach())
        del logits, loss
    z.backward(z_leaf.grad)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
    per_head = " ".join(f"{v.item():.3f}" for v in losses)
    print(f"step {step} loss {torch.stack(losses).mean().item():.6f} heads {per_head}", flush=True)
