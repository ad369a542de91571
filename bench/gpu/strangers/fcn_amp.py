"""Semantic segmentation with an encoder and a light decoder, fp16 autocast and GradScaler,
polynomial decay, an auxiliary head, class weights and an ignored label."""

# tiny: --width 8 --batch 2 --size 32 --device cpu
import argparse

import torch
import torch.nn.functional as F
from torch import nn

p = argparse.ArgumentParser()
p.add_argument("--width", type=int, default=64)
p.add_argument("--batch", type=int, default=32)
p.add_argument("--size", type=int, default=256)
p.add_argument("--device", default="cuda")
a = p.parse_args()
torch.manual_seed(3)


def conv(i, o, s=1):
    return nn.Sequential(nn.Conv2d(i, o, 3, s, 1, bias=False), nn.GroupNorm(8, o), nn.GELU())


class Seg(nn.Module):
    def __init__(self, w, classes=19):
        super().__init__()
        self.s1 = nn.Sequential(conv(3, w), conv(w, w))
        self.s2 = nn.Sequential(conv(w, 2 * w, 2), conv(2 * w, 2 * w))
        self.s3 = nn.Sequential(conv(2 * w, 4 * w, 2), conv(4 * w, 4 * w), conv(4 * w, 4 * w))
        self.lat2, self.lat3 = nn.Conv2d(2 * w, w, 1), nn.Conv2d(4 * w, w, 1)
        self.head, self.aux = nn.Conv2d(w, classes, 1), nn.Conv2d(4 * w, classes, 1)

    def forward(self, x):
        x1 = self.s1(x)
        x2 = self.s2(x1)
        x3 = self.s3(x2)
        up = lambda t, like: F.interpolate(t, size=like.shape[-2:], mode="nearest")
        y = up(self.lat2(x2) + up(self.lat3(x3), x2), x1) + x1
        out = {"out": self.head(y)}
        if self.training:
            out["aux"] = up(self.aux(x3), x1)
        return out


net = Seg(a.width).to(a.device)
weights = torch.linspace(0.5, 1.5, 19).to(a.device)
opt = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: (1 - s / 20) ** 0.9)
scaler = torch.amp.GradScaler(a.device, enabled=a.device == "cuda")
rng = torch.Generator().manual_seed(1)
for step in range(14):
    x = torch.rand(a.batch, 3, a.size, a.size, generator=rng).to(a.device)
    y = (x.mean(1) * 40).long() % 20
    y[y == 19] = 255
    with torch.autocast(a.device, torch.float16 if a.device == "cuda" else torch.bfloat16):
        out = net(x)
        loss = sum(
            k * F.cross_entropy(out[n], y, weights, ignore_index=255)
            for n, k in (("out", 1.0), ("aux", 0.4))
        )
    opt.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(net.parameters(), 5.0)
    scaler.step(opt)
    scaler.update()
    sched.step()
    print("step %d loss %.9g" % (step, loss.item()), flush=True)
