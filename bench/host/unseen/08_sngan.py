"""A GAN with spectral norm and hinge losses, two critic steps for one of the generator."""

import torch
from torch import nn
from torch.nn.utils import spectral_norm

torch.manual_seed(8)
torch.set_num_threads(1)
B, Z, W = 96, 64, 32


class Up(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.bn, self.conv = nn.BatchNorm2d(a), nn.Conv2d(a, b, 3, padding=1)
        self.skip = nn.Conv2d(a, b, 1)

    def forward(self, x):
        up = nn.functional.interpolate(torch.relu(self.bn(x)), scale_factor=2)
        return self.conv(up) + self.skip(nn.functional.interpolate(x, scale_factor=2))


class G(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(Z, 4 * W * 16)
        self.body = nn.Sequential(Up(4 * W, 2 * W), Up(2 * W, W), Up(W, W))
        self.out = nn.Conv2d(W, 3, 3, padding=1)

    def forward(self, z):
        return torch.tanh(self.out(torch.relu(self.body(self.fc(z).view(-1, 4 * W, 4, 4)))))


def D():
    def conv(a, b, s):
        return spectral_norm(nn.Conv2d(a, b, 3 if s == 1 else 4, s, 1))

    act = nn.LeakyReLU(0.1)
    return nn.Sequential(
        conv(3, W, 1), act, conv(W, W, 2), act, conv(W, 2 * W, 1), act, conv(2 * W, 2 * W, 2), act,
        conv(2 * W, 4 * W, 1), act, conv(4 * W, 4 * W, 2), act, nn.Flatten(),
        spectral_norm(nn.Linear(4 * W * 16, 1)),
    )  # fmt: skip


g, d = G(), D()
og = torch.optim.Adam(g.parameters(), 2e-4, (0.0, 0.9))
od = torch.optim.Adam(d.parameters(), 2e-4, (0.0, 0.9))
for step in range(4):
    for _ in range(2):
        real = torch.rand(B, 3, 32, 32) * 2 - 1
        with torch.no_grad():
            fake = g(torch.randn(B, Z))
        od.zero_grad()
        loss_d = torch.relu(1 - d(real)).mean() + torch.relu(1 + d(fake)).mean()
        loss_d.backward()
        od.step()
    og.zero_grad()
    loss_g = -d(g(torch.randn(B, Z))).mean()
    loss_g.backward()
    og.step()
    print("%d loss_d %.8g loss_g %.8g" % (step, loss_d.item(), loss_g.item()), flush=True)
