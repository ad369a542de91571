"""Progressive distillation: a student learns two DDIM steps of its teacher in one (EMA, bf16)."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

gpu = torch.cuda.is_available()
device = "cuda" if gpu else "cpu"
torch.manual_seed(77)

cfg = dict(
    res=64 if gpu else 16,
    base=96 if gpu else 16,
    mults=(1, 2, 3) if gpu else (1, 2),
    blocks=2 if gpu else 1,
    batch=64 if gpu else 4,
    rounds=(8, 4) if gpu else (4, 2),
    steps_per_round=6 if gpu else 4,
)


class ResBlock(nn.Module):
    def __init__(self, cin, cout, temb):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, cin), nn.GroupNorm(8, cout)
        self.conv1 = nn.Conv2d(cin, cout, 3, padding=1)
        self.conv2 = nn.Conv2d(cout, cout, 3, padding=1)
        self.film = nn.Linear(temb, 2 * cout)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()
        nn.init.zeros_(self.conv2.weight)

    def forward(self, x, t):
        h = self.conv1(F.silu(self.norm1(x)))
        scale, shift = self.film(t)[:, :, None, None].chunk(2, 1)
        h = self.conv2(F.silu(self.norm2(h) * (1 + scale) + shift))
        return h + self.skip(x)


class SelfAttention(nn.Module):
    def __init__(self, c, heads=4):
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(8, c)
        self.qkv, self.out = nn.Conv2d(c, 3 * c, 1), nn.Conv2d(c, c, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = (
            self.qkv(self.norm(x)).view(b, 3, self.heads, -1, h * w).transpose(-1, -2).unbind(1)
        )
        y = F.scaled_dot_product_attention(q, k, v)
        return x + self.out(y.transpose(-1, -2).reshape(b, c, h, w))


class UNet(nn.Module):
    def __init__(self, base, mults, blocks):
        super().__init__()
        temb = 4 * base
        self.base = base
        self.time = nn.Sequential(nn.Linear(base, temb), nn.SiLU(), nn.Linear(temb, temb))
        self.stem = nn.Conv2d(3, base, 3, padding=1)
        self.down, self.pool, chans, c = nn.ModuleList(), nn.ModuleList(), [base], base
        for i, m in enumerate(mults):
            for _ in range(blocks):
                self.down.append(ResBlock(c, base * m, temb))
                c = base * m
                chans.append(c)
            last = i == len(mults) - 1
            self.pool.append(nn.Identity() if last else nn.Conv2d(c, c, 3, 2, 1))
        self.mid1, self.mid2 = ResBlock(c, c, temb), ResBlock(c, c, temb)
        self.attn = SelfAttention(c)
        self.up, self.grow = nn.ModuleList(), nn.ModuleList()
        for i, m in reversed(list(enumerate(mults))):
            for _ in range(blocks):
                self.up.append(ResBlock(c + chans.pop(), base * m, temb))
                c = base * m
            self.grow.append(nn.Identity() if i == 0 else nn.Conv2d(c, c, 3, padding=1))
        self.norm, self.out = nn.GroupNorm(8, c), nn.Conv2d(c, 3, 3, padding=1)
        self.levels, self.blocks = len(mults), blocks

    def forward(self, x, t):
        freq = torch.exp(-9.0 * torch.arange(self.base // 2, device=x.device) / (self.base // 2))
        ang = 1000 * t[:, None] * freq
        temb = self.time(torch.cat([ang.sin(), ang.cos()], 1))
        h, skips = self.stem(x), []
        for lvl in range(self.levels):
            for b in range(self.blocks):
                h = self.down[lvl * self.blocks + b](h, temb)
                skips.append(h)
            h = self.pool[lvl](h)
        h = self.mid2(self.attn(self.mid1(h, temb)), temb)
        for lvl in range(self.levels):
            for b in range(self.blocks):
                h = self.up[lvl * self.blocks + b](torch.cat([h, skips.pop()], 1), temb)
            if lvl < self.levels - 1:
                h = self.grow[lvl](F.interpolate(h, scale_factor=2.0))
        return self.out(F.silu(self.norm(h)))


def alpha_sigma(t):
    angle = 0.5 * torch.pi * t[:, None, None, None]
    return torch.cos(angle), torch.sin(angle)


def predict_x(net, z, t):
    """The network predicts v; the caller wants the clean image."""
    a, s = alpha_sigma(t)
    with torch.autocast(device, dtype=torch.bfloat16, enabled=gpu):
        v = net(z, t)
    return a * z - s * v.float()


def ddim(net, z, t, to):
    x = predict_x(net, z, t)
    a, s = alpha_sigma(t)
    a2, s2 = alpha_sigma(to)
    return a2 * x + s2 * (z - a * x) / s


def blobs(n, res):
    axis = torch.linspace(-1, 1, res, device=device)
    c = torch.rand(n, 3, 2, device=device) * 1.4 - 0.7
    d = (axis.view(1, 1, -1, 1) - c[..., 0, None, None]) ** 2
    d = d + (axis.view(1, 1, 1, -1) - c[..., 1, None, None]) ** 2
    return 2 * torch.exp(-d * 12) - 1


def distill_target(teacher, z, t, n):
    """What the student must output at t so that one of its steps lands where two of ours do."""
    mid, end = t - 0.5 / n, t - 1.0 / n
    with torch.no_grad():
        z2 = ddim(teacher, ddim(teacher, z, t, mid), mid, end)
        a, s = alpha_sigma(t)
        a2, s2 = alpha_sigma(end)
        ratio = s2 / s
        return (z2 - ratio * z) / (a2 - ratio * a)


teacher = UNet(cfg["base"], cfg["mults"], cfg["blocks"]).to(device).eval()
total = 0
for n in cfg["rounds"]:
    teacher.requires_grad_(False)
    student = copy.deepcopy(teacher).train().requires_grad_(True)
    ema = copy.deepcopy(student).requires_grad_(False)
    opt = torch.optim.Adam(student.parameters(), lr=2e-4)
    for i in range(cfg["steps_per_round"]):
        for group in opt.param_groups:
            group["lr"] = 2e-4 * (1 - i / cfg["steps_per_round"])
        x = blobs(cfg["batch"], cfg["res"])
        t = torch.randint(1, n + 1, (len(x),), device=device) / n
        a, s = alpha_sigma(t)
        z = a * x + s * torch.randn_like(x)
        target = distill_target(teacher, z, t, n)
        weight = (a**2 / s**2).clamp(min=1.0)
        loss = (weight * (predict_x(student, z, t) - target) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        opt.step()
        with torch.no_grad():
            for p, q in zip(ema.parameters(), student.parameters(), strict=True):
                p.lerp_(q, 0.1)
        print(f"step {total} loss {loss.item():.6f} sampler {n}", flush=True)
        total += 1
    teacher = ema.eval()

with torch.no_grad():
    z, n = torch.randn(4, 3, cfg["res"], cfg["res"], device=device), cfg["rounds"][-1]
    for k in range(n, 0, -1):
        t = torch.full((4,), k / n, device=device)
        z = ddim(teacher, z, t, t - 1.0 / n)
print(f"samples mean {z.mean().item():.4f} std {z.std().item():.4f}")
