"""Language model with implicit long convolutions (Hyena operator), bf16 autocast."""

import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--vocab", type=int, default=8192)
    p.add_argument("--dim", type=int, default=768)
    p.add_argument("--depth", type=int, default=8)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--seq-len", type=int, default=2048)
    p.add_argument("--steps", type=int, default=12)
    p.add_argument("--lr", type=float, default=6e-4)
    p.add_argument("--eval-every", type=int, default=6)
    p.add_argument("--seed", type=int, default=11)
    args = p.parse_args()
    args.device = "cuda" if torch.cuda.is_available() else "cpu"
    if args.device == "cpu":
        args.vocab, args.dim, args.depth = 128, 32, 2
        args.batch, args.seq_len = 2, 64
    return args


def fft_conv(u, k, skip):
    """Causal convolution of u (B, D, T) with filters k (D, T) in fp32."""
    n = 2 * u.shape[-1]
    u32 = u.float()
    y = torch.fft.irfft(torch.fft.rfft(u32, n=n) * torch.fft.rfft(k.float(), n=n), n=n)
    return (y[..., : u.shape[-1]] + u32 * skip[:, None]).to(u.dtype)


class Sine(nn.Module):
    def __init__(self, width, w=10.0):
        super().__init__()
        self.freq = nn.Parameter(w * torch.ones(1, width))

    def forward(self, x):
        return torch.sin(self.freq * x)


class ImplicitFilter(nn.Module):
    """MLP from positional features to filter taps, with an exponential decay window."""

    def __init__(self, dim, seq_len, width=64, bands=8):
        super().__init__()
        t = torch.linspace(0, 1, seq_len)[:, None]
        w = 2 * math.pi * torch.arange(1, bands + 1).float()[None]
        self.register_buffer("z", torch.cat([t, torch.cos(w * t), torch.sin(w * t)], -1))
        self.register_buffer("t", t)
        self.register_buffer("rate", torch.linspace(1.5, 15.0, dim)[None])
        self.mlp = nn.Sequential(
            nn.Linear(2 * bands + 1, width),
            Sine(width),
            nn.Linear(width, width),
            Sine(width),
            nn.Linear(width, dim, bias=False),
        )
        self.skip = nn.Parameter(torch.randn(dim))

    def forward(self, length):
        taps = self.mlp(self.z[:length]) * torch.exp(-self.t[:length] * self.rate)
        return taps.t() / taps.float().norm(dim=0)[:, None]


class Hyena(nn.Module):
    def __init__(self, dim, seq_len):
        super().__init__()
        self.in_proj = nn.Linear(dim, 3 * dim)
        self.short = nn.Conv1d(3 * dim, 3 * dim, 3, padding=2, groups=3 * dim)
        self.filter = ImplicitFilter(dim, seq_len)
        self.out_proj = nn.Linear(dim, dim)

    def forward(self, x):
        t = x.shape[1]
        z = self.short(self.in_proj(x).transpose(1, 2))[..., :t]
        gate, key, v = z.chunk(3, dim=1)
        v = fft_conv(v * key, self.filter(t), self.filter.skip)
        return self.out_proj((v * gate).transpose(1, 2))


class Block(nn.Module):
    def __init__(self, dim, seq_len):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.mixer = Hyena(dim, seq_len)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        x = x + self.mixer(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class HyenaLM(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.embed = nn.Embedding(args.vocab, args.dim)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.blocks = nn.ModuleList(Block(args.dim, args.seq_len) for _ in range(args.depth))
        self.norm = nn.LayerNorm(args.dim)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.embed.weight)


def recall_batch(args, gen):
    """Associative recall: key-value pairs repeat, so the value of a seen key is predictable."""
    half = args.vocab // 2
    table = torch.randint(half, args.vocab, (args.batch, half), generator=gen)
    keys = torch.randint(0, min(half, 64), (args.batch, args.seq_len // 2), generator=gen)
    ids = torch.stack([keys, table.gather(1, keys)], -1).flatten(1)
    return ids.to(args.device)


def lm_loss(model, ids, device):
    with torch.autocast(device, dtype=torch.bfloat16):
        logits = model(ids[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def main():
    args = parse_args()
    torch.manual_seed(args.seed)
    gen = torch.Generator().manual_seed(args.seed)
    model = HyenaLM(args).to(args.device)
    filters = [p for n, p in model.named_parameters() if "filter" in n]
    others = [p for n, p in model.named_parameters() if "filter" not in n]
    opt = torch.optim.AdamW(
        [{"params": others, "weight_decay": 0.1}, {"params": filters, "weight_decay": 0.0}],
        lr=args.lr,
        betas=(0.9, 0.98),
    )
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.steps, eta_min=args.lr / 10)
    for step in range(args.steps):
        loss = lm_loss(model, recall_batch(args, gen), args.device)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        print(f"step {step} loss {loss.item():.6f}", flush=True)
        if (step + 1) % args.eval_every == 0:
            model.eval()
            with torch.no_grad():
                held = lm_loss(model, recall_batch(args, gen), args.device)
            model.train()
            print(f"  held-out perplexity {held.exp().item():.2f}")


if __name__ == "__main__":
    main()
