"""Chunked gated linear attention language model, fp16 autocast with a GradScaler."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

cuda = torch.cuda.is_available()
parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=8 if cuda else 2)
parser.add_argument("--seq", type=int, default=1024 if cuda else 64)
parser.add_argument("--dim", type=int, default=768 if cuda else 32)
parser.add_argument("--layers", type=int, default=10 if cuda else 2)
parser.add_argument("--heads", type=int, default=12 if cuda else 2)
parser.add_argument("--chunk", type=int, default=64 if cuda else 16)
parser.add_argument("--vocab", type=int, default=8192 if cuda else 100)
parser.add_argument("--steps", type=int, default=10 if cuda else 4)
args = parser.parse_args()


class GLA(nn.Module):
    """One decay per head and position; the state is carried from chunk to chunk."""

    def __init__(self, dim, heads, chunk):
        super().__init__()
        self.heads, self.chunk, self.hd = heads, chunk, dim // heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.decay = nn.Linear(dim, heads)
        self.gate = nn.Linear(dim, dim, bias=False)
        self.norm = nn.LayerNorm(self.hd)
        self.out = nn.Linear(dim, dim, bias=False)
        mask = torch.ones(chunk, chunk, dtype=torch.bool).tril()
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x):
        b, t, d = x.shape
        n = t // self.chunk
        shape = (b, n, self.chunk, self.heads, self.hd)
        q, k, v = (a.reshape(shape).transpose(2, 3) for a in self.qkv(x).chunk(3, -1))
        log_a = F.logsigmoid(self.decay(x).float() + 4.0)
        log_a = log_a.view(b, n, self.chunk, self.heads).transpose(2, 3).cumsum(-1)
        diff = log_a.unsqueeze(-1) - log_a.unsqueeze(-2)
        weights = diff.masked_fill(~self.mask, float("-inf")).exp()
        scores = (q @ k.transpose(-1, -2)) * self.hd**-0.5
        intra = (scores * weights).to(v.dtype) @ v

        to_end = (log_a[..., -1:] - log_a).exp().unsqueeze(-1)
        add = (k * to_end).to(v.dtype).transpose(-1, -2) @ v
        total = log_a[..., -1].exp()[..., None, None]
        state, states = torch.zeros_like(add[:, 0], dtype=torch.float32), []
        for i in range(n):
            states.append(state)
            state = state * total[:, i] + add[:, i]
        inter = (q * log_a.exp().unsqueeze(-1)) * self.hd**-0.5 @ torch.stack(states, 1)
        y = self.norm(intra + inter).transpose(2, 3).reshape(b, t, d)
        return self.out(y * F.silu(self.gate(x)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        d = args.dim
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.mix = GLA(d, args.heads, args.chunk)
        hidden = 8 * d // 3 // 16 * 16
        self.up = nn.Linear(d, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, d, bias=False)

    def forward(self, x):
        x = x + self.mix(self.n1(x))
        a, b = self.up(self.n2(x)).chunk(2, -1)
        return x + self.down(F.silu(a) * b)


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(args.vocab, args.dim)
        nn.init.normal_(self.emb.weight, std=0.02)
        self.blocks = nn.Sequential(*[Block() for _ in range(args.layers)])
        self.norm = nn.LayerNorm(args.dim)

    def forward(self, ids):
        return self.norm(self.blocks(self.emb(ids))) @ self.emb.weight.T


torch.manual_seed(5)
device = "cuda" if cuda else "cpu"
model = LM().to(device)
opt = torch.optim.AdamW(model.parameters(), lr=5e-4, betas=(0.9, 0.95), weight_decay=0.1)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 5e-4, total_steps=args.steps + 1, pct_start=0.3)
scaler = torch.amp.GradScaler("cuda", enabled=cuda, init_scale=512.0)
data = torch.Generator().manual_seed(50)

for step in range(args.steps):
    base = torch.randint(0, args.vocab, (args.batch, args.seq // 4), generator=data)
    ids = base.repeat(1, 5)[:, : args.seq + 1].to(device)  # the same text again and again
    with torch.autocast(device, dtype=torch.float16, enabled=cuda):
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
    opt.zero_grad(set_to_none=True)
    sched.step()
    print(f"step {step} loss {loss.item():.6f} lr {sched.get_last_lr()[0]:.2e}", flush=True)
