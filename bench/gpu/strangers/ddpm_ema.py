"""Denoising diffusion with attention at the lowest resolution, bf16 autocast, EMA as a class,
gradient clipping and a sampling loop at the end."""

# tiny: --ch 8 --batch 4 --size 16 --device cpu
import argparse
import math

import torch
import torch.nn.functional as F
from torch import nn

p = argparse.ArgumentParser()
p.add_argument("--ch", type=int, default=128)
p.add_argument("--batch", type=int, default=64)
p.add_argument("--size", type=int, default=64)
p.add_argument("--device", default="cuda")
a = p.parse_args()
torch.manual_seed(7)


class ResBlock(nn.Module):
    def __init__(self, i, o, t):
        super().__init__()
        self.n1, self.c1 = nn.GroupNorm(8, i), nn.Conv2d(i, o, 3, padding=1)
        self.n2, self.c2 = nn.GroupNorm(8, o), nn.Conv2d(o, o, 3, padding=1)
        self.t = nn.Linear(t, o)
        self.skip = nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x, t):
        h = self.c1(F.silu(self.n1(x))) + self.t(t)[:, :, None, None]
        return self.skip(x) + self.c2(F.silu(self.n2(h)))


class Attn(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.n, self.qkv, self.o = nn.GroupNorm(8, c), nn.Conv2d(c, 3 * c, 1), nn.Conv2d(c, c, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.n(x)).view(b, 3, c, h * w).transpose(2, 3).unbind(1)
        y = F.scaled_dot_product_attention(q, k, v)
        return x + self.o(y.transpose(1, 2).reshape(b, c, h, w))


class Unet(nn.Module):
    def __init__(self, c):
        super().__init__()
        t = 4 * c
        self.time = nn.Sequential(nn.Linear(c, t), nn.SiLU(), nn.Linear(t, t))
        self.inp = nn.Conv2d(3, c, 3, padding=1)
        self.d1, self.d2, self.d3 = (
            ResBlock(c, c, t),
            ResBlock(c, 2 * c, t),
            ResBlock(2 * c, 2 * c, t),
        )
        self.mid, self.att = ResBlock(2 * c, 2 * c, t), Attn(2 * c)
        self.u3, self.u2, self.u1 = (
            ResBlock(4 * c, 2 * c, t),
            ResBlock(4 * c, c, t),
            ResBlock(2 * c, c, t),
        )
        self.out = nn.Sequential(nn.GroupNorm(8, c), nn.SiLU(), nn.Conv2d(c, 3, 3, padding=1))
        self.c = c

    def forward(self, x, step):
        freq = torch.exp(-math.log(1e4) * torch.arange(self.c // 2, device=x.device) / self.c * 2)
        ang = step[:, None].float() * freq
        t = self.time(torch.cat([ang.sin(), ang.cos()], 1))
        h1 = self.d1(self.inp(x), t)
        h2 = self.d2(F.avg_pool2d(h1, 2), t)
        h3 = self.d3(F.avg_pool2d(h2, 2), t)
        m = self.att(self.mid(h3, t))
        u = self.u3(torch.cat([m, h3], 1), t)
        u = self.u2(torch.cat([F.interpolate(u, scale_factor=2), h2], 1), t)
        u = self.u1(torch.cat([F.interpolate(u, scale_factor=2), h1], 1), t)
        return self.out(u)


class EMA:
    def __init__(self, model, decay):
        self.decay = decay
        self.shadow = {k: v.clone() for k, v in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model):
        for k, v in model.state_dict().items():
            self.shadow[k].mul_(self.decay).add_(v, alpha=1 - self.decay)


model = Unet(a.ch).to(a.device)
ema = EMA(model, 0.99)
opt = torch.optim.AdamW(model.parameters(), 2e-4)
bar = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0).to(a.device)
rng = torch.Generator().manual_seed(0)
for step in range(14):
    x0 = (torch.rand(a.batch, 3, a.size, a.size, generator=rng) * 2 - 1).to(a.device)
    t = torch.randint(0, 1000, (a.batch,), generator=rng).to(a.device)
    eps = torch.randn(x0.shape, generator=rng).to(a.device)
    ab = bar[t][:, None, None, None]
    with torch.autocast(a.device, dtype=torch.bfloat16):
        pred = model(ab.sqrt() * x0 + (1 - ab).sqrt() * eps, t)
        loss = F.mse_loss(pred.float(), eps)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    ema.update(model)
    print("step %d loss %.9g" % (step, loss.item()), flush=True)
model.load_state_dict(ema.shadow)
model.eval()
with torch.inference_mode():
    x = torch.randn(4, 3, a.size, a.size, device=a.device)
    for s in range(990, 0, -330):
        x = x - 0.1 * model(x, torch.full((4,), s, device=a.device))
print("sampled", tuple(x.shape))
