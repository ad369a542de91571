"""Image translation between domains: InstanceNorm with running statistics, gradient penalty."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
DOMAINS, SIZE, BATCH = 4, 64, 24


class Residual(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(d, d, 3, 1, 1, bias=False),
            nn.InstanceNorm2d(d, affine=True, track_running_stats=True),
            nn.ReLU(inplace=True),
            nn.Conv2d(d, d, 3, 1, 1, bias=False),
            nn.InstanceNorm2d(d, affine=True, track_running_stats=True),
        )

    def forward(self, x):
        return x + self.main(x)


class Generator(nn.Module):
    def __init__(self, d=24, repeat=4):
        super().__init__()
        layers = [nn.Conv2d(3 + DOMAINS, d, 7, 1, 3, bias=False)]
        layers += [nn.InstanceNorm2d(d, affine=True, track_running_stats=True), nn.ReLU(True)]
        layers += [nn.Conv2d(d, 2 * d, 4, 2, 1, bias=False), nn.ReLU(True)]
        layers += [Residual(2 * d) for _ in range(repeat)]
        layers += [nn.ConvTranspose2d(2 * d, d, 4, 2, 1, bias=False), nn.ReLU(True)]
        layers += [nn.Conv2d(d, 3, 7, 1, 3, bias=False), nn.Tanh()]
        self.main = nn.Sequential(*layers)

    def forward(self, x, c):
        c = c.view(c.size(0), c.size(1), 1, 1).expand(-1, -1, x.size(2), x.size(3))
        return self.main(torch.cat([x, c], 1))


class Discriminator(nn.Module):
    def __init__(self, d=24, repeat=4):
        super().__init__()
        layers, width = [nn.Conv2d(3, d, 4, 2, 1), nn.LeakyReLU(0.01)], d
        for _ in range(1, repeat):
            layers += [nn.Conv2d(width, 2 * width, 4, 2, 1), nn.LeakyReLU(0.01)]
            width *= 2
        self.main = nn.Sequential(*layers)
        self.real = nn.Conv2d(width, 1, 3, 1, 1, bias=False)
        self.kind = nn.Conv2d(width, DOMAINS, SIZE // 2**repeat, bias=False)

    def forward(self, x):
        h = self.main(x)
        return self.real(h), self.kind(h).flatten(1)


g, d = Generator(), Discriminator()
g_opt = torch.optim.Adam(g.parameters(), 1e-4, (0.5, 0.999))
d_opt = torch.optim.Adam(d.parameters(), 1e-4, (0.5, 0.999))
bce = nn.functional.binary_cross_entropy_with_logits


def penalty(y, x):
    (dydx,) = torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)
    return ((dydx.flatten(1).norm(dim=1) - 1) ** 2).mean()


for step in range(6):
    x = torch.rand(BATCH, 3, SIZE, SIZE) * 2 - 1
    own = torch.eye(DOMAINS)[torch.randint(DOMAINS, (BATCH,))]
    other = own[torch.randperm(BATCH)]
    src, kind = d(x)
    fake = g(x, other)
    fsrc, _ = d(fake.detach())
    alpha = torch.rand(BATCH, 1, 1, 1)
    hat = (alpha * x + (1 - alpha) * fake.detach()).requires_grad_(True)
    gp = penalty(d(hat)[0], hat)
    d_loss = -src.mean() + fsrc.mean() + bce(kind, own) + 10 * gp
    d_opt.zero_grad()
    d_loss.backward()
    d_opt.step()
    line = "step %d d_loss: %.8g" % (step, d_loss.item())
    if step % 2:
        fake = g(x, other)
        fsrc, fkind = d(fake)
        back = g(fake, own)
        g_loss = -fsrc.mean() + bce(fkind, other) + 10 * (x - back).abs().mean()
        g_opt.zero_grad()
        g_loss.backward()
        g_opt.step()
        line += " g_loss: %.8g" % g_loss.item()
    print(line, flush=True)
