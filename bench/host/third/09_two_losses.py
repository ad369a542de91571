"""Two losses of one trunk, two backward passes with retain_graph, the gradients made orthogonal."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(12)
torch.set_num_threads(1)


class Res(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.f = nn.Sequential(
            nn.GroupNorm(4, c),
            nn.ReLU(),
            nn.Conv2d(c, c, 3, padding=1),
            nn.GroupNorm(4, c),
            nn.ReLU(),
            nn.Conv2d(c, c, 3, padding=1),
        )

    def forward(self, x):
        return x + self.f(x)


trunk = nn.Sequential(nn.Conv2d(3, 24, 3, padding=1), *[Res(24) for _ in range(5)])
depth, kind = nn.Conv2d(24, 1, 1), nn.Conv2d(24, 7, 1)
every = [*trunk.parameters(), *depth.parameters(), *kind.parameters()]
opt = torch.optim.AdamW(every, 1e-3)
for step in range(3):
    x = torch.rand(16, 3, 48, 48)
    far, seen = x.mean(1, keepdim=True), (x.sum(1) * 2).long()
    h = trunk(x)
    loss_depth = F.l1_loss(depth(h), far)
    loss_kind = F.cross_entropy(kind(h), seen)
    opt.zero_grad()
    loss_depth.backward(retain_graph=True)
    first = [None if p.grad is None else p.grad.clone() for p in trunk.parameters()]
    opt.zero_grad()
    loss_kind.backward()
    dot = sum((a * p.grad).sum() for a, p in zip(first, trunk.parameters()))
    size = sum((p.grad**2).sum() for p in trunk.parameters())
    for a, p in zip(first, trunk.parameters()):
        p.grad.add_(a - (dot / size).clamp_max(0) * p.grad)
    opt.step()
    print(
        "%d loss_depth %.8g loss_kind %.8g" % (step, loss_depth.item(), loss_kind.item()),
        flush=True,
    )
