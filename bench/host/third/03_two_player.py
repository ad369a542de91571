"""A GAN of transformers with hinge losses and two Adams; the critic steps twice for each step."""

import torch
from torch import nn

torch.manual_seed(21)
torch.set_num_threads(1)


def tower(width, depth):
    layer = nn.TransformerEncoderLayer(width, 4, 3 * width, 0.0, "gelu", batch_first=True)
    return nn.TransformerEncoder(layer, depth)


class Maker(nn.Module):
    def __init__(self, length=96, width=96):
        super().__init__()
        self.start = nn.Parameter(torch.randn(length, width) * 0.1)
        self.noise = nn.Linear(16, width)
        self.body, self.end = tower(width, 3), nn.Linear(width, 12)

    def forward(self, z):
        return torch.tanh(self.end(self.body(self.start + self.noise(z)[:, None])))


class Critic(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.start, self.body, self.end = nn.Linear(12, width), tower(width, 3), nn.Linear(width, 1)

    def forward(self, x):
        return self.end(self.body(self.start(x)).mean(1))


maker, critic = Maker(), Critic()
opt_m = torch.optim.Adam(maker.parameters(), 2e-4, betas=(0.0, 0.9))
opt_c = torch.optim.Adam(critic.parameters(), 4e-4, betas=(0.0, 0.9))
waves = torch.sin(torch.arange(96)[None, :, None] * torch.rand(256, 1, 12))
for step in range(3):
    for k in range(2):
        real = waves[torch.randint(0, 256, (32,))]
        fake = maker(torch.randn(32, 16)).detach()
        loss_c = (1 - critic(real)).relu().mean() + (1 + critic(fake)).relu().mean()
        opt_c.zero_grad(set_to_none=True)
        loss_c.backward()
        opt_c.step()
    loss_m = -critic(maker(torch.randn(32, 16))).mean()
    opt_m.zero_grad(set_to_none=True)
    loss_m.backward()
    opt_m.step()
    print("%d loss_c %.8g loss_m %.8g" % (step, loss_c.item(), loss_m.item()), flush=True)
