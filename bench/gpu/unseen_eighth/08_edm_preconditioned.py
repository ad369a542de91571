"""EDM-style preconditioned diffusion on 64x64 images, class conditional, bf16, EMA weights."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
RES = 64 if GPU else 16
BASE = 128 if GPU else 16
BATCH = 48 if GPU else 2
STEPS = 12 if GPU else 3
SIGMA_DATA = 0.5


class ResBlock(nn.Module):
    def __init__(self, cin, cout, emb):
        super().__init__()
        self.n1 = nn.GroupNorm(8, cin)
        self.c1 = nn.Conv2d(cin, cout, 3, padding=1)
        self.affine = nn.Linear(emb, 2 * cout)
        self.n2 = nn.GroupNorm(8, cout)
        self.c2 = nn.Conv2d(cout, cout, 3, padding=1)
        nn.init.zeros_(self.c2.weight)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, emb):
        h = self.c1(F.silu(self.n1(x)))
        scale, shift = self.affine(emb)[:, :, None, None].chunk(2, 1)
        h = self.c2(F.silu(self.n2(h) * (1 + scale) + shift))
        return (self.skip(x) + h) * 0.5**0.5


class SelfAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm, self.qkv, self.out = (
            nn.GroupNorm(8, c),
            nn.Conv2d(c, 3 * c, 1),
            nn.Conv2d(c, c, 1),
        )

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, 3, c // 8, 8, h * w).permute(1, 0, 3, 4, 2)
        o = F.scaled_dot_product_attention(q, k, v).permute(0, 3, 1, 2).reshape(b, c, h, w)
        return x + self.out(o)


class UNet(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        e = 4 * BASE
        self.label = nn.Embedding(classes, e)
        self.freq = nn.Parameter(torch.randn(BASE // 2), requires_grad=False)
        self.emb = nn.Sequential(nn.Linear(BASE, e), nn.SiLU(), nn.Linear(e, e))
        widths = [BASE, 2 * BASE, 2 * BASE]
        self.inp = nn.Conv2d(3, BASE, 3, padding=1)
        self.down, skips, c = nn.ModuleList(), [BASE], BASE
        for w in widths:
            for _ in range(2):
                self.down.append(ResBlock(c, w, e))
                skips.append(w)
                c = w
        self.mid1, self.attn, self.mid2 = ResBlock(c, c, e), SelfAttention(c), ResBlock(c, c, e)
        self.up = nn.ModuleList()
        for w in reversed(widths):
            for _ in range(2):
                self.up.append(ResBlock(c + skips.pop(), w, e))
                c = w
        self.out = nn.Sequential(nn.GroupNorm(8, c), nn.SiLU(), nn.Conv2d(c, 3, 3, padding=1))

    def forward(self, x, noise, label):
        ang = 6.2831853 * noise[:, None] * self.freq
        emb = F.silu(self.emb(torch.cat([ang.sin(), ang.cos()], 1)) + self.label(label))
        h, skips = self.inp(x), []
        for i, block in enumerate(self.down):
            if i in (2, 4):
                h = F.avg_pool2d(h, 2)
            h = block(h, emb)
            skips.append(h)
        h = self.mid2(self.attn(self.mid1(h, emb)), emb)
        for i, block in enumerate(self.up):
            h = block(torch.cat([h, skips.pop()], 1), emb)
            if i in (1, 3):
                h = F.interpolate(h, scale_factor=2, mode="nearest")
        return self.out(h)


class Precond(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = UNet()

    def forward(self, x, sigma, label):
        s = sigma.view(-1, 1, 1, 1)
        total = (s**2 + SIGMA_DATA**2).sqrt()
        with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=GPU):
            f = self.net(x / total, sigma.log() / 4, label)
        return SIGMA_DATA**2 / total**2 * x + s * SIGMA_DATA / total * f.float()


torch.manual_seed(808)
model = Precond().to(DEVICE)
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.95))
opt = torch.optim.Adam(model.parameters(), lr=2e-4, betas=(0.9, 0.99))
patterns = torch.randn(10, 3, 8, 8, device=DEVICE)

for step in range(STEPS):
    label = torch.randint(0, 10, (BATCH,), device=DEVICE)
    clean = F.interpolate(patterns[label], size=(RES, RES), mode="bilinear") * SIGMA_DATA
    sigma = (torch.randn(BATCH, device=DEVICE) * 1.2 - 1.2).exp()
    noisy = clean + torch.randn_like(clean) * sigma.view(-1, 1, 1, 1)
    weight = (sigma**2 + SIGMA_DATA**2) / (sigma * SIGMA_DATA) ** 2
    err = (model(noisy, sigma, label) - clean).square().mean((1, 2, 3))
    loss = (weight * err).mean()
    opt.zero_grad(set_to_none=True)
    loss.backward()
    for group in opt.param_groups:
        group["lr"] = 2e-4 * min(1.0, (step + 1) / 4)
    opt.step()
    ema.update_parameters(model)
    print(f"step {step:3d} loss {loss.item():.6f}", flush=True)

ema.eval()
with torch.no_grad():  # a few Euler steps, to see that sampling works
    n = min(4, BATCH)
    sig = torch.linspace(5.0, 0.05, 6, device=DEVICE)
    x = torch.randn(n, 3, RES, RES, device=DEVICE) * sig[0]
    for a, b in zip(sig[:-1], sig[1:], strict=True):
        d = (x - ema(x, a.expand(n), torch.arange(n, device=DEVICE))) / a
        x = x + (b - a) * d
print(f"samples std {x.std().item():.4f}")
