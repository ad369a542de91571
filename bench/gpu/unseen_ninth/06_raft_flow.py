"""Train a RAFT-style optical flow network: all-pairs correlation and a recurrent update."""

from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

torch.manual_seed(21)
device = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass
class Config:
    height: int = 256
    width: int = 384
    batch: int = 12
    iters: int = 10
    radius: int = 4
    levels: int = 4
    steps: int = 10


cfg = Config()
if device == "cpu":
    cfg = Config(height=64, width=64, batch=1, iters=3, levels=2, steps=8)


def conv(cin, cout, kernel):
    return nn.Conv2d(cin, cout, kernel, padding=kernel // 2)


class ResBlock(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(cin, cout, 3, stride, 1), conv(cout, cout, 3)
        self.norm1, self.norm2 = nn.InstanceNorm2d(cout), nn.InstanceNorm2d(cout)
        self.skip = nn.Conv2d(cin, cout, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        return F.relu(self.skip(x) + y)


class Encoder(nn.Module):
    def __init__(self, out):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3), nn.InstanceNorm2d(64), nn.ReLU())
        self.layer1 = nn.Sequential(ResBlock(64, 64, 1), ResBlock(64, 64, 1))
        self.layer2 = nn.Sequential(ResBlock(64, 96, 2), ResBlock(96, 96, 1))
        self.layer3 = nn.Sequential(ResBlock(96, 128, 2), ResBlock(128, 128, 1))
        self.out = nn.Conv2d(128, out, 1)

    def forward(self, x):
        x = self.stem(x)
        x = checkpoint(self.layer1, x, use_reentrant=False)
        return self.out(self.layer3(self.layer2(x)))


class UpdateBlock(nn.Module):
    def __init__(self, hidden=128):
        super().__init__()
        planes = cfg.levels * (2 * cfg.radius + 1) ** 2
        self.corr = nn.Sequential(conv(planes, 256, 1), nn.ReLU(), conv(256, 192, 3), nn.ReLU())
        self.flow = nn.Sequential(conv(2, 128, 7), nn.ReLU(), conv(128, 64, 3), nn.ReLU())
        self.motion = nn.Sequential(conv(256, 126, 3), nn.ReLU())
        self.zr, self.q = conv(hidden + 256, 2 * hidden, 3), conv(hidden + 256, hidden, 3)
        self.delta = nn.Sequential(conv(hidden, 256, 3), nn.ReLU(), conv(256, 2, 3))
        self.mask = nn.Sequential(conv(hidden, 256, 3), nn.ReLU(), conv(256, 64 * 9, 1))

    def forward(self, h, context, corr, flow):
        m = self.motion(torch.cat([self.corr(corr), self.flow(flow)], 1))
        x = torch.cat([context, m, flow], 1)
        z, r = torch.sigmoid(self.zr(torch.cat([h, x], 1))).chunk(2, 1)
        q = torch.tanh(self.q(torch.cat([r * h, x], 1)))
        h = (1 - z) * h + z * q
        return h, self.delta(h), 0.25 * self.mask(h)


def coords_grid(b, h, w):
    y, x = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
    return torch.stack([x, y]).float().to(device).expand(b, -1, -1, -1)


def sample(image, coords):
    h, w = image.shape[-2:]
    scale = torch.tensor([w - 1, h - 1], device=coords.device).clamp(min=1)
    return F.grid_sample(image, 2 * coords / scale - 1, align_corners=True)


def lookup(pyramid, coords):
    b, _, h, w = coords.shape
    r = torch.arange(-cfg.radius, cfg.radius + 1, device=coords.device).float()
    window = torch.stack(torch.meshgrid(r, r, indexing="ij"), -1)
    out = []
    for level, corr in enumerate(pyramid):
        center = coords.permute(0, 2, 3, 1).reshape(b * h * w, 1, 1, 2) / 2**level
        out.append(sample(corr, center + window).view(b, h, w, -1))
    return torch.cat(out, -1).permute(0, 3, 1, 2)


def upsample(flow, mask):
    b, _, h, w = flow.shape
    mask = mask.view(b, 1, 9, 8, 8, h, w).softmax(2)
    patches = F.unfold(8 * flow, 3, padding=1).view(b, 2, 9, 1, 1, h, w)
    return (mask * patches).sum(2).permute(0, 1, 4, 2, 5, 3).reshape(b, 2, 8 * h, 8 * w)


class RAFT(nn.Module):
    def __init__(self):
        super().__init__()
        self.fnet, self.cnet, self.update = Encoder(256), Encoder(256), UpdateBlock()

    def forward(self, first, second):
        f1, f2 = self.fnet(torch.cat([first, second])).chunk(2)
        b, c, h, w = f1.shape
        corr = torch.einsum("bcn,bcm->bnm", f1.flatten(2), f2.flatten(2)) / c**0.5
        pyramid = [corr.reshape(b * h * w, 1, h, w)]
        for _ in range(cfg.levels - 1):
            pyramid.append(F.avg_pool2d(pyramid[-1], 2))
        state, context = self.cnet(first).chunk(2, 1)
        state, context = state.tanh(), context.relu()
        start = coords_grid(b, h, w)
        coords, flows = start, []
        for _ in range(cfg.iters):
            coords = coords.detach()
            corr_features = lookup(pyramid, coords)
            state, delta, mask = self.update(state, context, corr_features, coords - start)
            coords = coords + delta
            flows.append(upsample(coords - start, mask))
        return flows


model = RAFT().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-4, weight_decay=1e-4)
for step in range(cfg.steps):
    size = (cfg.height, cfg.width)
    texture = torch.randn(cfg.batch, 3, cfg.height // 4, cfg.width // 4, device=device)
    first = F.interpolate(texture, size, mode="bilinear")
    flow = F.interpolate(6 * torch.randn(cfg.batch, 2, 3, 3, device=device), size, mode="bilinear")
    second = sample(first, (coords_grid(cfg.batch, *size) - flow).permute(0, 2, 3, 1))
    predictions = model(first, second)
    loss = sum(0.8**i * (p - flow).abs().mean() for i, p in enumerate(reversed(predictions)))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}", flush=True)
