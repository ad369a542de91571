# VQ-VAE whose codebook is learnt by moving averages inside forward (buffers change at every call),
# straight-through estimator, commitment loss returned with the reconstruction.
# tiny: --dim 8 --batch 4 --size 16 --codes 16 --device cpu
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

ap = argparse.ArgumentParser()
ap.add_argument("--dim", type=int, default=128)
ap.add_argument("--batch", type=int, default=96)
ap.add_argument("--size", type=int, default=96)
ap.add_argument("--codes", type=int, default=512)
ap.add_argument("--device", default="cuda")
a = ap.parse_args()
torch.manual_seed(1)


class Quantizer(nn.Module):
    def __init__(self, codes, dim, decay=0.9):
        super().__init__()
        e = torch.randn(codes, dim)
        self.register_buffer("embed", e)
        self.register_buffer("count", torch.ones(codes))
        self.register_buffer("total", e.clone())
        self.decay = decay

    def forward(self, x):
        flat = x.permute(0, 2, 3, 1).reshape(-1, x.size(1))
        dist = flat.pow(2).sum(1, True) - 2 * flat @ self.embed.t() + self.embed.pow(2).sum(1)
        ids = dist.argmin(1)
        hot = F.one_hot(ids, len(self.embed)).type_as(flat)
        q = self.embed[ids].view(x.size(0), x.size(2), x.size(3), -1).permute(0, 3, 1, 2)
        if self.training:
            with torch.no_grad():
                self.count.mul_(self.decay).add_(hot.sum(0), alpha=1 - self.decay)
                self.total.mul_(self.decay).add_(hot.t() @ flat, alpha=1 - self.decay)
                self.embed.copy_(self.total / (self.count + 1e-5)[:, None])
        commit = F.mse_loss(x, q.detach())
        return x + (q - x).detach(), commit


class Res(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.net = nn.Sequential(
            nn.ReLU(), nn.Conv2d(c, c, 3, padding=1), nn.ReLU(), nn.Conv2d(c, c, 1)
        )

    def forward(self, x):
        return x + self.net(x)


class VQVAE(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.enc = nn.Sequential(
            nn.Conv2d(3, d, 4, 2, 1), Res(d), Res(d), nn.Conv2d(d, d, 4, 2, 1), Res(d), Res(d)
        )
        self.vq = Quantizer(a.codes, d)
        self.dec = nn.Sequential(
            Res(d),
            Res(d),
            nn.ConvTranspose2d(d, d, 4, 2, 1),
            Res(d),
            Res(d),
            nn.ConvTranspose2d(d, 3, 4, 2, 1),
        )

    def forward(self, x):
        q, commit = self.vq(self.enc(x))
        return self.dec(q), commit


net = VQVAE(a.dim).to(a.device)
opt = torch.optim.Adam(net.parameters(), 3e-4)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 1e-3, total_steps=14)
rng = torch.Generator().manual_seed(2)
for i in range(14):
    x = torch.rand(a.batch, 3, a.size, a.size, generator=rng).to(a.device)
    out, commit = net(x)
    loss = F.mse_loss(out, x) + 0.25 * commit
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    print("step %d loss %.9g" % (i, loss.item()), flush=True)
