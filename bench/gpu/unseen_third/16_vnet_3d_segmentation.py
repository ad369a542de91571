"""3-D segmentation of volumes (V-Net like): residual blocks, deep supervision, dice + CE with class
weights, an evaluation by sliding window in between."""

import itertools
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("SMALL") == "1"
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PATCH, WIDTH, BATCH, CLASSES = (16, 4, 1, 3) if SMALL else (96, 24, 2, 4)


def conv(i, o):
    return nn.Sequential(
        nn.Conv3d(i, o, 3, padding=1, bias=False), nn.InstanceNorm3d(o, affine=True), nn.PReLU(o)
    )


class ResStage(nn.Module):
    def __init__(self, i, o, n):
        super().__init__()
        self.inp = conv(i, o)
        self.body = nn.Sequential(*(conv(o, o) for _ in range(n)))

    def forward(self, x):
        x = self.inp(x)
        return x + self.body(x)


class VNet(nn.Module):
    def __init__(self):
        super().__init__()
        w = [WIDTH, WIDTH * 2, WIDTH * 4, WIDTH * 8]
        self.enc = nn.ModuleList(
            [
                ResStage(1, w[0], 1),
                ResStage(w[0], w[1], 1),
                ResStage(w[1], w[2], 2),
                ResStage(w[2], w[3], 2),
            ]
        )
        self.down = nn.ModuleList(nn.Conv3d(c, c, 2, 2) for c in w[:3])
        self.up = nn.ModuleList(nn.ConvTranspose3d(w[i + 1], w[i], 2, 2) for i in (2, 1, 0))
        self.dec = nn.ModuleList(ResStage(w[i] * 2, w[i], 1) for i in (2, 1, 0))
        self.heads = nn.ModuleList(nn.Conv3d(w[i], CLASSES, 1) for i in (2, 1, 0))

    def forward(self, x):
        skips = []
        for i, stage in enumerate(self.enc):
            x = stage(x)
            if i < 3:
                skips.append(x)
                x = self.down[i](x)
        outs = []
        for up, dec, head in zip(self.up, self.dec, self.heads):
            x = dec(torch.cat([up(x), skips.pop()], dim=1))
            outs.append(head(x))
        return outs[::-1]  # finest first


def dice_loss(logits, y):
    p = logits.softmax(1)
    onehot = F.one_hot(y, CLASSES).movedim(-1, 1).float()
    dims = (0, 2, 3, 4)  # over the batch as well
    num = 2 * (p * onehot).sum(dims) + 1e-5
    den = p.sum(dims) + onehot.sum(dims) + 1e-5
    return 1 - (num / den)[1:].mean()


class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("w", torch.tensor([0.2] + [1.0] * (CLASSES - 1)))

    def forward(self, outs, y):
        total = 0.0
        for k, o in enumerate(outs):
            t = y[:, :: 2**k, :: 2**k, :: 2**k]
            total = total + 0.5**k * (F.cross_entropy(o, t, self.w) + dice_loss(o, t))
        return total


def volume(g, n):
    y = torch.zeros(BATCH, n, n, n, dtype=torch.long)
    grid = torch.stack(torch.meshgrid(*[torch.arange(n)] * 3, indexing="ij"))
    for b, c in itertools.product(range(BATCH), range(1, CLASSES)):
        centre = torch.randint(n // 4, 3 * n // 4, (3, 1, 1, 1), generator=g)
        y[b][((grid - centre).float().pow(2).sum(0).sqrt()) < n / 6] = c
    x = y.unsqueeze(1).float() + torch.randn(BATCH, 1, n, n, n, generator=g)
    return x.to(device), y.to(device)


@torch.no_grad()
def sliding_window(model, x):
    model.eval()
    out = []
    for z in range(0, x.size(2), PATCH // 2):
        part = x[:, :, z : z + PATCH // 2]
        out.append(model(part)[0].argmax(1))
    model.train()
    return torch.cat(out, dim=1)


torch.manual_seed(12)
net, loss_fn = VNet().to(device), Loss().to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.99, nesterov=True, weight_decay=3e-5)
poly = torch.optim.lr_scheduler.PolynomialLR(opt, total_iters=12, power=0.9)
g = torch.Generator().manual_seed(13)
for it in range(12):
    x, y = volume(g, PATCH)
    loss = loss_fn(net(x), y)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 12)
    opt.step()
    poly.step()
    print(f"step {it} loss {loss.item():.9f}", flush=True)
    if it % 6 == 5:
        hit = (sliding_window(net, x) == y).float().mean().item()
        print(f"   voxels right {hit:.4f}")
