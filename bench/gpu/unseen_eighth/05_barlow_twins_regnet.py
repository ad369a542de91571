"""Barlow Twins on a RegNetY backbone, bf16 autocast, hand-written LARS."""

import torch
import torch.nn as nn
from torchvision.models import regnet_y_1_6gf, regnet_y_400mf

cuda = torch.cuda.is_available()
dev = "cuda" if cuda else "cpu"
BATCH, SIDE, STEPS = (256, 128, 10) if cuda else (4, 32, 3)
PROJ = 2048 if cuda else 32
LAMBDA = 0.0051


class LARS(torch.optim.Optimizer):
    def __init__(self, params, lr, weight_decay=1e-6, momentum=0.9, eta=0.001):
        super().__init__(params, dict(lr=lr, weight_decay=weight_decay, momentum=momentum, eta=eta))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                d = p.grad
                if p.ndim > 1:
                    d = d.add(p, alpha=group["weight_decay"])
                    pn, dn = p.norm(), d.norm()
                    one = torch.ones_like(pn)
                    ratio = torch.where((pn > 0) & (dn > 0), group["eta"] * pn / dn, one)
                    d = d * ratio
                buf = self.state[p].setdefault("mu", torch.zeros_like(p))
                buf.mul_(group["momentum"]).add_(d)
                p.add_(buf, alpha=-group["lr"])


class BarlowTwins(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = (regnet_y_1_6gf if cuda else regnet_y_400mf)(weights=None)
        width = self.backbone.fc.in_features
        self.backbone.fc = nn.Identity()
        layers = []
        for i in range(2):
            layers += [nn.Linear(PROJ if i else width, PROJ, bias=False)]
            layers += [nn.BatchNorm1d(PROJ), nn.ReLU(inplace=True)]
        self.projector = nn.Sequential(*layers, nn.Linear(PROJ, PROJ, bias=False))
        self.bn = nn.BatchNorm1d(PROJ, affine=False)

    def forward(self, a, b):
        za = self.projector(self.backbone(a))
        zb = self.projector(self.backbone(b))
        c = (self.bn(za.float()).T @ self.bn(zb.float())) / len(a)
        on = (torch.diagonal(c) - 1).pow(2).sum()
        off = c.pow(2).sum() - torch.diagonal(c).pow(2).sum()
        return on + LAMBDA * off


def augment(x):
    """Flip, jitter brightness and contrast per image, add noise."""
    n = len(x)
    flip = torch.rand(n, 1, 1, 1, device=x.device) < 0.5
    x = torch.where(flip, x.flip(-1), x)
    gain = 0.6 + 0.8 * torch.rand(n, 1, 1, 1, device=x.device)
    shift = 0.4 * torch.randn(n, 3, 1, 1, device=x.device)
    return x * gain + shift + 0.1 * torch.randn_like(x)


def main():
    torch.manual_seed(505)
    model = BarlowTwins().to(dev, memory_format=torch.channels_last)
    opt = LARS(model.parameters(), lr=0.2)
    protos = torch.randn(16, 3, SIDE, SIDE)
    for step in range(STEPS):
        pick = torch.randint(0, 16, (BATCH,))
        images = (protos[pick] + 0.5 * torch.randn(BATCH, 3, SIDE, SIDE)).to(dev)
        a = augment(images).contiguous(memory_format=torch.channels_last)
        b = augment(images).contiguous(memory_format=torch.channels_last)
        with torch.autocast(dev, dtype=torch.bfloat16, enabled=cuda):
            loss = model(a, b)
        loss.backward()
        opt.step()
        opt.zero_grad(set_to_none=True)
        print(f"[{step + 1}/{STEPS}] barlow loss {loss.item():.5f}", flush=True)


if __name__ == "__main__":
    main()
