import os
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

small = os.environ.get("SMALL", "") == "1"
hyp = {
    "base": 8 if small else 32,
    "batch": 2 if small else 24,
    "sizes": [64, 96] if small else [416, 448, 480, 512],
    "nc": 5 if small else 20,
    "steps": 15,
    "lr0": 0.005,
    "box": 0.05 * 20,
    "obj": 1.0,
    "cls": 0.5,
}
ANCHORS = [[(0.04, 0.05), (0.08, 0.07)], [(0.12, 0.16), (0.2, 0.15)], [(0.35, 0.3), (0.6, 0.6)]]
STRIDES = [8, 16, 32]


class Conv(nn.Module):
    def __init__(self, c1, c2, k=1, s=1):
        super().__init__()
        self.conv = nn.Conv2d(c1, c2, k, s, k // 2, bias=False)
        self.bn = nn.BatchNorm2d(c2, eps=1e-3, momentum=0.03)
        self.act = nn.LeakyReLU(0.1)

    def forward(self, x):
        return self.act(self.bn(self.conv(x)))


class C3(nn.Module):
    def __init__(self, c1, c2, n=1, shortcut=True):
        super().__init__()
        c_ = c2 // 2
        self.cv1, self.cv2, self.cv3 = Conv(c1, c_), Conv(c1, c_), Conv(2 * c_, c2)
        self.m = nn.ModuleList([nn.Sequential(Conv(c_, c_), Conv(c_, c_, 3)) for _ in range(n)])
        self.add = shortcut

    def forward(self, x):
        y = self.cv1(x)
        for m in self.m:
            y = y + m(y) if self.add else m(y)
        return self.cv3(torch.cat((y, self.cv2(x)), dim=1))


class Yolo(nn.Module):
    def __init__(self, b, nc, na=2):
        super().__init__()
        self.nc, self.na, self.no = nc, na, nc + 5
        self.stem = nn.Sequential(
            Conv(3, b, 3), Conv(b, 2 * b, 3, 2), Conv(2 * b, 2 * b, 3, 2), C3(2 * b, 2 * b, 1)
        )
        self.p3 = nn.Sequential(Conv(2 * b, 4 * b, 3, 2), C3(4 * b, 4 * b, 2))
        self.p4 = nn.Sequential(Conv(4 * b, 8 * b, 3, 2), C3(8 * b, 8 * b, 3))
        self.p5 = nn.Sequential(Conv(8 * b, 16 * b, 3, 2), C3(16 * b, 16 * b, 1))
        self.r5, self.r4 = Conv(16 * b, 8 * b), Conv(8 * b, 4 * b)
        self.n4, self.n3 = C3(16 * b, 8 * b, 1, False), C3(8 * b, 4 * b, 1, False)
        self.detect = nn.ModuleList([nn.Conv2d(c, na * self.no, 1) for c in (4 * b, 8 * b, 8 * b)])
        self.up = nn.Upsample(scale_factor=2, mode="nearest")

    def forward(self, x):
        p3 = self.p3(self.stem(x))
        p4 = self.p4(p3)
        p5 = self.r5(self.p5(p4))
        f4 = self.n4(torch.cat([self.up(p5), p4], 1))
        f3 = self.n3(torch.cat([self.up(self.r4(f4)), p3], 1))
        out = []
        for f, d in zip((f3, f4, p5), self.detect):
            y = d(f)
            bs, _, h, w = y.shape
            out.append(y.view(bs, self.na, self.no, h, w).permute(0, 1, 3, 4, 2).contiguous())
        return out


def giou(a, b):
    a1, a2 = a[:, :2] - a[:, 2:] / 2, a[:, :2] + a[:, 2:] / 2
    b1, b2 = b[:, :2] - b[:, 2:] / 2, b[:, :2] + b[:, 2:] / 2
    inter = (torch.minimum(a2, b2) - torch.maximum(a1, b1)).clamp(0).prod(1)
    union = a[:, 2:].prod(1) + b[:, 2:].prod(1) - inter + 1e-7
    hull = (torch.maximum(a2, b2) - torch.minimum(a1, b1)).prod(1) + 1e-7
    iou = inter / union
    return iou - (hull - union) / hull


def build_targets(targets, level, h, w):
    """targets: python list of (img, cls, cx, cy, bw, bh); best anchor over all levels by ratio"""
    rows, tcls, tbox, seen = [], [], [], set()
    for img, c, cx, cy, bw, bh in targets:
        best, where = 1e9, None
        for li, anchors in enumerate(ANCHORS):
            for ai, (aw, ah) in enumerate(anchors):
                r = max(bw / aw, aw / bw, bh / ah, ah / bh)
                if r < best:
                    best, where = r, (li, ai)
        if where[0] != level:
            continue
        key = (img, where[1], min(int(cy * h), h - 1), min(int(cx * w), w - 1))
        if key in seen:
            continue
        seen.add(key)
        rows.append(key)
        tcls.append(c)
        tbox.append((cx * w - key[3], cy * h - key[2], bw * w, bh * h))
    return rows, tcls, tbox


def compute_loss(preds, targets, nc):
    dev = preds[0].device
    lbox, lobj, lcls = (
        torch.zeros(1, device=dev),
        torch.zeros(1, device=dev),
        torch.zeros(1, device=dev),
    )
    for li, p in enumerate(preds):
        h, w = p.shape[2:4]
        tobj = torch.zeros(p.shape[:4], device=dev)
        rows, tcls, tbox = build_targets(targets, li, h, w)
        if rows:
            b, a, gj, gi = torch.tensor(rows, device=dev).T
            ps = p[b, a, gj, gi]
            anc = torch.tensor(ANCHORS[li], device=dev)[a] * torch.tensor([w, h], device=dev)
            pbox = torch.cat(
                [ps[:, :2].sigmoid() * 2 - 0.5, (ps[:, 2:4].sigmoid() * 2) ** 2 * anc], 1
            )
            iou = giou(pbox, torch.tensor(tbox, device=dev))
            lbox = lbox + (1 - iou).mean()
            tobj[b, a, gj, gi] = iou.detach().clamp(0)
            onehot = F.one_hot(torch.tensor(tcls, device=dev), nc).float()
            lcls = lcls + F.binary_cross_entropy_with_logits(ps[:, 5:], onehot)
        lobj = lobj + F.binary_cross_entropy_with_logits(p[..., 4], tobj) * [4.0, 1.0, 0.4][li]
    return hyp["box"] * lbox + hyp["obj"] * lobj + hyp["cls"] * lcls, (lbox, lobj, lcls)


def fake_batch(rng, gen, size):
    imgs = torch.rand(hyp["batch"], 3, size, size, generator=gen) * 0.3
    targets = []
    for i in range(hyp["batch"]):
        for _ in range(rng.randint(0, 8)):
            bw, bh = rng.uniform(0.03, 0.5), rng.uniform(0.03, 0.5)
            cx, cy, c = (
                rng.uniform(bw / 2, 1 - bw / 2),
                rng.uniform(bh / 2, 1 - bh / 2),
                rng.randrange(hyp["nc"]),
            )
            y1, y2, x1, x2 = (
                int(v * size) for v in (cy - bh / 2, cy + bh / 2, cx - bw / 2, cx + bw / 2)
            )
            imgs[i, c % 3, y1:y2, x1:x2] += 0.5
            targets.append((i, c, cx, cy, bw, bh))
    return imgs, targets


torch.backends.cudnn.deterministic = True
torch.manual_seed(17)
rng, gen = random.Random(17), torch.Generator().manual_seed(17)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = Yolo(hyp["base"], hyp["nc"]).to(device).train()
opt = torch.optim.SGD(model.parameters(), lr=hyp["lr0"], momentum=0.937, nesterov=True)
for step in range(hyp["steps"]):
    imgs, targets = fake_batch(rng, gen, rng.choice(hyp["sizes"]))
    loss, parts = compute_loss(model(imgs.to(device)), targets, hyp["nc"])
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=10.0)
    opt.step()
    opt.zero_grad()
    print(
        f"step {step} loss {loss.item():.6f} size {imgs.shape[-1]} "
        + " ".join(f"{p.item():.4f}" for p in parts)
    )
