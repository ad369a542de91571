"""Accelerated MRI: unrolled variational network over multi-coil k-space, fp32 complex FFTs."""

import torch
import torch.nn as nn
import torch.nn.functional as F

USE_CUDA = torch.cuda.is_available()
DEV = torch.device("cuda" if USE_CUDA else "cpu")
SETTINGS = {
    "size": 320 if USE_CUDA else 32,
    "coils": 8 if USE_CUDA else 2,
    "cascades": 8 if USE_CUDA else 2,
    "chans": 24 if USE_CUDA else 4,
    "pools": 3 if USE_CUDA else 2,
    "batch": 4 if USE_CUDA else 2,
    "steps": 12 if USE_CUDA else 8,
}


def fft2c(x):
    x = torch.fft.ifftshift(x, dim=(-2, -1))
    return torch.fft.fftshift(torch.fft.fft2(x, norm="ortho"), dim=(-2, -1))


def ifft2c(x):
    x = torch.fft.ifftshift(x, dim=(-2, -1))
    return torch.fft.fftshift(torch.fft.ifft2(x, norm="ortho"), dim=(-2, -1))


class ConvBlock(nn.Sequential):
    def __init__(self, cin, cout):
        super().__init__(
            nn.Conv2d(cin, cout, 3, padding=1, bias=False),
            nn.InstanceNorm2d(cout),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(cout, cout, 3, padding=1, bias=False),
            nn.InstanceNorm2d(cout),
            nn.LeakyReLU(0.2, inplace=True),
        )


class SmallUnet(nn.Module):
    def __init__(self, chans, pools):
        super().__init__()
        self.down, c = nn.ModuleList([ConvBlock(2, chans)]), chans
        for _ in range(pools):
            self.down.append(ConvBlock(c, 2 * c))
            c *= 2
        self.up, self.merge = nn.ModuleList(), nn.ModuleList()
        for _ in range(pools):
            self.up.append(nn.ConvTranspose2d(c, c // 2, 2, 2, bias=False))
            self.merge.append(ConvBlock(c, c // 2))
            c //= 2
        self.out = nn.Conv2d(c, 2, 1)

    def forward(self, x):
        stack = []
        for i, block in enumerate(self.down):
            x = block(x if i == 0 else F.avg_pool2d(x, 2))
            stack.append(x)
        stack.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([up(x), stack.pop()], dim=1))
        return self.out(x)


class Cascade(nn.Module):
    """One gradient step: soft data consistency and a learned image-domain regulariser."""

    def __init__(self, chans, pools):
        super().__init__()
        self.net = SmallUnet(chans, pools)
        self.dc_weight = nn.Parameter(torch.ones(1))

    def forward(self, kspace, measured, mask, maps):
        image = (ifft2c(kspace) * maps.conj()).sum(1)
        x = torch.view_as_real(image).permute(0, 3, 1, 2)
        mean = x.mean((2, 3), keepdim=True)
        std = x.std((2, 3), keepdim=True) + 1e-6
        y = self.net((x - mean) / std) * std + mean
        y = torch.view_as_complex(y.permute(0, 2, 3, 1).contiguous())
        model_term = fft2c(y.unsqueeze(1) * maps)
        dc = torch.where(mask, kspace - measured, torch.zeros_like(kspace)) * self.dc_weight
        return kspace - dc - model_term


class VarNet(nn.Module):
    def __init__(self, cascades, chans, pools):
        super().__init__()
        self.cascades = nn.ModuleList(Cascade(chans, pools) for _ in range(cascades))

    def forward(self, measured, mask, maps):
        kspace = measured
        for cascade in self.cascades:
            kspace = cascade(kspace, measured, mask, maps)
        return ifft2c(kspace).abs().pow(2).sum(1).clamp_min(1e-12).sqrt()


def ssim_loss(a, b, window=7):
    a, b = a.unsqueeze(1), b.unsqueeze(1)
    n = window**2
    kernel = torch.ones(1, 1, window, window, device=a.device) / n
    peak = b.amax((1, 2, 3), keepdim=True)
    c1, c2 = (0.01 * peak) ** 2, (0.03 * peak) ** 2
    ua, ub = F.conv2d(a, kernel), F.conv2d(b, kernel)
    cov = n / (n - 1)
    va = cov * (F.conv2d(a * a, kernel) - ua * ua)
    vb = cov * (F.conv2d(b * b, kernel) - ub * ub)
    vab = cov * (F.conv2d(a * b, kernel) - ua * ub)
    s = (2 * ua * ub + c1) * (2 * vab + c2) / ((ua**2 + ub**2 + c1) * (va + vb + c2))
    return 1 - s.mean()


def phantom(batch, size, gen):
    axis = torch.linspace(-1, 1, size)
    yy, xx = torch.meshgrid(axis, axis, indexing="ij")
    image = torch.zeros(batch, size, size)
    for _ in range(10):
        c = torch.rand(batch, 4, 1, 1, generator=gen)
        cy, cx = c[:, 0] * 1.2 - 0.6, c[:, 1] * 1.2 - 0.6
        ry, rx = 0.1 + 0.3 * c[:, 2], 0.1 + 0.3 * c[:, 3]
        inside = ((yy - cy) / ry) ** 2 + ((xx - cx) / rx) ** 2 < 1
        image += inside * torch.rand(batch, 1, 1, generator=gen)
    return image, yy, xx


def make_batch(batch, size, coils, gen, accel):
    image, yy, xx = phantom(batch, size, gen)
    angle = torch.arange(coils) * (2 * torch.pi / coils)
    cy, cx = angle.sin().view(-1, 1, 1), angle.cos().view(-1, 1, 1)
    maps = torch.exp(-((yy - cy) ** 2 + (xx - cx) ** 2)) * torch.exp(1j * (yy * cx + xx * cy))
    maps = maps / maps.abs().pow(2).sum(0, keepdim=True).sqrt()
    maps = maps.unsqueeze(0).to(DEV)
    kspace = fft2c(image.to(DEV).unsqueeze(1) * maps)
    lines = torch.rand(size, generator=gen) < 1.0 / accel
    centre = size // 2
    lines[centre - size // 16 : centre + size // 16] = True
    mask = lines.to(DEV).view(1, 1, 1, -1)
    return kspace * mask, mask, maps, image.to(DEV)


def train():
    torch.manual_seed(3)
    gen = torch.Generator().manual_seed(3)
    s = SETTINGS
    model = VarNet(s["cascades"], s["chans"], s["pools"]).to(DEV)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    sched = torch.optim.lr_scheduler.StepLR(opt, step_size=8, gamma=0.1)
    for step in range(s["steps"]):
        accel = 4 if step % 2 == 0 else 8
        batch = make_batch(s["batch"], s["size"], s["coils"], gen, accel)
        measured, mask, maps, target = batch
        recon = model(measured, mask, maps)
        loss = ssim_loss(recon, target) + 0.1 * F.l1_loss(recon, target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        print(f"step {step} loss {loss.item():.6f} x{accel}", flush=True)


if __name__ == "__main__":
    train()
