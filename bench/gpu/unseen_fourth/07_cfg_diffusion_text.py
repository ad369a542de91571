"""Text-conditional pixel diffusion: U-Net with cross attention, captions dropped for
classifier-free guidance, min-SNR weights, learning rate warm-up."""

import math
import os

import torch
from torch import nn
from torch.nn import functional as F

SMALL = os.environ.get("SMALL") == "1"
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class hp:
    seed = 99
    batch = 2 if SMALL else 44
    size = 16 if SMALL else 64
    ch = 16 if SMALL else 128
    mult = (1, 2) if SMALL else (1, 2, 3)
    ctx = 24 if SMALL else 384
    vocab, words = 500, 16
    steps, T, drop, gamma, lr = 9, 1000, 0.15, 5.0, 2e-4


def gn(c):
    return nn.GroupNorm(8, c)


class ResBlock(nn.Module):
    def __init__(self, i, o, emb):
        super().__init__()
        self.n1, self.c1 = gn(i), nn.Conv2d(i, o, 3, padding=1)
        self.n2, self.c2 = gn(o), nn.Conv2d(o, o, 3, padding=1)
        self.emb = nn.Linear(emb, 2 * o)
        self.skip = nn.Conv2d(i, o, 1) if i != o else nn.Identity()
        nn.init.zeros_(self.c2.weight)

    def forward(self, x, e):
        h = self.c1(F.silu(self.n1(x)))
        scale, shift = self.emb(F.silu(e))[:, :, None, None].chunk(2, 1)
        h = self.n2(h) * (1 + scale) + shift
        return self.skip(x) + self.c2(F.silu(h))


class CrossAttn(nn.Module):
    def __init__(self, c, ctx, heads=4):
        super().__init__()
        self.norm, self.heads = gn(c), heads
        self.q, self.kv, self.out = nn.Linear(c, c), nn.Linear(ctx, 2 * c), nn.Linear(c, c)

    def forward(self, x, ctx):
        b, c, h, w = x.shape
        split = lambda t: t.view(b, -1, self.heads, c // self.heads).transpose(1, 2)  # noqa: E731
        q = split(self.q(self.norm(x).flatten(2).transpose(1, 2)))
        k, v = map(split, self.kv(ctx).chunk(2, -1))
        att = (q @ k.transpose(-1, -2) / math.sqrt(c // self.heads)).softmax(-1)
        y = self.out((att @ v).transpose(1, 2).reshape(b, h * w, c))
        return x + y.transpose(1, 2).view(b, c, h, w)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        ch, emb = hp.ch, hp.ch * 4
        self.time = nn.Sequential(nn.Linear(ch, emb), nn.SiLU(), nn.Linear(emb, emb))
        self.words = nn.Embedding(hp.vocab, hp.ctx)
        self.null = nn.Parameter(torch.randn(1, hp.words, hp.ctx) * 0.02)
        layer = nn.TransformerEncoderLayer(
            hp.ctx, 4, hp.ctx * 2, 0.0, batch_first=True, norm_first=True
        )
        self.text = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.inp = nn.Conv2d(3, ch, 3, padding=1)
        self.down, self.up, skips, c = nn.ModuleList(), nn.ModuleList(), [ch], ch
        for n, m in enumerate(hp.mult):
            for _ in range(2):
                block = [ResBlock(c, ch * m, emb)] + ([CrossAttn(ch * m, hp.ctx)] if n else [])
                self.down.append(nn.ModuleList(block))
                c = ch * m
                skips.append(c)
            if n < len(hp.mult) - 1:
                self.down.append(nn.ModuleList([nn.Conv2d(c, c, 3, 2, 1)]))
                skips.append(c)
        self.mid = nn.ModuleList([ResBlock(c, c, emb), CrossAttn(c, hp.ctx), ResBlock(c, c, emb)])
        for n, m in reversed(list(enumerate(hp.mult))):
            for k in range(3):
                block = [ResBlock(c + skips.pop(), ch * m, emb)]
                c = ch * m
                if n:
                    block.append(CrossAttn(c, hp.ctx))
                    if k == 2:
                        block.append(nn.ConvTranspose2d(c, c, 2, 2))
                self.up.append(nn.ModuleList(block))
        self.out = nn.Sequential(gn(c), nn.SiLU(), nn.Conv2d(c, 3, 3, padding=1))

    def run(self, block, x, e, ctx):
        for m in block:
            if isinstance(m, ResBlock):
                x = m(x, e)
            else:
                x = m(x, ctx) if isinstance(m, CrossAttn) else m(x)
        return x

    def forward(self, x, t, words, dropped):
        half = hp.ch // 2
        f = torch.exp(-math.log(10000) * torch.arange(half, device=x.device) / half)
        f = t[:, None].float() * f
        e = self.time(torch.cat([f.sin(), f.cos()], 1))
        ctx = torch.where(dropped[:, None, None], self.null, self.text(self.words(words)))
        h, hs = self.inp(x), []
        hs.append(h)
        for block in self.down:
            h = self.run(block, h, e, ctx)
            hs.append(h)
        h = self.run(self.mid, h, e, ctx)
        for block in self.up:
            h = self.run(block, torch.cat([h, hs.pop()], 1), e, ctx)
        return self.out(h)


torch.manual_seed(hp.seed)
net = UNet().to(device)
opt = torch.optim.AdamW(net.parameters(), lr=hp.lr, weight_decay=1e-4)
warm = torch.optim.lr_scheduler.LinearLR(opt, 0.1, total_iters=5)
abar = (torch.cos((torch.arange(hp.T) / hp.T + 0.008) / 1.008 * math.pi / 2) ** 2).to(device)
abar = abar.clamp(1e-4, 0.9999)

for step in range(hp.steps):
    words = torch.randint(0, hp.vocab, (hp.batch, hp.words), device=device)
    x0 = torch.tanh(torch.randn(hp.batch, 3, hp.size, hp.size, device=device) + words[0, 0] / 500)
    t = torch.randint(0, hp.T, (hp.batch,), device=device)
    dropped = torch.rand(hp.batch, device=device) < hp.drop
    noise = torch.randn_like(x0)
    a = abar[t][:, None, None, None]
    pred = net(a.sqrt() * x0 + (1 - a).sqrt() * noise, t, words, dropped)
    snr = abar[t] / (1 - abar[t])
    weight = snr.clamp(max=hp.gamma) / snr
    loss = (weight * (pred - noise).pow(2).mean((1, 2, 3))).mean()
    opt.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    warm.step()
    print(f"step {step} loss {loss.item():.8f}", flush=True)
