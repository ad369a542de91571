"""Binary segmentation with a plain U-Net. BCE + soft dice."""

import os

import torch
from torch import nn
from torch.nn import functional as F


class DoubleConv(nn.Module):
    def __init__(self, in_ch, out_ch):
        super().__init__()
        self.double_conv = nn.Sequential(
            nn.Conv2d(in_ch, out_ch, 3, padding=1, bias=False),
            nn.BatchNorm2d(out_ch),
            nn.ReLU(inplace=True),
            nn.Conv2d(out_ch, out_ch, 3, padding=1, bias=False),
            nn.BatchNorm2d(out_ch),
            nn.ReLU(inplace=True),
        )

    def forward(self, x):
        return self.double_conv(x)


class Down(nn.Module):
    def __init__(self, in_ch, out_ch):
        super().__init__()
        self.pool = nn.MaxPool2d(2)
        self.conv = DoubleConv(in_ch, out_ch)

    def forward(self, x):
        return self.conv(self.pool(x))


class Up(nn.Module):
    def __init__(self, in_ch, out_ch):
        super().__init__()
        self.up = nn.ConvTranspose2d(in_ch, in_ch // 2, 2, stride=2)
        self.conv = DoubleConv(in_ch, out_ch)

    def forward(self, x1, x2):
        x1 = self.up(x1)
        dy, dx = x2.size(2) - x1.size(2), x2.size(3) - x1.size(3)
        x1 = F.pad(x1, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])
        return self.conv(torch.cat([x2, x1], dim=1))


class UNet(nn.Module):
    def __init__(self, n_channels, n_classes, base):
        super().__init__()
        self.inc = DoubleConv(n_channels, base)
        self.down1 = Down(base, base * 2)
        self.down2 = Down(base * 2, base * 4)
        self.down3 = Down(base * 4, base * 8)
        self.up1 = Up(base * 8, base * 4)
        self.up2 = Up(base * 4, base * 2)
        self.up3 = Up(base * 2, base)
        self.outc = nn.Conv2d(base, n_classes, 1)

    def forward(self, x):
        x1 = self.inc(x)
        x2 = self.down1(x1)
        x3 = self.down2(x2)
        x4 = self.down3(x3)
        x = self.up1(x4, x3)
        x = self.up2(x, x2)
        x = self.up3(x, x1)
        return self.outc(x)


def dice_loss(logits, target, eps=1.0):
    # computed over the whole batch, not image by image
    prob = torch.sigmoid(logits).flatten()
    target = target.flatten()
    inter = (prob * target).sum()
    return 1 - (2 * inter + eps) / (prob.sum() + target.sum() + eps)


def synth(n, size, gen):
    """Discs on a noisy background."""
    yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    imgs = 0.3 * torch.randn(n, 3, size, size, generator=gen)
    masks = torch.zeros(n, 1, size, size)
    for i in range(n):
        for _ in range(3):
            cy, cx = torch.randint(0, size, (2,), generator=gen).tolist()
            r = int(torch.randint(size // 16 + 1, size // 5, (1,), generator=gen))
            masks[i, 0] = torch.maximum(
                masks[i, 0], ((yy - cy) ** 2 + (xx - cx) ** 2 < r * r).float()
            )
        imgs[i] += masks[i] * torch.rand(3, 1, 1, generator=gen)
    return imgs, masks


if __name__ == "__main__":
    if os.environ.get("SMALL") == "1":
        BS, SIZE, BASE, STEPS, NTRAIN = 2, 32, 8, 12, 8
    else:
        BS, SIZE, BASE, STEPS, NTRAIN = 16, 384, 48, 14, 64

    torch.backends.cudnn.deterministic = True
    torch.manual_seed(99)
    dev = torch.device("cuda:0") if torch.cuda.is_available() else torch.device("cpu")
    gen = torch.Generator().manual_seed(99)
    images, masks = synth(NTRAIN, SIZE, gen)

    net = UNet(3, 1, BASE).to(dev)
    optimizer = torch.optim.RMSprop(
        net.parameters(), lr=1e-4, weight_decay=1e-8, momentum=0.9, foreach=True
    )
    poly = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=STEPS, power=0.9)
    bce = nn.BCEWithLogitsLoss()

    step = 0
    epoch = 0
    while step < STEPS:
        order = torch.randperm(NTRAIN, generator=gen)
        net.train()
        for idx in order.split(BS):
            if step >= STEPS:
                break
            x = images[idx].to(dev)
            y = masks[idx].to(dev)
            if torch.rand(1, generator=gen).item() < 0.5:
                x, y = x.flip(-1), y.flip(-1)
            pred = net(x)
            loss = bce(pred, y) + dice_loss(pred, y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_value_(net.parameters(), 0.5)
            optimizer.step()
            poly.step()
            print("step %d loss %.6f" % (step, loss.item()))
            step += 1
        epoch += 1

    net.eval()
    with torch.no_grad():
        p = (torch.sigmoid(net(images[:BS].to(dev))) > 0.5).float()
        d = dice_loss((p - 0.5) * 100, masks[:BS].to(dev))
    print(f"val dice {1 - d.item():.4f}")
