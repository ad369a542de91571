# Image-to-image translation between domains: InstanceNorm with running statistics, a classifier
# head in the critic, cycle loss, gradient penalty, two Adams.
# tiny: --conv 4 --batch 3 --size 16 --device cpu
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

ap = argparse.ArgumentParser()
ap.add_argument("--conv", type=int, default=48)
ap.add_argument("--batch", type=int, default=16)
ap.add_argument("--size", type=int, default=128)
ap.add_argument("--device", default="cuda")
cfg = ap.parse_args()
torch.manual_seed(2)


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(c, c, 3, 1, 1, bias=False),
            nn.InstanceNorm2d(c, affine=True, track_running_stats=True),
            nn.ReLU(inplace=True),
            nn.Conv2d(c, c, 3, 1, 1, bias=False),
            nn.InstanceNorm2d(c, affine=True, track_running_stats=True),
        )

    def forward(self, x):
        return x + self.main(x)


def norm_relu(c):
    return [nn.InstanceNorm2d(c, affine=True, track_running_stats=True), nn.ReLU(inplace=True)]


class Generator(nn.Module):
    def __init__(self, c=cfg.conv, domains=5):
        super().__init__()
        layers = [nn.Conv2d(3 + domains, c, 7, 1, 3, bias=False), *norm_relu(c)]
        for _ in range(2):
            layers += [nn.Conv2d(c, 2 * c, 4, 2, 1, bias=False), *norm_relu(2 * c)]
            c *= 2
        layers += [Block(c) for _ in range(6)]
        for _ in range(2):
            layers += [nn.ConvTranspose2d(c, c // 2, 4, 2, 1, bias=False), *norm_relu(c // 2)]
            c //= 2
        self.main = nn.Sequential(*layers, nn.Conv2d(c, 3, 7, 1, 3, bias=False), nn.Tanh())

    def forward(self, x, c):
        c = c[:, :, None, None].expand(-1, -1, x.size(2), x.size(3))
        return self.main(torch.cat([x, c], 1))


class Critic(nn.Module):
    def __init__(self, c=cfg.conv, domains=5):
        super().__init__()
        layers = [nn.Conv2d(3, c, 4, 2, 1), nn.LeakyReLU(0.01)]
        for _ in range(3):
            layers += [nn.Conv2d(c, 2 * c, 4, 2, 1), nn.LeakyReLU(0.01)]
            c *= 2
        self.main = nn.Sequential(*layers)
        self.src = nn.Conv2d(c, 1, 3, 1, 1, bias=False)
        self.cls = nn.Conv2d(c, domains, cfg.size // 16, bias=False)

    def forward(self, x):
        h = self.main(x)
        return self.src(h), self.cls(h).flatten(1)


def gp(y, x):
    (g,) = torch.autograd.grad(
        y, x, torch.ones_like(y), retain_graph=True, create_graph=True, only_inputs=True
    )
    return ((g.flatten(1).norm(dim=1) - 1) ** 2).mean()


G, D = Generator().to(cfg.device), Critic().to(cfg.device)
g_opt = torch.optim.Adam(G.parameters(), 1e-4, (0.5, 0.999))
d_opt = torch.optim.Adam(D.parameters(), 1e-4, (0.5, 0.999))
rng = torch.Generator().manual_seed(9)
for i in range(12):
    x = (torch.rand(cfg.batch, 3, cfg.size, cfg.size, generator=rng) * 2 - 1).to(cfg.device)
    org = (torch.rand(cfg.batch, 5, generator=rng) > 0.5).float().to(cfg.device)
    trg = org[torch.randperm(cfg.batch, generator=rng).to(cfg.device)]
    src, cls = D(x)
    d_real = -src.mean()
    d_cls = F.binary_cross_entropy_with_logits(cls, org, reduction="sum") / cfg.batch
    fake = G(x, trg)
    src, _ = D(fake.detach())
    alpha = torch.rand(cfg.batch, 1, 1, 1, generator=rng).to(cfg.device)
    hat = (alpha * x + (1 - alpha) * fake).detach().requires_grad_(True)
    d_loss = d_real + src.mean() + d_cls + 10 * gp(D(hat)[0], hat)
    g_opt.zero_grad()
    d_opt.zero_grad()
    d_loss.backward()
    d_opt.step()
    if (i + 1) % 2 == 0:
        fake = G(x, trg)
        src, cls = D(fake)
        rec = G(fake, org)
        g_loss = (
            -src.mean()
            + 10 * (x - rec).abs().mean()
            + F.binary_cross_entropy_with_logits(cls, trg, reduction="sum") / cfg.batch
        )
        g_opt.zero_grad()
        d_opt.zero_grad()
        g_loss.backward()
        g_opt.step()
    print("step %d loss %.9g" % (i, d_loss.item()), flush=True)
