"""Class-conditional GAN in the BigGAN manner: spectral norm, projection, hinge, two D steps."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import spectral_norm as sn

CUDA = torch.cuda.is_available()
device = torch.device("cuda") if CUDA else torch.device("cpu")
CH = 64 if CUDA else 8
BATCH = 192 if CUDA else 4
ROUNDS = 8 if CUDA else 3
N_CLASSES, ZDIM, SIDE = 10, 96, 64


class CondBN(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.bn = nn.BatchNorm2d(c, affine=False)
        self.gain = nn.Linear(ZDIM + 32, c, bias=False)
        self.bias = nn.Linear(ZDIM + 32, c, bias=False)

    def forward(self, x, cond):
        gain = 1 + self.gain(cond)[:, :, None, None]
        return self.bn(x) * gain + self.bias(cond)[:, :, None, None]


class GBlock(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.b1, self.b2 = CondBN(cin), CondBN(cout)
        self.c1 = sn(nn.Conv2d(cin, cout, 3, padding=1))
        self.c2 = sn(nn.Conv2d(cout, cout, 3, padding=1))
        self.sc = sn(nn.Conv2d(cin, cout, 1))

    def forward(self, x, cond):
        h = F.interpolate(F.relu(self.b1(x, cond)), scale_factor=2)
        h = self.c2(F.relu(self.b2(self.c1(h), cond)))
        return h + self.sc(F.interpolate(x, scale_factor=2))


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(N_CLASSES, 32)
        self.fc = sn(nn.Linear(ZDIM, 8 * CH * 16))
        mult = [8, 8, 4, 2, 1]
        self.blocks = nn.ModuleList(
            GBlock(a * CH, b * CH) for a, b in zip(mult[:-1], mult[1:], strict=True)
        )
        self.bn = nn.BatchNorm2d(CH)
        self.rgb = sn(nn.Conv2d(CH, 3, 3, padding=1))

    def forward(self, z, y):
        cond = torch.cat([z, self.embed(y)], 1)
        h = self.fc(z).view(-1, 8 * CH, 4, 4)
        for block in self.blocks:
            h = block(h, cond)
        return torch.tanh(self.rgb(F.relu(self.bn(h))))


class DBlock(nn.Module):
    def __init__(self, cin, cout, first=False):
        super().__init__()
        self.first = first
        self.c1 = sn(nn.Conv2d(cin, cout, 3, padding=1))
        self.c2 = sn(nn.Conv2d(cout, cout, 3, padding=1))
        self.sc = sn(nn.Conv2d(cin, cout, 1))

    def forward(self, x):
        h = x if self.first else F.relu(x)
        h = self.c2(F.relu(self.c1(h)))
        return F.avg_pool2d(h, 2) + self.sc(F.avg_pool2d(x, 2))


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        widths = [3, CH, 2 * CH, 4 * CH, 8 * CH]
        self.body = nn.Sequential(
            *[DBlock(widths[i], widths[i + 1], first=i == 0) for i in range(4)]
        )
        self.lin = sn(nn.Linear(8 * CH, 1))
        self.proj = sn(nn.Embedding(N_CLASSES, 8 * CH))

    def forward(self, x, y):
        h = F.relu(self.body(x)).sum((2, 3))
        return self.lin(h).squeeze(1) + (self.proj(y) * h).sum(1)


def noise():
    z = torch.randn(BATCH, ZDIM, device=device)
    return z, torch.randint(0, N_CLASSES, (BATCH,), device=device)


torch.manual_seed(909)
G, D = Generator().to(device), Discriminator().to(device)
opt_g = torch.optim.Adam(G.parameters(), lr=1e-4, betas=(0.0, 0.999))
opt_d = torch.optim.Adam(D.parameters(), lr=4e-4, betas=(0.0, 0.999))
colours = torch.rand(N_CLASSES, 3, 1, 1, device=device) * 2 - 1

for r in range(ROUNDS):
    for _ in range(2):
        y_real = torch.randint(0, N_CLASSES, (BATCH,), device=device)
        real = colours[y_real] + 0.3 * torch.randn(BATCH, 3, SIDE, SIDE, device=device)
        z, y_fake = noise()
        with torch.no_grad():
            fake = G(z, y_fake)
        scores = D(torch.cat([real.clamp(-1, 1), fake]), torch.cat([y_real, y_fake]))
        s_real, s_fake = scores.chunk(2)
        d_loss = F.relu(1 - s_real).mean() + F.relu(1 + s_fake).mean()
        opt_d.zero_grad()
        d_loss.backward()
        opt_d.step()
    D.requires_grad_(False)
    z, y = noise()
    g_loss = -D(G(z, y), y).mean()
    opt_g.zero_grad()
    g_loss.backward()
    opt_g.step()
    D.requires_grad_(True)
    print(f"round {r} d_loss {d_loss.item():.6f} g_loss {g_loss.item():.6f}", flush=True)
