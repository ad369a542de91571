import os

import torch
import torch.nn as nn
from torch import autograd, optim

TINY = int(os.environ.get("TINY", 0))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(1234)

BATCH_SIZE = 4 if TINY else 96
DIM = 4 if TINY else 64
IMG = 16 if TINY else 64
NOISE = 16 if TINY else 128
LAMBDA = 10
CRITIC_ITERS = 3
ITERS = 20


class ResBlockUp(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(i),
            nn.ReLU(),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(i, o, 3, padding=1),
            nn.BatchNorm2d(o),
            nn.ReLU(),
            nn.Conv2d(o, o, 3, padding=1),
        )
        self.sc = nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(i, o, 1))

    def forward(self, x):
        return self.body(x) + self.sc(x)


class ResBlockDown(nn.Module):
    def __init__(self, i, o, size):
        super().__init__()
        # layer norm: batch norm is not allowed in the critic with a gradient penalty
        self.body = nn.Sequential(
            nn.LayerNorm([i, size, size]),
            nn.SiLU(),
            nn.Conv2d(i, i, 3, padding=1),
            nn.LayerNorm([i, size, size]),
            nn.SiLU(),
            nn.Conv2d(i, o, 3, padding=1),
            nn.AvgPool2d(2),
        )
        self.sc = nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(i, o, 1))

    def forward(self, x):
        return self.body(x) + self.sc(x)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(NOISE, 4 * 4 * DIM * 4)
        layers, s = [], 4
        while s < IMG:
            layers.append(ResBlockUp(DIM * 4 if s == 4 else DIM * 2, DIM * 2))
            s *= 2
        self.layers = nn.Sequential(*layers)
        self.out = nn.Sequential(
            nn.BatchNorm2d(DIM * 2), nn.ReLU(), nn.Conv2d(DIM * 2, 3, 3, padding=1), nn.Tanh()
        )

    def forward(self, z):
        return self.out(self.layers(self.fc(z).view(-1, DIM * 4, 4, 4)))


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Conv2d(3, DIM, 3, padding=1)
        layers, s, c = [], IMG, DIM
        while s > 4:
            layers.append(ResBlockDown(c, min(c * 2, DIM * 4), s))
            c, s = min(c * 2, DIM * 4), s // 2
        self.layers = nn.Sequential(*layers)
        self.fc = nn.Linear(c * 16, 1)

    def forward(self, x):
        return self.fc(self.layers(self.inp(x)).flatten(1)).view(-1)


def calc_gradient_penalty(netD, real, fake):
    alpha = torch.rand(real.size(0), 1, 1, 1, device=real.device)
    inter = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    score = netD(inter)
    grads = autograd.grad(
        outputs=score,
        inputs=inter,
        grad_outputs=torch.ones_like(score),
        create_graph=True,
        retain_graph=True,
        only_inputs=True,
    )[0]
    return ((grads.flatten(1).norm(2, dim=1) - 1) ** 2).mean() * LAMBDA


def inf_train_gen():
    g = torch.Generator().manual_seed(77)
    while True:
        small = torch.rand(BATCH_SIZE, 3, IMG // 4, IMG // 4, generator=g)
        yield nn.functional.interpolate(small, scale_factor=4, mode="bilinear").mul(2).sub(1)


netG, netD = Generator().to(device), Critic().to(device)
optD = optim.Adam(netD.parameters(), lr=1e-4, betas=(0.0, 0.9))
optG = optim.Adam(netG.parameters(), lr=1e-4, betas=(0.0, 0.9))
data = inf_train_gen()

for iteration in range(ITERS):
    for p in netD.parameters():
        p.requires_grad = True
    for _ in range(CRITIC_ITERS):
        real = next(data).to(device)
        with torch.no_grad():
            fake = netG(torch.randn(BATCH_SIZE, NOISE, device=device))
        netD.zero_grad()
        d_real, d_fake = netD(real).mean(), netD(fake).mean()
        gp = calc_gradient_penalty(netD, real, fake)
        d_cost = d_fake - d_real + gp
        d_cost.backward()
        optD.step()

    for p in netD.parameters():
        p.requires_grad = False
    netG.zero_grad()
    g_cost = -netD(netG(torch.randn(BATCH_SIZE, NOISE, device=device))).mean()
    g_cost.backward()
    optG.step()
    print(f"step {iteration} loss {d_cost.item():.9f} g {g_cost.item():.9f}", flush=True)
