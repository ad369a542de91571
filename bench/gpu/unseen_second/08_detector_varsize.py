# anchor-free detector (FCOS flavour), images of different sizes padded per batch
import os
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

T = os.environ.get("TINY") == "1"
random.seed(0)
torch.manual_seed(0)
dev = "cuda" if torch.cuda.is_available() else "cpu"
BS = 2 if T else 8
SIZES = (
    [(48, 64), (64, 64), (64, 96)]
    if T
    else [(480, 640), (512, 800), (640, 640), (608, 832), (704, 960)]
)
WIDTH = 4 if T else 64
NCLS = 3 if T else 20
STRIDES = [8, 16, 32]


def cbr(i, o, s=1):
    return nn.Sequential(nn.Conv2d(i, o, 3, s, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU())


class Res(nn.Module):
    def __init__(self, i, o, s):
        super().__init__()
        self.a, self.b = (
            cbr(i, o, s),
            nn.Sequential(nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o)),
        )
        self.skip = nn.Conv2d(i, o, 1, s) if (i != o or s != 1) else nn.Identity()

    def forward(self, x):
        return F.relu(self.b(self.a(x)) + self.skip(x))


class Net(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.stem = nn.Sequential(cbr(3, w, 2), nn.MaxPool2d(2))
        self.c2 = nn.Sequential(Res(w, w, 1), Res(w, w, 1))
        self.c3 = nn.Sequential(Res(w, 2 * w, 2), Res(2 * w, 2 * w, 1))
        self.c4 = nn.Sequential(Res(2 * w, 4 * w, 2), Res(4 * w, 4 * w, 1))
        self.c5 = nn.Sequential(Res(4 * w, 8 * w, 2), Res(8 * w, 8 * w, 1))
        f = 2 * w
        self.lat = nn.ModuleList([nn.Conv2d(c, f, 1) for c in (2 * w, 4 * w, 8 * w)])
        # the heads are shared between the pyramid levels
        self.cls_tower = nn.Sequential(
            *[
                nn.Sequential(nn.Conv2d(f, f, 3, 1, 1), nn.GroupNorm(min(8, f), f), nn.ReLU())
                for _ in range(3)
            ]
        )
        self.box_tower = nn.Sequential(
            *[
                nn.Sequential(nn.Conv2d(f, f, 3, 1, 1), nn.GroupNorm(min(8, f), f), nn.ReLU())
                for _ in range(3)
            ]
        )
        self.cls, self.box = nn.Conv2d(f, NCLS, 3, 1, 1), nn.Conv2d(f, 4, 3, 1, 1)
        nn.init.constant_(self.cls.bias, -4.6)

    def forward(self, x):
        c3 = self.c3(self.c2(self.stem(x)))
        c4 = self.c4(c3)
        c5 = self.c5(c4)
        p5 = self.lat[2](c5)
        p4 = self.lat[1](c4) + F.interpolate(p5, size=c4.shape[-2:])
        p3 = self.lat[0](c3) + F.interpolate(p4, size=c3.shape[-2:])
        outs = []
        for p in (p3, p4, p5):
            outs.append((self.cls(self.cls_tower(p)), F.softplus(self.box(self.box_tower(p)))))
        return outs


def sample():
    h, w = random.choice(SIZES)
    boxes, labels = [], []
    for _ in range(random.randint(1, 8)):
        bw, bh = random.randint(8, w // 2), random.randint(8, h // 2)
        x0, y0 = random.randint(0, w - bw), random.randint(0, h - bh)
        boxes.append([x0, y0, x0 + bw, y0 + bh])
        labels.append(random.randrange(NCLS))
    return torch.randn(3, h, w), torch.tensor(boxes).float(), torch.tensor(labels)


def collate(items):
    H = max(i[0].shape[1] for i in items)
    W = max(i[0].shape[2] for i in items)
    H, W = (H + 31) // 32 * 32, (W + 31) // 32 * 32
    x = torch.zeros(len(items), 3, H, W)
    for k, (im, _, _) in enumerate(items):
        x[k, :, : im.shape[1], : im.shape[2]] = im
    return x.to(dev), [(b.to(dev), l.to(dev)) for _, b, l in items]  # noqa: E741


def targets(shape, stride, gt):
    h, w = shape
    ys, xs = torch.meshgrid(torch.arange(h, device=dev), torch.arange(w, device=dev), indexing="ij")
    cx, cy = (xs.reshape(-1) + 0.5) * stride, (ys.reshape(-1) + 0.5) * stride
    boxes, labels = gt
    d = torch.stack(
        [
            cx[:, None] - boxes[:, 0],
            cy[:, None] - boxes[:, 1],
            boxes[:, 2] - cx[:, None],
            boxes[:, 3] - cy[:, None],
        ],
        -1,
    )
    size = d.amax(-1)
    lo, hi = {8: (0, 64), 16: (64, 192), 32: (192, 1e8)}[stride]
    ok = (d.amin(-1) > 0) & (size >= lo) & (size < hi)
    area = ((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]))[None].repeat(len(cx), 1)
    area[~ok] = float("inf")
    best, idx = area.min(1)
    pos = best < float("inf")
    cls = torch.zeros(len(cx), NCLS, device=dev)
    cls[pos, labels[idx[pos]]] = 1
    return cls, d[torch.arange(len(cx), device=dev), idx] / stride, pos


def focal(logit, t, a=0.25, g=2.0):
    p = logit.sigmoid()
    ce = F.binary_cross_entropy_with_logits(logit, t, reduction="none")
    pt = p * t + (1 - p) * (1 - t)
    return ((a * t + (1 - a) * (1 - t)) * (1 - pt) ** g * ce).sum()


def loss_fn(outs, gts):
    lc = lb = 0.0
    npos = 0
    for (c, b), s in zip(outs, STRIDES):
        for k, gt in enumerate(gts):
            tc, tb, pos = targets(c.shape[-2:], s, gt)
            lc = lc + focal(c[k].flatten(1).t(), tc)
            npos += int(pos.sum())
            pb = b[k].flatten(1).t()[pos]
            lb = lb + F.smooth_l1_loss(pb, tb[pos], reduction="sum")
    return (lc + 0.5 * lb) / max(npos, 1)


net = Net(WIDTH).to(dev)
opt = torch.optim.SGD(net.parameters(), lr=5e-4, momentum=0.9, weight_decay=1e-4)
warm = torch.optim.lr_scheduler.LinearLR(opt, start_factor=0.05, total_iters=10)
for step in range(20):
    imgs, gts = collate([sample() for _ in range(BS)])
    loss = loss_fn(net(imgs), gts)
    opt.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 10.0)
    opt.step()
    warm.step()
    print(f"step {step} loss {loss.item():.8f} size {tuple(imgs.shape[-2:])}", flush=True)
