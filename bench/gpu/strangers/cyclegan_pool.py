"""Translation between two sets of pictures: two generators under one Adam, two critics under
another, InstanceNorm, and a pool of earlier fakes from which the critics learn."""

# tiny: --width 4 --batch 2 --size 16 --device cpu
import argparse
import itertools
import random

import torch
import torch.nn as nn

p = argparse.ArgumentParser()
p.add_argument("--width", type=int, default=48)
p.add_argument("--batch", type=int, default=8)
p.add_argument("--size", type=int, default=128)
p.add_argument("--device", default="cuda")
a = p.parse_args()
random.seed(3)
torch.manual_seed(3)


class ResnetBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.body = nn.Sequential(
            nn.ReflectionPad2d(1),
            nn.Conv2d(c, c, 3),
            nn.InstanceNorm2d(c),
            nn.ReLU(True),
            nn.ReflectionPad2d(1),
            nn.Conv2d(c, c, 3),
            nn.InstanceNorm2d(c),
        )

    def forward(self, x):
        return x + self.body(x)


def generator(w):
    return nn.Sequential(
        nn.Conv2d(3, w, 7, padding=3),
        nn.InstanceNorm2d(w),
        nn.ReLU(True),
        nn.Conv2d(w, 2 * w, 3, 2, 1),
        nn.InstanceNorm2d(2 * w),
        nn.ReLU(True),
        *[ResnetBlock(2 * w) for _ in range(6)],
        nn.Upsample(scale_factor=2),
        nn.Conv2d(2 * w, w, 3, padding=1),
        nn.InstanceNorm2d(w),
        nn.ReLU(True),
        nn.Conv2d(w, 3, 7, padding=3),
        nn.Tanh(),
    )


def critic(w):
    return nn.Sequential(
        nn.Conv2d(3, w, 4, 2, 1),
        nn.LeakyReLU(0.2, True),
        nn.Conv2d(w, 2 * w, 4, 2, 1),
        nn.InstanceNorm2d(2 * w),
        nn.LeakyReLU(0.2, True),
        nn.Conv2d(2 * w, 1, 4, 1, 1),
    )


class Pool:
    def __init__(self, size=20):
        self.size, self.images = size, []

    def query(self, images):
        out = []
        for image in images.detach():
            if len(self.images) < self.size:
                self.images.append(image)
                out.append(image)
            elif random.random() > 0.5:
                i = random.randrange(self.size)
                out.append(self.images[i])
                self.images[i] = image
            else:
                out.append(image)
        return torch.stack(out)


ga, gb = generator(a.width).to(a.device), generator(a.width).to(a.device)
da, db = critic(a.width).to(a.device), critic(a.width).to(a.device)
og = torch.optim.Adam(itertools.chain(ga.parameters(), gb.parameters()), 2e-4, (0.5, 0.999))
od = torch.optim.Adam(itertools.chain(da.parameters(), db.parameters()), 2e-4, (0.5, 0.999))
pool_a, pool_b = Pool(), Pool()
g = torch.Generator().manual_seed(4)


def gan(out, real):
    return (out - (1.0 if real else 0.0)).square().mean()


for step in range(12):
    x = (torch.rand(a.batch, 3, a.size, a.size, generator=g) * 2 - 1).to(a.device)
    y = (torch.rand(a.batch, 3, a.size, a.size, generator=g) * 2 - 1).to(a.device)
    for net in (da, db):
        net.requires_grad_(False)
    og.zero_grad()
    fake_y, fake_x = ga(x), gb(y)
    loss_g = gan(db(fake_y), True) + gan(da(fake_x), True)
    loss_g = loss_g + 10 * ((gb(fake_y) - x).abs().mean() + (ga(fake_x) - y).abs().mean())
    loss_g = loss_g + 5 * ((ga(y) - y).abs().mean() + (gb(x) - x).abs().mean())
    loss_g.backward()
    og.step()
    for net in (da, db):
        net.requires_grad_(True)
    od.zero_grad()
    loss_d = 0.0
    for d, real, fake, pool in ((db, y, fake_y, pool_b), (da, x, fake_x, pool_a)):
        part = (gan(d(real), True) + gan(d(pool.query(fake)), False)) / 2
        part.backward()
        loss_d += part.item()
    od.step()
    print("step %d loss %.9g" % (step, loss_g.item() + loss_d), flush=True)
