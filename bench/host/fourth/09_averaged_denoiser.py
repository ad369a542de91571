"""A denoiser with time steps and an averaged copy that moves on after every step."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(39)
torch.set_num_threads(1)


class Residual(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, a), nn.GroupNorm(8, b)
        self.conv1, self.conv2 = nn.Conv2d(a, b, 3, padding=1), nn.Conv2d(b, b, 3, padding=1)
        self.time, self.skip = nn.Linear(64, b), nn.Conv2d(a, b, 1)

    def forward(self, x, t):
        y = self.conv1(F.silu(self.norm1(x))) + self.time(t)[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(y)))


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(1, 64), nn.SiLU(), nn.Linear(64, 64))
        self.inp, self.out = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 3, 3, padding=1)
        self.down1, self.down2 = Residual(32, 48), Residual(48, 64)
        self.up1, self.up2 = Residual(64 + 48, 48), Residual(48 + 32, 32)

    def forward(self, x, t):
        t = self.time(t[:, None])
        a = self.inp(x)
        b = self.down1(F.avg_pool2d(a, 2), t)
        c = self.down2(F.avg_pool2d(b, 2), t)
        b = self.up1(torch.cat([F.interpolate(c, scale_factor=2), b], 1), t)
        return self.out(self.up2(torch.cat([F.interpolate(b, scale_factor=2), a], 1), t))


model = Denoiser()
slow = copy.deepcopy(model).requires_grad_(False)
opt = torch.optim.AdamW(model.parameters(), 2e-4)
for step in range(3):
    clean, noise, t = torch.rand(40, 3, 48, 48), torch.randn(40, 3, 48, 48), torch.rand(40)
    mixed = (
        torch.sqrt(1 - t)[:, None, None, None] * clean + torch.sqrt(t)[:, None, None, None] * noise
    )
    loss = F.mse_loss(model(mixed, t), noise)
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        for a, b in zip(slow.parameters(), model.parameters()):
            a.lerp_(b, 0.05)
        seen = F.mse_loss(slow(mixed[:8], t[:8]), noise[:8])
    print("step %d loss %.8g slow loss %.8g" % (step, loss.item(), seen.item()), flush=True)
