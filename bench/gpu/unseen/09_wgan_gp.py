import argparse
import os

import torch
import torch.nn as nn
from torch import autograd, optim

SMALL = os.environ.get("SMALL") == "1"

ap = argparse.ArgumentParser()
ap.add_argument("--dim", type=int, default=8 if SMALL else 128)
ap.add_argument("--size", type=int, default=16 if SMALL else 64)
ap.add_argument("--batch", type=int, default=4 if SMALL else 64)
ap.add_argument("--iters", type=int, default=12)
ap.add_argument("--critic-iters", type=int, default=3)
ap.add_argument("--lambda-gp", type=float, default=10.0)
ap.add_argument("--nz", type=int, default=128)
opt = ap.parse_args()

torch.backends.cudnn.deterministic = True
torch.manual_seed(1234)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class ResUp(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.bn1 = nn.BatchNorm2d(cin)
        self.bn2 = nn.BatchNorm2d(cout)
        self.c1 = nn.Conv2d(cin, cout, 3, padding=1)
        self.c2 = nn.Conv2d(cout, cout, 3, padding=1)
        self.sc = nn.Conv2d(cin, cout, 1)
        self.up = nn.Upsample(scale_factor=2)

    def forward(self, x):
        h = self.c1(self.up(torch.relu(self.bn1(x))))
        h = self.c2(torch.relu(self.bn2(h)))
        return h + self.sc(self.up(x))


class ResDown(nn.Module):
    def __init__(self, cin, cout, size):
        super().__init__()
        self.n1 = nn.LayerNorm([cin, size, size])
        self.n2 = nn.LayerNorm([cin, size, size])
        self.c1 = nn.Conv2d(cin, cin, 3, padding=1)
        self.c2 = nn.Conv2d(cin, cout, 3, padding=1)
        self.sc = nn.Conv2d(cin, cout, 1)
        self.pool = nn.AvgPool2d(2)

    def forward(self, x):
        h = self.c1(torch.relu(self.n1(x)))
        h = self.pool(self.c2(torch.relu(self.n2(h))))
        return h + self.sc(self.pool(x))


class Generator(nn.Module):
    def __init__(self, dim, size, nz):
        super().__init__()
        self.s = size // 8
        self.dim = dim
        self.fc = nn.Linear(nz, 4 * dim * self.s * self.s)
        self.net = nn.Sequential(
            ResUp(4 * dim, 4 * dim),
            ResUp(4 * dim, 2 * dim),
            ResUp(2 * dim, dim),
            nn.BatchNorm2d(dim),
            nn.ReLU(),
            nn.Conv2d(dim, 3, 3, padding=1),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.net(self.fc(z).view(-1, 4 * self.dim, self.s, self.s))


class Critic(nn.Module):
    def __init__(self, dim, size):
        super().__init__()
        self.stem = nn.Conv2d(3, dim, 3, padding=1)
        self.net = nn.Sequential(
            ResDown(dim, 2 * dim, size),
            ResDown(2 * dim, 4 * dim, size // 2),
            ResDown(4 * dim, 4 * dim, size // 4),
        )
        self.out = nn.Linear(4 * dim * (size // 8) ** 2, 1)

    def forward(self, x):
        return self.out(self.net(self.stem(x)).flatten(1)).view(-1)


def calc_gradient_penalty(netD, real_data, fake_data):
    alpha = torch.rand(real_data.size(0), 1, 1, 1, device=device)
    interpolates = (alpha * real_data + (1 - alpha) * fake_data).requires_grad_(True)
    disc = netD(interpolates)
    gradients = autograd.grad(
        outputs=disc,
        inputs=interpolates,
        grad_outputs=torch.ones_like(disc),
        create_graph=True,
        retain_graph=True,
        only_inputs=True,
    )[0]
    gradients = gradients.flatten(1)
    return ((gradients.norm(2, dim=1) - 1) ** 2).mean() * opt.lambda_gp


def inf_train_gen():
    g = torch.Generator().manual_seed(77)
    while True:
        base = torch.rand(opt.batch, 3, 1, 1, generator=g) * 2 - 1
        yield (base + 0.1 * torch.randn(opt.batch, 3, opt.size, opt.size, generator=g)).clamp(-1, 1)


netG = Generator(opt.dim, opt.size, opt.nz).to(device)
netD = Critic(opt.dim, opt.size).to(device)
optimizerD = optim.Adam(netD.parameters(), lr=1e-4, betas=(0.0, 0.9))
optimizerG = optim.Adam(netG.parameters(), lr=1e-4, betas=(0.0, 0.9))
data = inf_train_gen()

for iteration in range(opt.iters):
    # (1) update critic
    for p in netD.parameters():
        p.requires_grad = True
    for _ in range(opt.critic_iters):
        real = next(data).to(device)
        netD.zero_grad()
        D_real = netD(real).mean()
        with torch.no_grad():
            fake = netG(torch.randn(opt.batch, opt.nz, device=device))
        D_fake = netD(fake).mean()
        gp = calc_gradient_penalty(netD, real, fake)
        D_cost = D_fake - D_real + gp
        D_cost.backward()
        optimizerD.step()

    # (2) update generator
    for p in netD.parameters():
        p.requires_grad = False
    netG.zero_grad()
    G_cost = -netD(netG(torch.randn(opt.batch, opt.nz, device=device))).mean()
    G_cost.backward()
    optimizerG.step()
    print(f"step {iteration} loss {D_cost.item():.6f} lossG {G_cost.item():.6f} gp {gp.item():.6f}")
