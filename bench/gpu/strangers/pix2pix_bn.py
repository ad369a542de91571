# Paired image translation: a U-Net generator with batch norm, a patch critic that sees both images,
# L1 beside the adversarial loss, critic and generator in turns.
# tiny: --f 4 --batch 3 --size 32 --device cpu
import argparse

import torch
import torch.nn as nn

ap = argparse.ArgumentParser()
ap.add_argument("--f", type=int, default=64)
ap.add_argument("--batch", type=int, default=24)
ap.add_argument("--size", type=int, default=192)
ap.add_argument("--device", default="cuda")
cfg = ap.parse_args()
torch.manual_seed(4)


def down(i, o, norm=True):
    layers = [nn.Conv2d(i, o, 4, 2, 1, bias=not norm)]
    return nn.Sequential(*layers, *([nn.BatchNorm2d(o)] if norm else []), nn.LeakyReLU(0.2))


def up(i, o):
    return nn.Sequential(
        nn.ConvTranspose2d(i, o, 4, 2, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU()
    )


class UNet(nn.Module):
    def __init__(self, f):
        super().__init__()
        self.d1, self.d2 = down(3, f, False), down(f, 2 * f)
        self.d3, self.d4 = down(2 * f, 4 * f), down(4 * f, 8 * f)
        self.u4, self.u3 = up(8 * f, 4 * f), up(8 * f, 2 * f)
        self.u2 = up(4 * f, f)
        self.out = nn.Sequential(nn.ConvTranspose2d(2 * f, 3, 4, 2, 1), nn.Tanh())

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(a)
        c = self.d3(b)
        y = self.u4(self.d4(c))
        y = self.u3(torch.cat([y, c], 1))
        y = self.u2(torch.cat([y, b], 1))
        return self.out(torch.cat([y, a], 1))


gen = UNet(cfg.f).to(cfg.device)
f = cfg.f
critic = nn.Sequential(
    down(6, f, False), down(f, 2 * f), down(2 * f, 4 * f), nn.Conv2d(4 * f, 1, 3, 1, 1)
).to(cfg.device)
og = torch.optim.Adam(gen.parameters(), 2e-4, (0.5, 0.999))
oc = torch.optim.Adam(critic.parameters(), 2e-4, (0.5, 0.999))
bce, l1 = nn.BCEWithLogitsLoss(), nn.L1Loss()
rng = torch.Generator().manual_seed(7)
for i in range(12):
    a, b = (
        (torch.rand(cfg.batch, 3, cfg.size, cfg.size, generator=rng) * 2 - 1).to(cfg.device)
        for _ in range(2)
    )
    fake = gen(a)
    real_score = critic(torch.cat([a, b], 1))
    fake_score = critic(torch.cat([a, fake.detach()], 1))
    c_loss = 0.5 * (
        bce(real_score, torch.ones_like(real_score)) + bce(fake_score, torch.zeros_like(fake_score))
    )
    oc.zero_grad()
    c_loss.backward()
    oc.step()
    score = critic(torch.cat([a, fake], 1))
    g_loss = bce(score, torch.ones_like(score)) + 100 * l1(fake, b)
    og.zero_grad()
    g_loss.backward()
    og.step()
    print("step %d loss %.9g c %.9g" % (i, g_loss.item(), c_loss.item()), flush=True)
