"""Human keypoints as heatmaps with a small high-resolution network, run by accelerate."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset

device = "cuda" if torch.cuda.is_available() else "cpu"
large = device == "cuda"
batch_size = 96 if large else 4
H, W = (384, 288) if large else (64, 48)
width = 48 if large else 8
modules, blocks = (4, 3) if large else (1, 1)
joints = 17


def conv_bn(cin, cout, k=3, s=1, act=True):
    layers = [nn.Conv2d(cin, cout, k, s, k // 2, bias=False), nn.BatchNorm2d(cout)]
    return nn.Sequential(*layers, nn.ReLU(inplace=True)) if act else nn.Sequential(*layers)


class Basic(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.a, self.b = conv_bn(c, c), conv_bn(c, c, act=False)

    def forward(self, x):
        return F.relu(x + self.b(self.a(x)))


class Exchange(nn.Module):
    """Three branches side by side, then every branch gets the sum of all three."""

    def __init__(self):
        super().__init__()
        widths = [width, 2 * width, 4 * width]
        self.branches = nn.ModuleList(
            nn.Sequential(*[Basic(c) for _ in range(blocks)]) for c in widths
        )
        self.fuse = nn.ModuleList()
        for i, cout in enumerate(widths):
            row = nn.ModuleList()
            for j, cin in enumerate(widths):
                if i == j:
                    row.append(nn.Identity())
                elif j > i:
                    row.append(conv_bn(cin, cout, 1, act=False))
                else:
                    row.append(conv_bn(cin, cout, 3, 2 ** (i - j), act=False))
            self.fuse.append(row)

    def forward(self, xs):
        xs = [branch(x) for branch, x in zip(self.branches, xs, strict=True)]
        outs = []
        for i, row in enumerate(self.fuse):
            total = 0
            for j, op in enumerate(row):
                y = op(xs[j])
                if y.shape[-1] != xs[i].shape[-1]:
                    y = F.interpolate(y, size=xs[i].shape[-2:], mode="nearest")
                total = total + y
            outs.append(F.relu(total))
        return outs


class PoseNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(conv_bn(3, width, s=2), conv_bn(width, width, s=2))
        self.down1 = conv_bn(width, 2 * width, s=2)
        self.down2 = conv_bn(2 * width, 4 * width, s=2)
        self.stages = nn.ModuleList(Exchange() for _ in range(modules))
        self.head = nn.Conv2d(width, joints, 1)

    def forward(self, x):
        a = self.stem(x)
        b = self.down1(a)
        xs = [a, b, self.down2(b)]
        for stage in self.stages:
            xs = stage(xs)
        return self.head(xs[0])


class People(Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(9)
        self.points = 0.1 + 0.8 * torch.rand(n, joints, 2, generator=g)
        self.visible = (torch.rand(n, joints, generator=g) < 0.85).float()
        self.colors = torch.rand(joints, 3, generator=g)

    def __len__(self):
        return len(self.points)

    def bumps(self, i, h, w, sigma):
        ys, xs = torch.arange(h).float(), torch.arange(w).float()
        px, py = self.points[i, :, 0] * w, self.points[i, :, 1] * h
        gx = torch.exp(-((xs - px[:, None]) ** 2) / (2 * sigma**2))
        gy = torch.exp(-((ys - py[:, None]) ** 2) / (2 * sigma**2))
        return gy[:, :, None] * gx[:, None, :]

    def __getitem__(self, i):
        spots = self.bumps(i, H, W, 6.0) * self.visible[i][:, None, None]
        image = torch.einsum("jhw,jc->chw", spots, self.colors)
        return image, self.bumps(i, H // 4, W // 4, 2.0), self.visible[i]


@torch.no_grad()
def update_ema(ema, model, decay=0.9):
    for p, q in zip(ema.state_dict().values(), model.state_dict().values(), strict=True):
        if p.dtype.is_floating_point:
            p.lerp_(q, 1 - decay)
        else:
            p.copy_(q)


def main():
    set_seed(4)
    accelerator = Accelerator(mixed_precision="bf16" if large else "no")
    loader = DataLoader(People(batch_size * 5), batch_size=batch_size, shuffle=True)
    model = PoseNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [6, 8], 0.3)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    ema = copy.deepcopy(accelerator.unwrap_model(model)).eval()
    step = 0
    for epoch in range(2):
        model.train()
        for images, heat, visible in loader:
            pred = model(images)
            error = (pred.float() - heat).square().mean(dim=(2, 3)) * visible
            loss = 1000 * error.sum() / visible.sum()
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            update_ema(ema, accelerator.unwrap_model(model))
            accelerator.print(f"epoch {epoch} step {step} loss {loss.item():.6f}")
            step += 1
        with torch.no_grad(), accelerator.autocast():
            pred = ema(images)
            peak = pred.flatten(2).argmax(-1) == heat.flatten(2).argmax(-1)
            accelerator.print(f"epoch {epoch} hits {(peak * visible).sum() / visible.sum():.4f}")


if __name__ == "__main__":
    main()
