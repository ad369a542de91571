"""An EfficientNet-like net the way image libraries train it: drop path, mixup, EMA, RMSprop."""

import copy
import math

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(42)
torch.set_num_threads(1)


class DropPath(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, x):
        if not self.training or self.p == 0:
            return x
        keep = x.new_empty(x.shape[0], 1, 1, 1).bernoulli_(1 - self.p)
        return x * keep / (1 - self.p)


class SqueezeExcite(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.reduce, self.expand = nn.Conv2d(c, c // 4, 1), nn.Conv2d(c // 4, c, 1)

    def forward(self, x):
        s = x.mean((2, 3), keepdim=True)
        return x * torch.sigmoid(self.expand(nn.functional.silu(self.reduce(s))))


class MBConv(nn.Module):
    def __init__(self, a, b, stride, drop):
        super().__init__()
        m = 4 * a
        self.pw = nn.Sequential(nn.Conv2d(a, m, 1, bias=False), nn.BatchNorm2d(m), nn.SiLU(True))
        self.dw = nn.Sequential(
            nn.Conv2d(m, m, 3, stride, 1, groups=m, bias=False), nn.BatchNorm2d(m), nn.SiLU(True)
        )
        self.se, self.drop = SqueezeExcite(m), DropPath(drop)
        self.pwl = nn.Sequential(nn.Conv2d(m, b, 1, bias=False), nn.BatchNorm2d(b))
        self.skip = stride == 1 and a == b

    def forward(self, x):
        y = self.pwl(self.se(self.dw(self.pw(x))))
        return x + self.drop(y) if self.skip else y


class Net(nn.Module):
    def __init__(self, classes=20):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16))
        plan = [(16, 24, 1), (24, 24, 1), (24, 40, 2), (40, 40, 1), (40, 64, 2), (64, 64, 1)]
        blocks = [MBConv(a, b, s, 0.02 * i) for i, (a, b, s) in enumerate(plan)]
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class Images(Dataset):
    def __len__(self):
        return 192

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return torch.randn(3, 96, 96, generator=g), i % 20


model = Net()
ema = copy.deepcopy(model)
optimizer = torch.optim.RMSprop(model.parameters(), 2e-3, alpha=0.9, momentum=0.9, eps=1e-3)
loader = DataLoader(Images(), batch_size=32, shuffle=True, num_workers=1)
for step, (x, y) in enumerate(loader):
    for group in optimizer.param_groups:
        group["lr"] = 2e-3 * 0.5 * (1 + math.cos(math.pi * step / 6))
    lam = float(torch.distributions.Beta(0.2, 0.2).sample())
    x = lam * x + (1 - lam) * x.flip(0)
    target = nn.functional.one_hot(y, 20).float()
    target = lam * target + (1 - lam) * target.flip(0)
    loss = torch.sum(-target * nn.functional.log_softmax(model(x), -1), -1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for a, b in zip(ema.state_dict().values(), model.state_dict().values()):
            a.copy_(0.9 * a + 0.1 * b)
    print("step %d loss: %.8g" % (step, loss.item()), flush=True)
print("ema %.8g" % sum(p.double().sum().item() for p in ema.parameters()))
