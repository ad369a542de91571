"""Stacked hourglass for human pose (17 heat maps), Lightning Fabric, bf16 mixed precision."""

import os
import tempfile

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

CUDA = torch.cuda.is_available()
JOINTS, HARD_JOINTS = 17, 8
SIZE = 256 if CUDA else 64
FEATS, STACKS, DEPTH = (256, 3, 4) if CUDA else (16, 2, 2)
BATCH, PER_EPOCH = (24, 5) if CUDA else (2, 2)


class Bottleneck(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        mid = cout // 2
        self.body = nn.Sequential(
            nn.BatchNorm2d(cin),
            nn.ReLU(),
            nn.Conv2d(cin, mid, 1),
            nn.BatchNorm2d(mid),
            nn.ReLU(),
            nn.Conv2d(mid, mid, 3, padding=1),
            nn.BatchNorm2d(mid),
            nn.ReLU(),
            nn.Conv2d(mid, cout, 1),
        )
        self.short = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x):
        return self.body(x) + self.short(x)


class Hourglass(nn.Module):
    def __init__(self, n, f):
        super().__init__()
        self.up = Bottleneck(f, f)
        self.low1, self.low3 = Bottleneck(f, f), Bottleneck(f, f)
        self.low2 = Hourglass(n - 1, f) if n > 1 else Bottleneck(f, f)

    def forward(self, x):
        low = self.low3(self.low2(self.low1(F.max_pool2d(x, 2))))
        return self.up(x) + F.interpolate(low, scale_factor=2, mode="nearest")


class StackedHourglass(nn.Module):
    def __init__(self):
        super().__init__()
        self.pre = nn.Sequential(
            nn.Conv2d(3, FEATS // 4, 7, 2, 3),
            nn.BatchNorm2d(FEATS // 4),
            nn.ReLU(),
            Bottleneck(FEATS // 4, FEATS // 2),
            nn.MaxPool2d(2),
            Bottleneck(FEATS // 2, FEATS // 2),
            Bottleneck(FEATS // 2, FEATS),
        )
        self.hg = nn.ModuleList(Hourglass(DEPTH, FEATS) for _ in range(STACKS))
        self.feat = nn.ModuleList(
            nn.Sequential(
                Bottleneck(FEATS, FEATS),
                nn.Conv2d(FEATS, FEATS, 1),
                nn.BatchNorm2d(FEATS),
                nn.ReLU(),
            )
            for _ in range(STACKS)
        )
        self.score = nn.ModuleList(nn.Conv2d(FEATS, JOINTS, 1) for _ in range(STACKS))
        self.merge_f = nn.ModuleList(nn.Conv2d(FEATS, FEATS, 1) for _ in range(STACKS - 1))
        self.merge_s = nn.ModuleList(nn.Conv2d(JOINTS, FEATS, 1) for _ in range(STACKS - 1))

    def forward(self, x):
        x = self.pre(x)
        maps = []
        for i in range(STACKS):
            f = self.feat[i](self.hg[i](x))
            maps.append(self.score[i](f))
            if i < STACKS - 1:
                x = x + self.merge_f[i](f) + self.merge_s[i](maps[-1])
        return maps


class People(Dataset):
    def __init__(self, n, seed):
        self.n, self.seed = n, seed
        grid = torch.arange(SIZE // 4).float()
        self.gy, self.gx = grid.view(1, -1, 1), grid.view(1, 1, -1)

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed + i)
        xy = (0.1 + 0.8 * torch.rand(JOINTS, 2, generator=g)) * (SIZE // 4)
        d = (self.gx - xy[:, :1, None]) ** 2 + (self.gy - xy[:, 1:, None]) ** 2
        heat = torch.exp(-d / 8.0)
        body = F.interpolate(heat.amax(0)[None, None], scale_factor=4.0)[0]
        image = 0.3 * torch.randn(3, SIZE, SIZE, generator=g) + body
        visible = (torch.rand(JOINTS, generator=g) > 0.1).float()
        return image, 10.0 * heat, visible


def ohkm(pred, target, visible):
    per_joint = (pred.float() - target).square().mean((2, 3)) * visible
    return per_joint.mean() + per_joint.topk(HARD_JOINTS, dim=1).values.mean()


def peak_error(pred, target):
    w = pred.size(-1)
    a, b = pred.flatten(2).argmax(-1), target.flatten(2).argmax(-1)
    return torch.hypot((a % w - b % w).float(), (a // w - b // w).float()).mean()


def main():
    fabric = L.Fabric(
        accelerator="cuda" if CUDA else "cpu",
        devices=1,
        precision="bf16-mixed" if CUDA else "32-true",
    )
    fabric.seed_everything(16, verbose=False)
    model = StackedHourglass()
    optimizer = torch.optim.Adam(model.parameters(), lr=2.5e-4)
    model, optimizer = fabric.setup(model, optimizer)
    train = DataLoader(People(BATCH * PER_EPOCH, 0), BATCH, num_workers=4 if CUDA else 0)
    valid = DataLoader(People(BATCH, 10_000), BATCH)
    train, valid = fabric.setup_dataloaders(train, valid)

    with tempfile.TemporaryDirectory() as folder:
        for epoch in range(2):
            model.train()
            for i, (image, heat, visible) in enumerate(train):
                loss = sum(ohkm(m, heat, visible) for m in model(image))
                fabric.backward(loss)
                fabric.clip_gradients(model, optimizer, max_norm=5.0)
                optimizer.step()
                optimizer.zero_grad()
                fabric.print(f"epoch {epoch} batch {i} loss {loss.item():.8f}", flush=True)
            model.eval()
            with torch.no_grad():
                errs = [peak_error(model(x)[-1], h).item() for x, h, _ in valid]
            fabric.print(f"epoch {epoch} mean peak error {sum(errs) / len(errs):.2f} px")
            state = {"model": model, "optimizer": optimizer, "epoch": epoch}
            fabric.save(os.path.join(folder, "last.ckpt"), state)


if __name__ == "__main__":
    main()
