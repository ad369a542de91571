# Metric learning: one encoder is called three times a step (anchor, positive, negative), a triplet
# loss with mining on top, then a projection head module. tiny: --width 16 --depth 2 --batch 6
# --size 32 --device cpu --steps 4
import argparse

import torch
from torch import nn

p = argparse.ArgumentParser()
p.add_argument("--width", type=int, default=96)
p.add_argument("--depth", type=int, default=4)
p.add_argument("--batch", type=int, default=96)
p.add_argument("--size", type=int, default=128)
p.add_argument("--steps", type=int, default=20)
p.add_argument("--device", default="cuda")
opt = p.parse_args()
torch.manual_seed(3)


class ConvBlock(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1)
        self.norm1 = nn.GroupNorm(8, cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1)
        self.norm2 = nn.GroupNorm(8, cout)
        self.skip = nn.Conv2d(cin, cout, 1, stride) if stride != 1 or cin != cout else nn.Identity()
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.relu(self.norm1(self.conv1(x)))
        return self.relu(self.norm2(self.conv2(y)) + self.skip(x))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layers, c = [], 3
        for i in range(opt.depth):
            layers += [ConvBlock(c, opt.width * (1 + i // 2), 2 if i % 2 else 1)]
            c = opt.width * (1 + i // 2)
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(c, 128)

    def forward(self, x):
        return self.fc(self.pool(self.features(x)).flatten(1))


class Projection(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 64))

    def forward(self, z):
        return nn.functional.normalize(self.net(z), dim=-1)


encoder, projection = Encoder().to(opt.device), Projection().to(opt.device)
criterion = nn.TripletMarginLoss(margin=2.0)
optimizer = torch.optim.Adam(
    [{"params": encoder.parameters(), "lr": 1e-6}, {"params": projection.parameters(), "lr": 5e-6}]
)
g = torch.Generator().manual_seed(11)
for step in range(opt.steps):
    a = torch.randn(opt.batch, 3, opt.size, opt.size, generator=g)
    pos = a + 0.1 * torch.randn(a.shape, generator=g)
    neg = torch.randn(a.shape, generator=g)
    a, pos, neg = a.to(opt.device), pos.to(opt.device), neg.to(opt.device)
    za, zp, zn = projection(encoder(a)), projection(encoder(pos)), projection(encoder(neg))
    loss = criterion(za, zp, zn)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        closer = ((za - zp).norm(dim=1) < (za - zn).norm(dim=1)).float().mean()
    print("step %d loss %.9g acc %.3f" % (step, loss.item(), closer.item()), flush=True)
