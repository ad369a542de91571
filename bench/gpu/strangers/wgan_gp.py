# Wasserstein GAN with gradient penalty: double backward through the critic, five critic steps for
# each generator step, resblocks with layer norm.
# tiny: --width 4 --batch 6 --device cpu
import argparse

import torch
from torch import autograd, nn, optim

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=128)
parser.add_argument("--batch", type=int, default=128)
parser.add_argument("--device", default="cuda")
opt = parser.parse_args()
torch.manual_seed(0)
dev = opt.device
w = opt.width


class Res(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1)
        self.n1, self.n2 = nn.GroupNorm(1, c), nn.GroupNorm(1, c)

    def forward(self, x):
        h = self.c1(torch.relu(self.n1(x)))
        return x + self.c2(torch.relu(self.n2(h)))


netG = nn.Sequential(
    nn.Linear(128, w * 16),
    nn.Unflatten(1, (w, 4, 4)),
    nn.Upsample(scale_factor=2),
    Res(w),
    nn.Upsample(scale_factor=2),
    Res(w),
    nn.Upsample(scale_factor=2),
    Res(w),
    nn.Conv2d(w, 3, 3, padding=1),
    nn.Tanh(),
).to(dev)
netD = nn.Sequential(
    nn.Conv2d(3, w, 3, padding=1),
    Res(w),
    nn.AvgPool2d(2),
    Res(w),
    nn.AvgPool2d(2),
    Res(w),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(w, 1),
).to(dev)
optD = optim.Adam(netD.parameters(), lr=1e-4, betas=(0.0, 0.9))
optG = optim.Adam(netG.parameters(), lr=1e-4, betas=(0.0, 0.9))
rng = torch.Generator().manual_seed(5)


def penalty(real, fake):
    eps = torch.rand(len(real), 1, 1, 1, generator=rng).to(dev)
    x = (eps * real + (1 - eps) * fake).requires_grad_(True)
    out = netD(x)
    (g,) = autograd.grad(
        out, x, torch.ones_like(out), create_graph=True, retain_graph=True, only_inputs=True
    )
    return 10 * ((g.flatten(1).norm(2, dim=1) - 1) ** 2).mean()


step = 0
for it in range(3):
    for p in netD.parameters():
        p.requires_grad_(True)
    for _ in range(5):
        real = (torch.rand(opt.batch, 3, 32, 32, generator=rng) * 2 - 1).to(dev)
        z = torch.randn(opt.batch, 128, generator=rng).to(dev)
        with torch.no_grad():
            fake = netG(z)
        optD.zero_grad()
        d = netD(fake).mean() - netD(real).mean() + penalty(real, fake)
        d.backward()
        optD.step()
        print("step %d loss %.9g" % (step, d.item()), flush=True)
        step += 1
    for p in netD.parameters():
        p.requires_grad_(False)
    optG.zero_grad()
    g = -netD(netG(torch.randn(opt.batch, 128, generator=rng).to(dev))).mean()
    g.backward()
    optG.step()
