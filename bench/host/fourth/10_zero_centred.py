"""A critic whose gradient by real images is punished (R1), every second step; one generator."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(40)
torch.set_num_threads(1)


def layer(a, b):
    return nn.Sequential(nn.Conv2d(a, b, 3, 1, 1), nn.LeakyReLU(0.2), nn.AvgPool2d(2))


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(layer(3, 48), layer(48, 96), layer(96, 96))
        self.out = nn.Linear(96 * 16, 1)

    def forward(self, x):
        return self.out(self.body(x).flatten(1)).squeeze(1)


class Painter(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(48, 96 * 16)
        self.body = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, 1, 1), nn.LeakyReLU(0.2))
            for a, b in ((96, 64), (64, 48), (48, 32))
        )
        self.out = nn.Conv2d(32, 3, 1)

    def forward(self, z):
        x = self.first(z).view(-1, 96, 4, 4)
        for block in self.body:
            x = block(F.interpolate(x, scale_factor=2))
        return torch.tanh(self.out(x))


critic, painter = Critic(), Painter()
opt_c = torch.optim.Adam(critic.parameters(), 1e-4, (0.0, 0.99))
opt_p = torch.optim.Adam(painter.parameters(), 1e-4, (0.0, 0.99))
for step in range(4):
    real = torch.rand(72, 3, 32, 32) * 2 - 1
    fake = painter(torch.randn(72, 48)).detach()
    loss = F.softplus(-critic(real)).mean() + F.softplus(critic(fake)).mean()
    if step % 2 == 0:
        real.requires_grad_(True)
        (slope,) = torch.autograd.grad(critic(real).sum(), real, create_graph=True)
        loss = loss + 5 * slope.pow(2).sum((1, 2, 3)).mean()
    opt_c.zero_grad()
    loss.backward()
    opt_c.step()
    drawn = F.softplus(-critic(painter(torch.randn(72, 48)))).mean()
    opt_p.zero_grad()
    drawn.backward()
    opt_p.step()
    print("step %d loss_c %.8g loss_p %.8g" % (step, loss.item(), drawn.item()), flush=True)
