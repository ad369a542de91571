"""Point cloud completion (PCN) with a chamfer distance written as an autograd function."""

import argparse

import torch
import torch.nn as nn

HAS_GPU = torch.cuda.is_available()
ap = argparse.ArgumentParser(description=__doc__)
ap.add_argument("--batch-size", type=int, default=32 if HAS_GPU else 2)
ap.add_argument("--partial", type=int, default=2048 if HAS_GPU else 64)
ap.add_argument("--coarse", type=int, default=512 if HAS_GPU else 16)
ap.add_argument("--grid", type=int, default=4 if HAS_GPU else 2)
ap.add_argument("--width", type=int, default=512 if HAS_GPU else 16)
ap.add_argument("--steps", type=int, default=12 if HAS_GPU else 4)
opt = ap.parse_args()
device = torch.device("cuda" if HAS_GPU else "cpu")


def nearest(a, b, chunk=512):
    """Index of the nearest point of b for each point of a, piece by piece."""
    return torch.cat([torch.cdist(p, b).argmin(-1) for p in a.split(chunk, 1)], 1)


def take(points, idx):
    return points.gather(1, idx.unsqueeze(-1).expand(-1, -1, 3))


class Chamfer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ab, ba = nearest(a, b), nearest(b, a)
        da, db = a - take(b, ab), b - take(a, ba)
        ctx.save_for_backward(da, db, ba)
        return da.square().sum(-1).mean() + db.square().sum(-1).mean()

    @staticmethod
    def backward(ctx, grad):
        da, db, ba = ctx.saved_tensors
        ga = 2 * da / (da.shape[0] * da.shape[1])
        back = -2 * db / (db.shape[0] * db.shape[1])
        ga = ga.scatter_add(1, ba.unsqueeze(-1).expand(-1, -1, 3), back)
        return grad * ga, None  # the ground truth needs no gradient


def mlp(*dims):
    layers = []
    for i in range(len(dims) - 2):
        layers += [nn.Conv1d(dims[i], dims[i + 1], 1), nn.BatchNorm1d(dims[i + 1]), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv1d(dims[-2], dims[-1], 1))


class PCN(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.enc1 = mlp(3, w // 4, w // 2)
        self.enc2 = mlp(w, w, 2 * w)
        self.coarse = nn.Sequential(
            nn.Linear(2 * w, 2 * w), nn.ReLU(), nn.Linear(2 * w, 3 * opt.coarse)
        )
        self.fold = mlp(2 * w + 5, w, w, 3)
        side = torch.linspace(-0.05, 0.05, opt.grid)
        self.register_buffer("patch", torch.cartesian_prod(side, side).T.contiguous())

    def forward(self, x):
        f = self.enc1(x.transpose(1, 2))
        f = torch.cat([f, f.amax(2, keepdim=True).expand_as(f)], 1)
        code = self.enc2(f).amax(2)
        coarse = self.coarse(code).view(len(x), -1, 3)
        k = self.patch.shape[1]
        centre = coarse.repeat_interleave(k, 1).transpose(1, 2)
        n = centre.shape[2]
        grid = self.patch.repeat(1, n // k).expand(len(x), -1, -1)
        feats = torch.cat([grid, centre, code.unsqueeze(2).expand(-1, -1, n)], 1)
        return coarse, (centre + self.fold(feats)).transpose(1, 2)


def ellipsoids(n, gen):
    full = 4 * opt.coarse
    p = torch.randn(n, full + opt.partial, 3, generator=gen)
    p = p / p.norm(dim=-1, keepdim=True) * (0.3 + 0.5 * torch.rand(n, 1, 3, generator=gen))
    seen = p[:, full:].clone()
    seen[..., 2] = seen[..., 2].abs()  # only the upper half is observed
    return seen.to(device), p[:, :full].to(device)


torch.manual_seed(1818)
gen = torch.Generator().manual_seed(18)
model = PCN(opt.width).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
chamfer = Chamfer.apply
for step in range(opt.steps):
    partial, full = ellipsoids(opt.batch_size, gen)
    coarse, fine = model(partial)
    alpha = min(1.0, 0.1 + step / opt.steps)
    loss = chamfer(coarse, full) + alpha * chamfer(fine, full)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.7f} points {fine.shape[1]}", flush=True)
