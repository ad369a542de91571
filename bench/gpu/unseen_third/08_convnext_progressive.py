"""ConvNeXt from scratch, channels_last, progressive resizing, EMA of weights, SGD + Nesterov."""

import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("SMALL") == "1"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DEPTHS, DIMS = ([1, 1], [8, 16]) if SMALL else ([3, 3, 9, 3], [96, 192, 384, 768])
BATCH, CLASSES = (2, 5) if SMALL else (32, 1000)
SIZES = [32, 48] if SMALL else [160, 192, 224]


class LayerNorm2d(nn.LayerNorm):
    def forward(self, x):
        x = F.layer_norm(x.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias)
        return x.permute(0, 3, 1, 2)


class DropPath(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, x):
        if not self.training or self.p == 0:
            return x
        keep = torch.rand(x.size(0), 1, 1, 1, device=x.device) >= self.p
        return x * keep / (1 - self.p)


class Block(nn.Module):
    def __init__(self, d, p):
        super().__init__()
        self.dw = nn.Conv2d(d, d, 7, padding=3, groups=d)
        self.norm = nn.LayerNorm(d, eps=1e-6)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.gamma = nn.Parameter(1e-6 * torch.ones(d))
        self.path = DropPath(p)

    def forward(self, x):
        h = self.norm(self.dw(x).permute(0, 2, 3, 1))
        h = self.gamma * self.down(F.gelu(self.up(h)))
        return x + self.path(h.permute(0, 3, 1, 2))


class ConvNeXt(nn.Module):
    def __init__(self):
        super().__init__()
        rates = torch.linspace(0, 0.2, sum(DEPTHS)).tolist()
        self.stem = nn.Sequential(nn.Conv2d(3, DIMS[0], 4, 4), LayerNorm2d(DIMS[0], eps=1e-6))
        self.stages = nn.ModuleList()
        for i, (n, d) in enumerate(zip(DEPTHS, DIMS)):
            stage = []
            if i:
                stage += [LayerNorm2d(DIMS[i - 1], eps=1e-6), nn.Conv2d(DIMS[i - 1], d, 2, 2)]
            stage += [Block(d, rates.pop(0)) for _ in range(n)]
            self.stages.append(nn.Sequential(*stage))
        self.norm, self.head = nn.LayerNorm(DIMS[-1]), nn.Linear(DIMS[-1], CLASSES)

    def forward(self, x):
        x = self.stem(x)
        for s in self.stages:
            x = s(x)
        return self.head(self.norm(x.mean((-2, -1))))


class EMA:
    def __init__(self, model, decay):
        self.model, self.decay = copy.deepcopy(model).eval().requires_grad_(False), decay

    @torch.no_grad()
    def update(self, model):
        for e, p in zip(self.model.parameters(), model.parameters()):
            e.lerp_(p, 1 - self.decay)


torch.manual_seed(31)
net = ConvNeXt().to(DEVICE, memory_format=torch.channels_last)
ema = EMA(net, 0.99)
optim = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=2e-5)
steps_per_size = 5 if not SMALL else 3
step = 0
for size in SIZES:
    for _ in range(steps_per_size):
        x = torch.randn(BATCH, 3, size, size).to(DEVICE, memory_format=torch.channels_last)
        y = torch.randint(0, CLASSES, (BATCH,)).to(DEVICE)
        loss = F.cross_entropy(net(x), y, label_smoothing=0.1)
        optim.zero_grad()
        loss.backward()
        optim.step()
        ema.update(net)
        print(f"step {step} size {size} loss {loss.item():.9f}", flush=True)
        step += 1
with torch.no_grad():
    x = torch.randn(BATCH, 3, SIZES[-1], SIZES[-1], device=DEVICE)
    print("ema output", float(ema.model(x).abs().mean()))
