"""Style-based GAN: modulated convolutions, lazy R1, two Adams, averaged generator."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

GPU = torch.cuda.is_available()
RES = 128 if GPU else 16
BS = 32 if GPU else 4
Z = 512 if GPU else 16
CH = {4: 512, 8: 512, 16: 512, 32: 256, 64: 128, 128: 64} if GPU else {4: 16, 8: 16, 16: 8}
ITERS, R1_EVERY, R1_GAMMA = 10, 4, 5.0
dev = "cuda" if GPU else "cpu"


class EqLinear(nn.Module):
    def __init__(self, i, o, bias=0.0, lr_mul=1.0):
        super().__init__()
        self.w = nn.Parameter(torch.randn(o, i) / lr_mul)
        self.b = nn.Parameter(torch.full((o,), bias))
        self.scale, self.mul = lr_mul / i**0.5, lr_mul

    def forward(self, x):
        return F.linear(x, self.w * self.scale, self.b * self.mul)


class ModConv(nn.Module):
    """Scale the input, convolve, divide by the norm: the same as modulating the weight."""

    def __init__(self, i, o, k, demod=True):
        super().__init__()
        self.w = nn.Parameter(torch.randn(o, i, k, k))
        self.style = EqLinear(Z, i, bias=1.0)
        self.scale, self.k, self.demod = 1 / (i * k * k) ** 0.5, k, demod
        self.noise = nn.Parameter(torch.zeros(()))
        self.bias = nn.Parameter(torch.zeros(1, o, 1, 1))

    def forward(self, x, s, noise=None):
        s = self.style(s)
        w = self.w * self.scale
        y = F.conv2d(x * s[:, :, None, None], w, padding=self.k // 2)
        if self.demod:
            d = torch.rsqrt((s[:, None] ** 2 * (w**2).sum((2, 3))[None]).sum(2) + 1e-8)
            y = y * d[:, :, None, None]
        if noise is not None:
            y = y + self.noise * noise
        return y + self.bias


def act(x):
    return F.leaky_relu(x, 0.2) * 2**0.5


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.map = nn.ModuleList(EqLinear(Z, Z, lr_mul=0.01) for _ in range(6))
        self.const = nn.Parameter(torch.randn(1, CH[4], 4, 4))
        self.a, self.b, self.rgb = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        prev = CH[4]
        for c in CH.values():
            self.a.append(ModConv(prev, c, 3))
            self.b.append(ModConv(c, c, 3))
            self.rgb.append(ModConv(c, 3, 1, demod=False))
            prev = c

    def forward(self, z):
        w = F.normalize(z, dim=1) * Z**0.5
        for m in self.map:
            w = act(m(w))
        x, img = self.const.expand(len(z), -1, -1, -1), 0
        for a, b, rgb, r in zip(self.a, self.b, self.rgb, CH):
            if r > 4:
                x = F.interpolate(x, scale_factor=2, mode="nearest")
                img = F.interpolate(img, scale_factor=2, mode="nearest")
            noise = torch.randn(2, len(z), 1, r, r, device=z.device)
            x = act(b(act(a(x, w, noise[0])), w, noise[1]))
            img = img + rgb(x, w)
        return img


class DBlock(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(i, i, 3, padding=1), nn.Conv2d(i, o, 3, padding=1)
        self.skip = nn.Conv2d(i, o, 1, bias=False)

    def forward(self, x):
        y = F.avg_pool2d(act(self.c2(act(self.c1(x)))), 2)
        return (y + self.skip(F.avg_pool2d(x, 2))) / 2**0.5


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        rs = sorted(CH, reverse=True)
        self.inp = nn.Conv2d(3, CH[rs[0]], 1)
        self.blocks = nn.Sequential(*(DBlock(CH[r], CH[r // 2]) for r in rs[:-1]))
        self.last = nn.Conv2d(CH[4] + 1, CH[4], 3, padding=1)
        self.fc = nn.Sequential(nn.Flatten(), EqLinear(CH[4] * 16, CH[4]), nn.LeakyReLU(0.2))
        self.out = EqLinear(CH[4], 1)

    def forward(self, x):
        x = self.blocks(act(self.inp(x)))
        groups = x.view(4, -1, *x.shape[1:])  # minibatch standard deviation over groups of 4
        sd = (groups.var(0, unbiased=False) + 1e-8).sqrt().mean((1, 2, 3), keepdim=True)
        x = torch.cat([x, sd.repeat(4, 1, 1, 1).expand(-1, -1, 4, 4)], 1)
        return self.out(self.fc(act(self.last(x)))).squeeze(1)


def real_images(gen):
    c = torch.rand(BS, 3, RES // 8, RES // 8, generator=gen) * 2 - 1
    x = c.repeat_interleave(8, 2).repeat_interleave(8, 3)
    return (x + 0.05 * torch.randn(x.shape, generator=gen)).to(dev)


def train():
    torch.manual_seed(99)
    torch.backends.cudnn.deterministic = True
    G, D = Generator().to(dev), Discriminator().to(dev)
    G_avg = copy.deepcopy(G).eval().requires_grad_(False)
    opt_g = torch.optim.Adam(G.parameters(), lr=2e-3, betas=(0.0, 0.99))
    ratio = R1_EVERY / (R1_EVERY + 1)
    opt_d = torch.optim.Adam(D.parameters(), lr=2e-3 * ratio, betas=(0.0, 0.99**ratio))
    data = torch.Generator().manual_seed(9)
    for it in range(ITERS):
        real = real_images(data)
        D.requires_grad_(True)
        with torch.no_grad():
            fake = G(torch.randn(BS, Z, device=dev))
        loss_d = F.softplus(D(fake)).mean() + F.softplus(-D(real)).mean()
        opt_d.zero_grad(set_to_none=True)
        loss_d.backward()
        opt_d.step()
        if it % R1_EVERY == 0:
            real.requires_grad_(True)
            (grad,) = torch.autograd.grad(D(real).sum(), real, create_graph=True)
            r1 = grad.square().sum((1, 2, 3)).mean() * R1_GAMMA / 2 * R1_EVERY
            opt_d.zero_grad(set_to_none=True)
            r1.backward()
            opt_d.step()
        D.requires_grad_(False)
        loss_g = F.softplus(-D(G(torch.randn(BS, Z, device=dev)))).mean()
        opt_g.zero_grad(set_to_none=True)
        loss_g.backward()
        opt_g.step()
        with torch.no_grad():
            for p, q in zip(G_avg.parameters(), G.parameters()):
                p.mul_(0.995).add_(q, alpha=0.005)
        total = loss_d.item() + loss_g.item()
        print(f"step {it} loss {total:.8f} d {loss_d.item():.6f} g {loss_g.item():.6f}", flush=True)


if __name__ == "__main__":
    train()
