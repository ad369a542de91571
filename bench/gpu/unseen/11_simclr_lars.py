"""SimCLR pretraining on CIFAR-shaped noise with LARS."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.optimizer import Optimizer

SMALL = os.environ.get("SMALL") == "1"
BATCH = 8 if SMALL else 768
WIDTH = 8 if SMALL else 64
STEPS = 12 if SMALL else 20
TEMP = 0.5
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class LARS(Optimizer):
    def __init__(self, params, lr, momentum=0.9, weight_decay=1e-6, eta=1e-3):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay, eta=eta))

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                d_p = p.grad
                if p.ndim > 1:
                    d_p = d_p.add(p, alpha=group["weight_decay"])
                    pn, gn = torch.norm(p), torch.norm(d_p)
                    trust = torch.where(
                        (pn > 0) & (gn > 0), group["eta"] * pn / gn, torch.ones_like(pn)
                    )
                    d_p = d_p * trust
                state = self.state[p]
                if "mu" not in state:
                    state["mu"] = torch.zeros_like(p)
                state["mu"].mul_(group["momentum"]).add_(d_p)
                p.add_(state["mu"], alpha=-group["lr"])
        return loss


class BasicBlock(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.shortcut = nn.Sequential()
        if stride != 1 or cin != cout:
            self.shortcut = nn.Sequential(
                nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout)
            )

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + self.shortcut(x))


class SimCLR(nn.Module):
    def __init__(self, width, proj_dim=128):
        super().__init__()
        w = width
        layers = [nn.Conv2d(3, w, 3, 1, 1, bias=False), nn.BatchNorm2d(w), nn.ReLU()]
        cin = w
        for cout, stride in [
            (w, 1),
            (w, 1),
            (2 * w, 2),
            (2 * w, 1),
            (4 * w, 2),
            (4 * w, 1),
            (8 * w, 2),
            (8 * w, 1),
        ]:
            layers.append(BasicBlock(cin, cout, stride))
            cin = cout
        self.f = nn.Sequential(*layers)
        self.g = nn.Sequential(
            nn.Linear(cin, cin, bias=False),
            nn.BatchNorm1d(cin),
            nn.ReLU(),
            nn.Linear(cin, proj_dim),
        )

    def forward(self, x):
        feat = self.f(x).mean((2, 3))
        return F.normalize(feat, dim=-1), F.normalize(self.g(feat), dim=-1)


def augment(x, gen):
    # batched crop-by-roll, flip, colour scaling, noise; all on cpu
    sh = torch.randint(-4, 5, (2,), generator=gen).tolist()
    x = torch.roll(x, sh, dims=(2, 3))
    flip = torch.rand(x.size(0), 1, 1, 1, generator=gen) < 0.5
    x = torch.where(flip, x.flip(3), x)
    x = x * (0.6 + 0.8 * torch.rand(x.size(0), 3, 1, 1, generator=gen))
    return x + 0.05 * torch.randn(x.shape, generator=gen)


def nt_xent(z1, z2, temperature):
    n = z1.size(0)
    out = torch.cat([z1, z2], dim=0)
    sim = torch.exp(torch.mm(out, out.t()) / temperature)
    mask = ~torch.eye(2 * n, dtype=torch.bool, device=sim.device)
    sim = (sim * mask).sum(dim=-1)
    pos = torch.exp(torch.sum(z1 * z2, dim=-1) / temperature)
    pos = torch.cat([pos, pos], dim=0)
    return (-torch.log(pos / sim)).mean()


def train():
    torch.backends.cudnn.deterministic = True
    torch.manual_seed(21)
    gen = torch.Generator().manual_seed(21)
    pool = torch.rand(BATCH * 2, 3, 32, 32, generator=gen)
    model = SimCLR(WIDTH).to(device)
    opt = LARS(model.parameters(), lr=0.3 * max(BATCH, 64) / 256)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=STEPS)
    model.train()
    for step in range(STEPS):
        idx = torch.randperm(pool.size(0), generator=gen)[:BATCH]
        x1, x2 = augment(pool[idx], gen).to(device), augment(pool[idx], gen).to(device)
        _, z1 = model(x1)
        _, z2 = model(x2)
        loss = nt_xent(z1, z2, TEMP)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 2 == 0:
            print("step", step, "loss", f"{loss.item():.6f}")


if __name__ == "__main__":
    train()
