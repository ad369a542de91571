"""Street-scene segmentation: dilated residual net, ASPP, hard-pixel mining, mIoU between steps."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

gpu = torch.cuda.is_available()
parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=36 if gpu else 2)
parser.add_argument("--crop", type=int, default=320 if gpu else 32)
parser.add_argument("--width", type=int, default=64 if gpu else 8)
parser.add_argument("--classes", type=int, default=19)
parser.add_argument("--iters", type=int, default=10)
parser.add_argument("--lr", type=float, default=0.02)
parser.add_argument("--hard", type=float, default=0.25, help="fraction of pixels kept")
args = parser.parse_args()

torch.manual_seed(606)
torch.backends.cudnn.deterministic = True
device = torch.device("cuda" if gpu else "cpu")


def cbr(i, o, k=3, s=1, d=1):
    return nn.Sequential(
        nn.Conv2d(i, o, k, s, d * (k // 2), dilation=d, bias=False),
        nn.BatchNorm2d(o),
        nn.ReLU(inplace=True),
    )


class Basic(nn.Module):
    def __init__(self, i, o, s=1, d=1):
        super().__init__()
        self.a = cbr(i, o, 3, s, d)
        self.b = nn.Sequential(nn.Conv2d(o, o, 3, 1, d, d, bias=False), nn.BatchNorm2d(o))
        same = i == o and s == 1
        self.skip = nn.Identity() if same else nn.Conv2d(i, o, 1, s, bias=False)

    def forward(self, x):
        return F.relu(self.b(self.a(x)) + self.skip(x))


class ASPP(nn.Module):
    def __init__(self, i, o, rates=(6, 12, 18)):
        super().__init__()
        self.branches = nn.ModuleList([cbr(i, o, 1)] + [cbr(i, o, 3, 1, r) for r in rates])
        self.pool = nn.Sequential(nn.Conv2d(i, o, 1), nn.ReLU())
        self.project = cbr(o * 5, o, 1)

    def forward(self, x):
        pooled = self.pool(x.mean((2, 3), keepdim=True)).expand(-1, -1, *x.shape[2:])
        return self.project(torch.cat([b(x) for b in self.branches] + [pooled], 1))


class DeepLab(nn.Module):
    def __init__(self, w, classes):
        super().__init__()
        self.stem = nn.Sequential(cbr(3, w // 2, 3, 2), cbr(w // 2, w), cbr(w, w, 3, 2))
        self.low = nn.Sequential(*(Basic(w, w) for _ in range(3)))
        self.mid = nn.Sequential(Basic(w, 2 * w, 2), *(Basic(2 * w, 2 * w) for _ in range(3)))
        self.high = nn.Sequential(
            Basic(2 * w, 4 * w, 2), *(Basic(4 * w, 4 * w, d=2) for _ in range(4))
        )
        self.aspp = ASPP(4 * w, 4 * w)
        self.lateral = cbr(w, w // 2 + w // 4, 1)
        self.fuse = nn.Sequential(cbr(4 * w + w // 2 + w // 4, 2 * w), cbr(2 * w, 2 * w))
        self.out = nn.Conv2d(2 * w, classes * 16, 1)
        self.aux = nn.Conv2d(2 * w, classes, 1)

    def forward(self, x):
        low = self.low(self.stem(x))
        mid = self.mid(low)
        y = F.interpolate(self.aspp(self.high(mid)), scale_factor=4, mode="nearest")
        y = self.fuse(torch.cat([y, self.lateral(low)], 1))
        return F.pixel_shuffle(self.out(y), 4), self.aux(mid)


def scene(g, n):
    s = args.crop
    lab = torch.randint(0, args.classes, (n, s // 16, s // 16), generator=g)
    lab = lab.repeat_interleave(16, 1).repeat_interleave(16, 2)
    img = torch.stack([torch.sin(lab * f) for f in (0.7, 1.9, 3.1)], 1)
    return (img + 0.3 * torch.randn(img.shape, generator=g)).to(device), lab.to(device)


def pixel_ce(logits, lab):
    flat = logits.permute(0, 2, 3, 1).reshape(-1, args.classes)
    return F.cross_entropy(flat, lab.reshape(-1), reduction="none")


def ohem(logits, lab):
    each = pixel_ce(logits, lab)
    return each.topk(int(args.hard * each.numel())).values.mean()


@torch.no_grad()
def mean_iou(net, img, lab):
    net.eval()
    pred = net(img)[0].argmax(1)
    net.train()
    ious = []
    for c in range(args.classes):
        p, t = pred == c, lab == c
        ious.append((p & t).sum() / (p | t).sum().clamp(min=1))
    return torch.stack(ious).mean().item()


net = DeepLab(args.width, args.classes).to(device, memory_format=torch.channels_last)
head = [p for n, p in net.named_parameters() if n.split(".")[0] in ("aspp", "fuse", "out", "aux")]
ids = {id(p) for p in head}
body = [p for p in net.parameters() if id(p) not in ids]
opt = torch.optim.SGD(
    [{"params": body, "lr": args.lr}, {"params": head, "lr": 10 * args.lr}],
    momentum=0.9,
    weight_decay=5e-4,
)
poly = torch.optim.lr_scheduler.LambdaLR(opt, lambda i: (1 - i / (4 * args.iters)) ** 0.9)
gen = torch.Generator().manual_seed(66)
val = scene(gen, max(1, args.batch // 4))
for it in range(args.iters):
    img, lab = scene(gen, args.batch)
    main, aux = net(img.contiguous(memory_format=torch.channels_last))
    loss = ohem(main, lab) + 0.4 * pixel_ce(aux, lab[:, ::8, ::8]).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    poly.step()
    print(f"step {it} loss {loss.item():.8f}", flush=True)
    if it % 3 == 2:
        print(f"    val mIoU {mean_iou(net, *val):.4f}", flush=True)
