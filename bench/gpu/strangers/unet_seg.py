# Segmentation: a UNet with BatchNorm, GradScaler and autocast off, dice + BCE, DataLoader with an
# uneven last batch, gradient clipping, ReduceLROnPlateau. tiny: --base 8 --size 32 --batch 4
# --count 10 --device cpu
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--base", type=int, default=48)
parser.add_argument("--size", type=int, default=192)
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--count", type=int, default=150)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--device", default="cuda")
args = parser.parse_args()
torch.manual_seed(0)


class Shapes(Dataset):
    def __len__(self):
        return args.count

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        image = torch.randn(3, args.size, args.size, generator=g)
        return {"image": image, "mask": (image.mean(0) > 0.1).float()}


def double(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1, bias=False),
        nn.BatchNorm2d(cout),
        nn.ReLU(inplace=True),
        nn.Conv2d(cout, cout, 3, padding=1, bias=False),
        nn.BatchNorm2d(cout),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.inc = double(3, base)
        self.down1, self.down2, self.down3 = (
            nn.Sequential(nn.MaxPool2d(2), double(base << i, base << (i + 1))) for i in range(3)
        )
        self.up1, self.up2, self.up3 = (
            nn.ConvTranspose2d(base << (i + 1), base << i, 2, 2) for i in (2, 1, 0)
        )
        self.dec1, self.dec2, self.dec3 = (double(base << (i + 1), base << i) for i in (2, 1, 0))
        self.outc = nn.Conv2d(base, 1, 1)

    def forward(self, x):
        x1 = self.inc(x)
        x2 = self.down1(x1)
        x3 = self.down2(x2)
        x4 = self.down3(x3)
        y = self.dec1(torch.cat([x3, self.up1(x4)], 1))
        y = self.dec2(torch.cat([x2, self.up2(y)], 1))
        y = self.dec3(torch.cat([x1, self.up3(y)], 1))
        return self.outc(y)


def dice_loss(p, t):
    inter = 2 * (p * t).sum(dim=(-1, -2))
    return 1 - ((inter + 1e-6) / (p.sum(dim=(-1, -2)) + t.sum(dim=(-1, -2)) + 1e-6)).mean()


model = UNet(args.base).to(args.device, memory_format=torch.channels_last)
optimizer = torch.optim.RMSprop(
    model.parameters(), lr=1e-6, weight_decay=1e-8, momentum=0.9, foreach=True
)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", patience=5)
scaler = torch.amp.GradScaler(args.device, enabled=False)
loader = DataLoader(Shapes(), batch_size=args.batch, shuffle=False, num_workers=0, drop_last=False)
step = 0
for epoch in range(args.epochs):
    model.train()
    for batch in loader:
        images, masks = (
            batch["image"].to(args.device, memory_format=torch.channels_last),
            batch["mask"].to(args.device),
        )
        with torch.autocast(args.device, enabled=False):
            pred = model(images).squeeze(1)
            loss = F.binary_cross_entropy_with_logits(pred, masks) + dice_loss(
                torch.sigmoid(pred), masks
            )
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        print("step %d loss %.9g" % (step, loss.item()), flush=True)
        step += 1
    model.eval()
    with torch.no_grad():
        score = torch.stack(
            [
                1
                - dice_loss(
                    (torch.sigmoid(model(b["image"].to(args.device)).squeeze(1)) > 0.5).float(),
                    b["mask"].to(args.device),
                )
                for b in loader
            ]
        ).mean()
    scheduler.step(score)
    print("epoch %d dice %.4f" % (epoch, score.item()), flush=True)
