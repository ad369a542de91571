"""Depth + normals + segmentation from one trunk, uncertainty weighting, stochastic depth, torch.compile."""  # noqa: E501

import os
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

TINY = os.environ.get("TINY") == "1"
device = "cuda" if torch.cuda.is_available() else "cpu"
SIZE = 32 if TINY else 256
DIM = 8 if TINY else 96
DEPTHS = (1, 1) if TINY else (3, 3, 6)
BATCH = 2 if TINY else 24
NCLS = 13
STEPS = 22


def drop_path(x, p, training):
    if p == 0.0 or not training:
        return x
    keep = 1 - p
    mask = torch.empty(x.shape[0], 1, 1, 1, device=x.device).bernoulli_(keep)
    return x * mask / keep


class LayerNorm2d(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    def __init__(self, dim, p):
        super().__init__()
        self.dw = nn.Conv2d(dim, dim, 7, padding=3, groups=dim)
        self.norm = nn.LayerNorm(dim)
        self.fc1, self.fc2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.gamma = nn.Parameter(1e-2 * torch.ones(dim))
        self.p = p

    def forward(self, x):
        y = self.dw(x).permute(0, 2, 3, 1)
        y = self.gamma * self.fc2(F.gelu(self.fc1(self.norm(y))))
        return x + drop_path(y.permute(0, 3, 1, 2), self.p, self.training)


class Trunk(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, DIM, 4, 4), LayerNorm2d(DIM))
        rates = torch.linspace(0, 0.2, sum(DEPTHS)).tolist()
        self.stages, k, c = nn.ModuleList(), 0, DIM
        for i, n in enumerate(DEPTHS):
            layers = []
            if i:
                layers += [LayerNorm2d(c), nn.Conv2d(c, 2 * c, 2, 2)]
                c *= 2
            layers += [ConvNeXtBlock(c, rates[k + j]) for j in range(n)]
            k += n
            self.stages.append(nn.Sequential(*layers))
        self.out_ch = c

    def forward(self, x):
        x = self.stem(x)
        for s in self.stages:
            x = s(x)
        return x


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = Trunk()
        c = self.trunk.out_ch
        self.up = nn.Sequential(
            nn.Conv2d(c, DIM, 1), nn.GELU(), nn.Upsample(scale_factor=4, mode="bilinear")
        )
        self.heads = nn.ModuleDict(
            {
                "seg": nn.Conv2d(DIM, NCLS, 3, padding=1),
                "depth": nn.Conv2d(DIM, 1, 3, padding=1),
                "normal": nn.Conv2d(DIM, 3, 3, padding=1),
            }
        )
        self.log_var = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        f = self.up(self.trunk(x))
        return {k: h(f) for k, h in self.heads.items()}


def task_losses(out, seg, depth, normal):
    size = seg.shape[-2:]
    up = {
        k: F.interpolate(v, size=size, mode="bilinear", align_corners=False) for k, v in out.items()
    }
    return torch.stack(
        [
            F.cross_entropy(up["seg"], seg),
            F.l1_loss(up["depth"].squeeze(1), depth),
            (1 - F.cosine_similarity(up["normal"], normal, dim=1)).mean(),
        ]
    )


def batch(gen):
    x = torch.randn(BATCH, 3, SIZE, SIZE, generator=gen)
    seg = torch.randint(0, NCLS, (BATCH, SIZE, SIZE), generator=gen)
    depth = torch.rand(BATCH, SIZE, SIZE, generator=gen)
    normal = F.normalize(torch.randn(BATCH, 3, SIZE, SIZE, generator=gen), dim=1)
    return [t.to(device) for t in (x, seg, depth, normal)]


def main():
    random.seed(2)
    torch.manual_seed(2)
    net = MultiTask().to(device)
    model = torch.compile(net)
    opt = torch.optim.AdamW(net.parameters(), lr=4e-4, weight_decay=0.05)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, STEPS)
    gen = torch.Generator().manual_seed(9)
    for step in range(STEPS):
        x, *targets = batch(gen)
        losses = task_losses(model(x), *targets)
        loss = (torch.exp(-net.log_var) * losses + net.log_var).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        print(f"step {step} loss {loss.item():.9f}", flush=True)


if __name__ == "__main__":
    main()
