# Denoising diffusion: noise and timesteps drawn in the loop, a small UNet with attention and
# GroupNorm, mse, GradScaler, EMA, clip, per-step lr warm-up by LambdaLR. tiny: --base 16 --size 16
# --batch 4 --device cpu --steps 4
import argparse
import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--base", type=int, default=96)
parser.add_argument("--size", type=int, default=64)
parser.add_argument("--batch", type=int, default=128)
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--device", default="cuda")
args = parser.parse_args()
torch.manual_seed(0)


class ResBlock(nn.Module):
    def __init__(self, cin, cout, emb):
        super().__init__()
        self.n1, self.c1 = nn.GroupNorm(8, cin), nn.Conv2d(cin, cout, 3, padding=1)
        self.e = nn.Linear(emb, cout)
        self.n2, self.c2 = nn.GroupNorm(8, cout), nn.Conv2d(cout, cout, 3, padding=1)
        self.s = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, emb):
        h = self.c1(F.silu(self.n1(x))) + self.e(emb)[:, :, None, None]
        return self.s(x) + self.c2(F.silu(self.n2(h)))


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.n, self.qkv, self.o = nn.GroupNorm(8, c), nn.Conv2d(c, 3 * c, 1), nn.Conv2d(c, c, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.n(x)).reshape(b, 3, c, h * w).permute(1, 0, 3, 2)
        return x + self.o(
            F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, c, h, w)
        )


class UNet(nn.Module):
    def __init__(self, c=args.base):
        super().__init__()
        self.c = c
        self.emb = nn.Sequential(nn.Linear(c, 4 * c), nn.SiLU(), nn.Linear(4 * c, 4 * c))
        self.inp = nn.Conv2d(3, c, 3, padding=1)
        self.d1, self.d2 = ResBlock(c, c, 4 * c), ResBlock(c, 2 * c, 4 * c)
        self.mid = nn.ModuleList(
            [ResBlock(2 * c, 2 * c, 4 * c), Attention(2 * c), ResBlock(2 * c, 2 * c, 4 * c)]
        )
        self.u2, self.u1 = ResBlock(4 * c, c, 4 * c), ResBlock(2 * c, c, 4 * c)
        self.out = nn.Sequential(nn.GroupNorm(8, c), nn.SiLU(), nn.Conv2d(c, 3, 3, padding=1))

    def forward(self, x, t):
        half = self.c // 2
        f = torch.exp(-math.log(10000) * torch.arange(half, device=x.device) / half)
        e = self.emb(torch.cat([torch.sin(t[:, None] * f), torch.cos(t[:, None] * f)], 1))
        h1 = self.d1(self.inp(x), e)
        h2 = self.d2(F.avg_pool2d(h1, 2), e)
        h = self.mid[0](F.avg_pool2d(h2, 2), e)
        h = self.mid[2](self.mid[1](h), e)
        h = self.u2(torch.cat([F.interpolate(h, scale_factor=2), h2], 1), e)
        h = self.u1(torch.cat([F.interpolate(h, scale_factor=2), h1], 1), e)
        return self.out(h)


model = UNet().to(args.device)
ema = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-4)
warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 10))
scaler = torch.amp.GradScaler(args.device, init_scale=1024.0)
alphas = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0).to(args.device)
g = torch.Generator().manual_seed(5)
for step in range(args.steps):
    x0 = torch.rand(args.batch, 3, args.size, args.size, generator=g).to(args.device) * 2 - 1
    t = torch.randint(0, 1000, (args.batch,), generator=g).to(args.device)
    noise = torch.randn(x0.shape, generator=g).to(args.device)
    a = alphas[t].view(-1, 1, 1, 1)
    xt = a.sqrt() * x0 + (1 - a).sqrt() * noise
    loss = F.mse_loss(model(xt, t), noise, reduction="none").mean(dim=(1, 2, 3))
    loss = (loss * torch.clamp(a.view(-1) / (1 - a.view(-1) + 1e-3), max=5.0)).mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    warmup.step()
    for e, p in zip(ema.parameters(), model.parameters()):
        e.mul_(0.995).add_(p.detach(), alpha=0.005)
    print("step %d loss %.9g" % (step, loss.item()), flush=True)
