"""Train a Glow normalizing flow (actnorm, invertible 1x1, affine coupling) on small images."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(99)
device = "cuda" if torch.cuda.is_available() else "cpu"

SIZE, BATCH, LEVELS, FLOWS, HIDDEN, STEPS = 64, 96, 3, 16, 256, 10
if device == "cpu":
    SIZE, BATCH, LEVELS, FLOWS, HIDDEN, STEPS = 16, 4, 2, 2, 16, 8


class ActNorm(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1, channels, 1, 1))
        self.logs = nn.Parameter(torch.zeros(1, channels, 1, 1))
        self.register_buffer("ready", torch.tensor(False))

    def forward(self, x):
        if self.training and not self.ready:
            with torch.no_grad():
                self.bias.copy_(-x.mean((0, 2, 3), keepdim=True))
                self.logs.copy_(-x.std((0, 2, 3), keepdim=True).clamp(min=1e-5).log())
                self.ready.fill_(True)
        pixels = x.shape[2] * x.shape[3]
        return (x + self.bias) * self.logs.exp(), pixels * self.logs.sum()


class InvertibleConv(nn.Module):
    def __init__(self, channels):
        super().__init__()
        q, _ = torch.linalg.qr(torch.randn(channels, channels))
        self.weight = nn.Parameter(q)

    def forward(self, x):
        pixels = x.shape[2] * x.shape[3]
        logdet = torch.linalg.slogdet(self.weight.double())[1].float()
        return F.conv2d(x, self.weight[:, :, None, None]), pixels * logdet


class ZeroConv(nn.Conv2d):
    def __init__(self, cin, cout):
        super().__init__(cin, cout, 3, padding=1)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)
        self.scale = nn.Parameter(torch.zeros(1, cout, 1, 1))

    def forward(self, x):
        return super().forward(x) * torch.exp(3 * self.scale)


class Coupling(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(channels // 2, HIDDEN, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(HIDDEN, HIDDEN, 1),
            nn.ReLU(inplace=True),
            ZeroConv(HIDDEN, channels),
        )
        nn.init.normal_(self.net[0].weight, std=0.05)
        nn.init.normal_(self.net[2].weight, std=0.05)

    def forward(self, x):
        a, b = x.chunk(2, 1)
        shift, log_scale = self.net(a).chunk(2, 1)
        scale = torch.sigmoid(log_scale + 2)
        b = (b + shift) * scale
        return torch.cat([a, b], 1), scale.log().flatten(1).sum(1)


class FlowStep(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.parts = nn.ModuleList(
            [ActNorm(channels), InvertibleConv(channels), Coupling(channels)]
        )

    def forward(self, x, logdet):
        for part in self.parts:
            x, d = part(x)
            logdet = logdet + d
        return x, logdet


class Glow(nn.Module):
    def __init__(self):
        super().__init__()
        self.levels, self.priors = nn.ModuleList(), nn.ModuleList()
        c = 3
        for level in range(LEVELS):
            c *= 4
            self.levels.append(nn.ModuleList(FlowStep(c) for _ in range(FLOWS)))
            if level < LEVELS - 1:
                c //= 2
                self.priors.append(ZeroConv(c, 2 * c))

    def forward(self, x):
        logp = x.new_zeros(len(x))
        for level, steps in enumerate(self.levels):
            x = F.pixel_unshuffle(x, 2)
            for step in steps:
                x, logp = step(x, logp)
            if level < LEVELS - 1:
                x, z = x.chunk(2, 1)
                mean, logs = self.priors[level](x).chunk(2, 1)
            else:
                z, mean, logs = x, torch.zeros_like(x), torch.zeros_like(x)
            density = -0.5 * (math.log(2 * math.pi) + 2 * logs + (z - mean) ** 2 / (2 * logs).exp())
            logp = logp + density.flatten(1).sum(1)
        return logp


def make_images():
    coarse = torch.rand(BATCH, 3, 4, 4, device=device)
    smooth = F.interpolate(coarse, size=(SIZE, SIZE), mode="bicubic", align_corners=False)
    levels = (smooth.clamp(0, 1) * 31).floor()
    return (levels + torch.rand_like(levels)) / 32 - 0.5  # five bits, dequantised


model = Glow().to(device)
optimizer = torch.optim.Adamax(model.parameters(), lr=1e-3)
warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5)
dims = 3 * SIZE * SIZE

for step in range(STEPS):
    logp = model(make_images())
    loss = (-logp.mean() / dims + math.log(32)) / math.log(2)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 50.0)
    optimizer.step()
    warmup.step()
    print(f"step {step} loss {loss.item():.6f}", flush=True)
