"""Monocular depth estimation with an encoder-decoder and scale-invariant loss (Fabric)."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from lightning.fabric import Fabric, seed_everything
from torch.utils.data import DataLoader, Dataset

device = "cuda" if torch.cuda.is_available() else "cpu"

HEIGHT, WIDTH, BATCH, BASE, STEPS = 192, 256, 48, 64, 12
if device == "cpu":
    HEIGHT, WIDTH, BATCH, BASE, STEPS = 32, 48, 2, 8, 8


class Rooms(Dataset):
    """A tilted floor with boxes in front of it; the image is shaded by depth and colour."""

    def __len__(self):
        return BATCH * STEPS

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        slope, base = torch.rand(2, generator=g).tolist()
        rows = torch.linspace(1, 0, HEIGHT)[:, None].expand(HEIGHT, WIDTH)
        depth = 2 + 3 * base + (4 + 3 * slope) * rows
        albedo = torch.rand(3, 1, 1, generator=g).expand(3, HEIGHT, WIDTH).clone()
        for _ in range(6):
            y, x, h, w, d = torch.rand(5, generator=g).tolist()
            top, left = int(y * HEIGHT * 0.8), int(x * WIDTH * 0.8)
            box = (slice(top, top + int(h * 60) + 4), slice(left, left + int(w * 60) + 4))
            nearer = torch.minimum(depth[box], torch.full_like(depth[box], 1 + 4 * d))
            depth = depth.clone()
            depth[box] = nearer
            albedo[(slice(None), *box)] = torch.rand(3, 1, 1, generator=g)
        image = albedo / (0.3 * depth) + 0.02 * torch.randn(3, HEIGHT, WIDTH, generator=g)
        valid = torch.rand(HEIGHT, WIDTH, generator=g) > 0.1  # sensor holes
        return {"image": image, "depth": depth[None], "valid": valid[None]}


class Residual(nn.Module):
    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(cin, cout, 3, stride, 1, bias=False),
            nn.BatchNorm2d(cout),
            nn.ReLU(inplace=True),
            nn.Conv2d(cout, cout, 3, 1, 1, bias=False),
            nn.BatchNorm2d(cout),
        )
        self.short = nn.Identity()
        if stride != 1 or cin != cout:
            self.short = nn.Sequential(
                nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout)
            )

    def forward(self, x):
        return F.relu(self.body(x) + self.short(x))


class Up(nn.Module):
    def __init__(self, cin, skip, cout):
        super().__init__()
        self.fuse = nn.Sequential(
            nn.Conv2d(cin + skip, cout, 3, padding=1), nn.BatchNorm2d(cout), nn.ELU()
        )
        self.refine = Residual(cout, cout)

    def forward(self, x, skip=None):
        x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        if skip is not None:
            x = torch.cat([x, skip], dim=1)
        return self.refine(self.fuse(x))


class DepthNet(nn.Module):
    def __init__(self, c=BASE):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, c, 7, 2, 3), nn.BatchNorm2d(c), nn.ReLU())
        self.enc1 = nn.Sequential(Residual(c, c), Residual(c, c))
        self.enc2 = nn.Sequential(Residual(c, 2 * c, 2), Residual(2 * c, 2 * c))
        self.enc3 = nn.Sequential(Residual(2 * c, 4 * c, 2), Residual(4 * c, 4 * c))
        self.enc4 = nn.Sequential(Residual(4 * c, 8 * c, 2), Residual(8 * c, 8 * c))
        self.up3, self.up2 = Up(8 * c, 4 * c, 4 * c), Up(4 * c, 2 * c, 2 * c)
        self.up1, self.up0 = Up(2 * c, c, c), Up(c, 0, c // 2)
        self.out = nn.Conv2d(c // 2, 1, 3, padding=1)

    def forward(self, image):
        e1 = self.enc1(self.stem(image))
        e2 = self.enc2(e1)
        e3 = self.enc3(e2)
        x = self.up3(self.enc4(e3), e3)
        x = self.up0(self.up1(self.up2(x, e2), e1))
        return F.softplus(self.out(x).float()) + 1e-2


def silog(pred, target, valid, variance=0.85):
    d = (pred.log() - target.log())[valid]
    return torch.sqrt(d.square().mean() - variance * d.mean().square() + 1e-8)


def gradient_matching(pred, target, valid, scales=4):
    total = 0.0
    for s in range(scales):
        k = 2**s
        diff = (pred.log() - target.log())[..., ::k, ::k] * valid[..., ::k, ::k]
        dx = (diff[..., :, 1:] - diff[..., :, :-1]).abs().mean()
        dy = (diff[..., 1:, :] - diff[..., :-1, :]).abs().mean()
        total = total + dx + dy
    return total


def main():
    fabric = Fabric(
        accelerator="gpu" if device == "cuda" else "cpu",
        devices=1,
        precision="bf16-mixed" if device == "cuda" else "32-true",
    )
    fabric.launch()
    seed_everything(66)
    model = DepthNet()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=1e-2, momentum=0.9, nesterov=True, weight_decay=1e-4
    )
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(DataLoader(Rooms(), batch_size=BATCH, shuffle=True))
    for step, batch in enumerate(loader):
        pred = model(batch["image"])
        loss = silog(pred, batch["depth"], batch["valid"])
        loss = loss + 0.5 * gradient_matching(pred, batch["depth"], batch["valid"])
        optimizer.zero_grad()
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=5.0)
        optimizer.step()
        fabric.print(f"step {step} loss {loss.item():.6f}", flush=True)


if __name__ == "__main__":
    main()
