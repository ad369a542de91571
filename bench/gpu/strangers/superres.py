"""Super-resolution with dense residual blocks: pixel, perceptual (frozen VGG) and gradient losses,
accumulation by hand, GradScaler, EMA, cosine restarts.
"""

# tiny: --batch 2 --patch 16 --feat 8 --blocks 1 --vgg small
import argparse
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision


class DenseBlock(nn.Module):
    def __init__(self, nf, gc):
        super().__init__()
        self.convs = nn.ModuleList(
            [nn.Conv2d(nf + i * gc, gc if i < 4 else nf, 3, 1, 1) for i in range(5)]
        )
        self.lrelu = nn.LeakyReLU(0.2, inplace=True)

    def forward(self, x):
        feats = [x]
        for conv in self.convs[:-1]:
            feats.append(self.lrelu(conv(torch.cat(feats, 1))))
        return x + 0.2 * self.convs[-1](torch.cat(feats, 1))


class RRDB(nn.Module):
    def __init__(self, nf, gc):
        super().__init__()
        self.rdb1, self.rdb2, self.rdb3 = DenseBlock(nf, gc), DenseBlock(nf, gc), DenseBlock(nf, gc)

    def forward(self, x):
        return x + 0.2 * self.rdb3(self.rdb2(self.rdb1(x)))


class RRDBNet(nn.Module):
    def __init__(self, nf, nb, gc):
        super().__init__()
        self.first, self.trunk, self.trunk_conv = (
            nn.Conv2d(3, nf, 3, 1, 1),
            nn.Sequential(*[RRDB(nf, gc) for _ in range(nb)]),
            nn.Conv2d(nf, nf, 3, 1, 1),
        )
        self.up1, self.up2, self.hr = (nn.Conv2d(nf, nf, 3, 1, 1) for _ in range(3))
        self.last = nn.Conv2d(nf, 3, 3, 1, 1)

    def forward(self, x):
        fea = self.first(x)
        fea = fea + self.trunk_conv(self.trunk(fea))
        fea = F.leaky_relu(self.up1(F.interpolate(fea, scale_factor=2)), 0.2)
        fea = F.leaky_relu(self.up2(F.interpolate(fea, scale_factor=2)), 0.2)
        return self.last(F.leaky_relu(self.hr(fea), 0.2))


class PerceptualLoss(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.vgg = torchvision.models.vgg11().features[:layers].eval().requires_grad_(False)

    def forward(self, x, y):
        with torch.no_grad():
            want = self.vgg(y)
        return F.l1_loss(self.vgg(x), want)


def gradient_loss(x, y):
    return F.l1_loss(x.diff(dim=-1), y.diff(dim=-1)) + F.l1_loss(x.diff(dim=-2), y.diff(dim=-2))


class Patches(torch.utils.data.Dataset):
    def __init__(self, n, patch):
        self.n, self.patch = n, patch

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        hr = torch.rand(
            3, self.patch * 4, self.patch * 4, generator=torch.Generator().manual_seed(i)
        )
        return F.avg_pool2d(hr, 4), hr


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--patch", type=int, default=48)
    p.add_argument("--feat", type=int, default=64)
    p.add_argument("--blocks", type=int, default=6)
    p.add_argument("--accum", type=int, default=2)
    p.add_argument("--vgg", default="full")
    p.add_argument("--fp16", action="store_true")
    args = p.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net, percep = (
        RRDBNet(args.feat, args.blocks, args.feat // 2).to(device),
        PerceptualLoss(11 if args.vgg == "full" else 3).to(device),
    )
    ema = copy.deepcopy(net).requires_grad_(False)
    opt = torch.optim.Adam(net.parameters(), lr=1e-4, betas=(0.9, 0.99))
    sched = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, 8)
    scaler = torch.amp.GradScaler(device, enabled=args.fp16)
    loader = iter(
        torch.utils.data.DataLoader(
            Patches(20 * args.batch * args.accum, args.patch), args.batch, shuffle=True
        )
    )
    for step in range(20):
        total = 0.0
        for _ in range(args.accum):
            lr, hr = (t.to(device) for t in next(loader))
            with torch.autocast(device, enabled=args.fp16):
                sr = net(lr)
                loss = (
                    F.l1_loss(sr, hr) + 0.1 * percep(sr, hr) + 0.5 * gradient_loss(sr, hr)
                ) / args.accum
            scaler.scale(loss).backward()
            total += loss.item()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
        sched.step()
        with torch.no_grad():
            for e, q in zip(ema.parameters(), net.parameters()):
                e.lerp_(q, 0.01)
        print(f"step {step} loss {total:.6f}", flush=True)


if __name__ == "__main__":
    main()
