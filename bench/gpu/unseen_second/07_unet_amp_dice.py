"""Medical-style segmentation with U-Net. AMP + GradScaler + channels_last, validation every 8 steps."""  # noqa: E501

import os
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Cfg:
    size: int = 512
    base: int = 48
    depth: int = 4
    batch: int = 10
    classes: int = 4
    steps: int = 24
    lr: float = 0.01
    val_every: int = 8


cfg = Cfg()
if os.environ.get("TINY"):
    cfg = Cfg(size=32, base=4, depth=2, batch=2)

device = "cuda" if torch.cuda.is_available() else "cpu"
use_amp = device == "cuda"


class DoubleConv(nn.Sequential):
    def __init__(self, i, o):
        super().__init__(
            nn.Conv2d(i, o, 3, padding=1, bias=False),
            nn.BatchNorm2d(o),
            nn.ReLU(inplace=True),
            nn.Conv2d(o, o, 3, padding=1, bias=False),
            nn.BatchNorm2d(o),
            nn.ReLU(inplace=True),
        )


class UNet(nn.Module):
    def __init__(self, in_ch, classes, base, depth):
        super().__init__()
        chs = [base * 2**i for i in range(depth + 1)]
        self.inc = DoubleConv(in_ch, chs[0])
        self.downs = nn.ModuleList(DoubleConv(a, b) for a, b in zip(chs[:-1], chs[1:]))
        self.ups = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in zip(chs[:-1], chs[1:]))
        self.decs = nn.ModuleList(DoubleConv(2 * a, a) for a in chs[:-1])
        self.out = nn.Conv2d(chs[0], classes, 1)

    def forward(self, x):
        skips = [self.inc(x)]
        for d in self.downs:
            skips.append(d(F.max_pool2d(skips[-1], 2)))
        x = skips.pop()
        for up, dec in zip(reversed(self.ups), reversed(self.decs)):
            x = dec(torch.cat([skips.pop(), up(x)], 1))
        return self.out(x)


def dice_loss(logits, target, eps=1.0):
    p = logits.float().softmax(1)
    t = F.one_hot(target, cfg.classes).permute(0, 3, 1, 2).float()
    inter = (p * t).sum((0, 2, 3))
    return 1 - ((2 * inter + eps) / (p.sum((0, 2, 3)) + t.sum((0, 2, 3)) + eps)).mean()


def make_batch(gen):
    img = torch.randn(cfg.batch, 1, cfg.size, cfg.size, generator=gen)
    coarse = torch.randint(
        0, cfg.classes, (cfg.batch, 1, cfg.size // 16, cfg.size // 16), generator=gen
    )
    mask = (
        F.interpolate(coarse.float(), size=(cfg.size, cfg.size), mode="nearest").long().squeeze(1)
    )
    img = img + mask.unsqueeze(1) * 0.5
    return img.to(device, memory_format=torch.channels_last), mask.to(device)


@torch.no_grad()
def validate(model, gen):
    model.eval()
    hit = tot = 0
    for _ in range(2):
        x, y = make_batch(gen)
        with torch.autocast(device, dtype=torch.float16, enabled=use_amp):
            pred = model(x).argmax(1)
        hit += (pred == y).sum().item()
        tot += y.numel()
    model.train()
    return hit / tot


def main():
    torch.manual_seed(99)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    gen, vgen = torch.Generator().manual_seed(5), torch.Generator().manual_seed(6)
    net = UNet(1, cfg.classes, cfg.base, cfg.depth).to(device, memory_format=torch.channels_last)
    opt = torch.optim.SGD(
        net.parameters(), lr=cfg.lr, momentum=0.99, nesterov=True, weight_decay=3e-5
    )
    sched = torch.optim.lr_scheduler.PolynomialLR(opt, total_iters=cfg.steps, power=0.9)
    scaler = torch.amp.GradScaler(device, enabled=use_amp, init_scale=1024.0)

    for step in range(cfg.steps):
        x, y = make_batch(gen)
        with torch.autocast(device, dtype=torch.float16, enabled=use_amp):
            logits = net(x)
            loss = F.cross_entropy(logits, y) + dice_loss(logits, y)
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 12)
        scaler.step(opt)
        scaler.update()
        sched.step()
        print(f"step {step} loss {loss.item():.8f}")
        if (step + 1) % cfg.val_every == 0:
            print(f"  val pixel acc {validate(net, vgen):.4f}")


if __name__ == "__main__":
    main()
