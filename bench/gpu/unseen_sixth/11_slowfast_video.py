"""SlowFast action recognition, small bottlenecks, lateral connections. Config tree + meters."""

import math
from types import SimpleNamespace as NS

import torch
import torch.nn as nn
import torch.nn.functional as F

CUDA = torch.cuda.is_available()

cfg = NS(
    DATA=NS(FRAMES=32 if CUDA else 8, CROP=192 if CUDA else 32, CLASSES=400 if CUDA else 5),
    SLOWFAST=NS(ALPHA=4, BETA_INV=8 if CUDA else 2, FUSION_RATIO=2, FUSION_K=5),
    RESNET=NS(WIDTH=64 if CUDA else 8, BLOCKS=(2, 3, 4, 2) if CUDA else (1, 1, 1, 1)),
    TRAIN=NS(BATCH=14 if CUDA else 2, ITERS=8 if CUDA else 2, AMP=CUDA),
    SOLVER=NS(LR=0.01, MOMENTUM=0.9, WD=1e-4, WARMUP=3),
    SEED=0,
)


class Bottleneck(nn.Module):
    def __init__(self, cin, inner, cout, tk, stride):
        super().__init__()
        self.a = nn.Conv3d(cin, inner, (tk, 1, 1), padding=(tk // 2, 0, 0), bias=False)
        self.a_bn = nn.BatchNorm3d(inner)
        self.b = nn.Conv3d(
            inner, inner, (1, 3, 3), stride=(1, stride, stride), padding=(0, 1, 1), bias=False
        )
        self.b_bn = nn.BatchNorm3d(inner)
        self.c = nn.Conv3d(inner, cout, 1, bias=False)
        self.c_bn = nn.BatchNorm3d(cout)
        self.short = None
        if cin != cout or stride != 1:
            self.short = nn.Sequential(
                nn.Conv3d(cin, cout, 1, stride=(1, stride, stride), bias=False),
                nn.BatchNorm3d(cout),
            )

    def forward(self, x):
        y = F.relu(self.a_bn(self.a(x)), inplace=True)
        y = F.relu(self.b_bn(self.b(y)), inplace=True)
        y = self.c_bn(self.c(y))
        return F.relu(y + (x if self.short is None else self.short(x)))


def stem(cout, tk):
    return nn.Sequential(
        nn.Conv3d(3, cout, (tk, 7, 7), (1, 2, 2), (tk // 2, 3, 3), bias=False),
        nn.BatchNorm3d(cout),
        nn.ReLU(inplace=True),
        nn.MaxPool3d((1, 3, 3), (1, 2, 2), (0, 1, 1)),
    )


class FuseFastToSlow(nn.Module):
    def __init__(self, cfast):
        super().__init__()
        s = cfg.SLOWFAST
        self.conv = nn.Conv3d(
            cfast,
            cfast * s.FUSION_RATIO,
            (s.FUSION_K, 1, 1),
            stride=(s.ALPHA, 1, 1),
            padding=(s.FUSION_K // 2, 0, 0),
            bias=False,
        )
        self.bn = nn.BatchNorm3d(cfast * s.FUSION_RATIO)

    def forward(self, slow, fast):
        return torch.cat([slow, F.relu(self.bn(self.conv(fast)))], 1), fast


class SlowFast(nn.Module):
    def __init__(self):
        super().__init__()
        w, inv = cfg.RESNET.WIDTH, cfg.SLOWFAST.BETA_INV
        self.slow_stem, self.fast_stem = stem(w, 1), stem(w // inv, 5)
        self.fuse = nn.ModuleList([FuseFastToSlow(w // inv)])
        self.slow, self.fast = nn.ModuleList(), nn.ModuleList()
        cs, cf = w, w // inv
        for i, n in enumerate(cfg.RESNET.BLOCKS):
            inner, out = w * 2**i, w * 4 * 2**i
            tk = 3 if i >= 2 else 1
            stride = 1 if i == 0 else 2
            cin_s = cs + cf * cfg.SLOWFAST.FUSION_RATIO
            self.slow.append(
                nn.Sequential(
                    *[
                        Bottleneck(
                            cin_s if j == 0 else out, inner, out, tk, stride if j == 0 else 1
                        )
                        for j in range(n)
                    ]
                )
            )
            self.fast.append(
                nn.Sequential(
                    *[
                        Bottleneck(
                            cf if j == 0 else out // inv,
                            inner // inv,
                            out // inv,
                            3,
                            stride if j == 0 else 1,
                        )
                        for j in range(n)
                    ]
                )
            )
            cs, cf = out, out // inv
            if i < 3:
                self.fuse.append(FuseFastToSlow(cf))
        self.head = nn.Linear(cs + cf, cfg.DATA.CLASSES)
        nn.init.normal_(self.head.weight, std=0.01)

    def forward(self, pathways):
        s, f = self.slow_stem(pathways[0]), self.fast_stem(pathways[1])
        s, f = self.fuse[0](s, f)
        for i in range(4):
            s, f = self.slow[i](s), self.fast[i](f)
            if i < 3:
                s, f = self.fuse[i + 1](s, f)
        return self.head(torch.cat([s.mean((2, 3, 4)), f.mean((2, 3, 4))], 1))


def load_clip_batch(it):
    g = torch.Generator().manual_seed(cfg.SEED + 1000 * it)
    B, T, C = cfg.TRAIN.BATCH, cfg.DATA.FRAMES, cfg.DATA.CROP
    y = torch.randint(0, cfg.DATA.CLASSES, (B,), generator=g)
    base = F.interpolate(torch.randn(B, 3, C // 16, C // 16, generator=g), size=C, mode="bilinear")
    speed = (y % 5 + 1).tolist()
    clip = torch.stack(
        [torch.stack([base[b].roll(t * speed[b], -1) for t in range(T)], 1) for b in range(B)]
    )
    return clip, y


def pack_pathways(clip):
    idx = torch.linspace(0, clip.size(2) - 1, clip.size(2) // cfg.SLOWFAST.ALPHA).long()
    return [clip[:, :, idx], clip]


def lr_at(it):
    s = cfg.SOLVER
    if it < s.WARMUP:
        return s.LR * (it + 1) / s.WARMUP
    return s.LR * 0.5 * (1 + math.cos(math.pi * it / cfg.TRAIN.ITERS))


def main():
    torch.manual_seed(cfg.SEED)
    dev = "cuda" if CUDA else "cpu"
    model = SlowFast().to(dev)
    opt = torch.optim.SGD(
        model.parameters(),
        lr=cfg.SOLVER.LR,
        momentum=cfg.SOLVER.MOMENTUM,
        weight_decay=cfg.SOLVER.WD,
        nesterov=True,
    )
    top5_meter = []
    for it in range(cfg.TRAIN.ITERS):
        for group in opt.param_groups:
            group["lr"] = lr_at(it)
        clip, labels = load_clip_batch(it)
        inputs = [x.to(dev, non_blocking=True) for x in pack_pathways(clip)]
        labels = labels.to(dev)
        with torch.autocast(dev, dtype=torch.bfloat16, enabled=cfg.TRAIN.AMP):
            preds = model(inputs)
            loss = F.cross_entropy(preds, labels)
        if not math.isfinite(loss.item()):
            raise RuntimeError("ERROR: Got NaN losses")
        opt.zero_grad()
        loss.backward()
        opt.step()
        top5 = (preds.topk(5, 1).indices == labels[:, None]).any(1).float().mean().item()
        top5_meter.append(top5)
        print(
            f"iter {it + 1}/{cfg.TRAIN.ITERS} loss {loss.item():.8f} top5 {top5:.3f} "
            f"lr {lr_at(it):.5f}",
            flush=True,
        )
    print("mean top5", sum(top5_meter) / len(top5_meter))


if __name__ == "__main__":
    main()
