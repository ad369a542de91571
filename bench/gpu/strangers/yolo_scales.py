# A detector in one pass: BatchNorm, three outputs of different scale, a loss over cells with
# targets, and another image size every few steps.
# tiny: --width 4 --batch 3 --size 64 --device cpu
import argparse

import torch
from torch import nn

ap = argparse.ArgumentParser()
ap.add_argument("--width", type=int, default=32)
ap.add_argument("--batch", type=int, default=24)
ap.add_argument("--size", type=int, default=416)
ap.add_argument("--device", default="cuda")
a = ap.parse_args()
torch.manual_seed(13)


def conv(i, o, k=3, s=1):
    return nn.Sequential(
        nn.Conv2d(i, o, k, s, k // 2, bias=False), nn.BatchNorm2d(o), nn.LeakyReLU(0.1, True)
    )


class Residual(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.body = nn.Sequential(conv(c, c // 2, 1), conv(c // 2, c))

    def forward(self, x):
        return x + self.body(x)


class Yolo(nn.Module):
    def __init__(self, w, classes=8):
        super().__init__()
        self.stem = nn.Sequential(conv(3, w), conv(w, 2 * w, 3, 2), Residual(2 * w))
        self.s8 = nn.Sequential(
            conv(2 * w, 4 * w, 3, 2), Residual(4 * w), conv(4 * w, 8 * w, 3, 2), Residual(8 * w)
        )
        self.s16 = nn.Sequential(conv(8 * w, 8 * w, 3, 2), Residual(8 * w), Residual(8 * w))
        self.s32 = nn.Sequential(conv(8 * w, 16 * w, 3, 2), Residual(16 * w))
        self.out = nn.ModuleList(nn.Conv2d(c * w, 5 + classes, 1) for c in (8, 8, 16))

    def forward(self, x):
        a8 = self.s8(self.stem(x))
        a16 = self.s16(a8)
        return [o(f) for o, f in zip(self.out, (a8, a16, self.s32(a16)))]


def loss_of(outs, boxes, labels):
    total = 0.0
    for out in outs:
        h, w = out.shape[2:]
        i = torch.arange(len(boxes), device=out.device)[:, None].expand(boxes.shape[:2])
        cy, cx = (boxes[..., 1] * h).long(), (boxes[..., 0] * w).long()
        there = out[i, :, cy, cx]
        want = torch.zeros_like(out[:, 0])
        want[i, cy, cx] = 1.0
        total = total + nn.functional.binary_cross_entropy_with_logits(out[:, 4], want)
        total = total + (there[..., :4].sigmoid() - boxes).square().mean()
        total = total + nn.functional.cross_entropy(there[..., 5:].flatten(0, 1), labels.flatten())
    return total


net = Yolo(a.width).to(a.device)
opt = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9, weight_decay=5e-4)
g = torch.Generator().manual_seed(6)
sizes = [a.size, a.size - 32, a.size, a.size + 32]
for step in range(12):
    s = sizes[step // 3]
    x = torch.rand(a.batch, 3, s, s, generator=g).to(a.device)
    boxes = (torch.rand(a.batch, 5, 4, generator=g) * 0.98 + 0.01).to(a.device)
    labels = torch.randint(0, 8, (a.batch, 5), generator=g).to(a.device)
    loss = loss_of(net(x), boxes, labels)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print("step %d loss %.9g" % (step, loss.item()), flush=True)
