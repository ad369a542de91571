"""A surface fitted by L-BFGS: a coordinate network, all points, a penalty in the closure."""

import torch
from torch import nn

torch.manual_seed(3)
torch.set_num_threads(1)

points = torch.rand(40_000, 3) * 2 - 1
distance = points.norm(dim=1, keepdim=True) - 0.5


class Field(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.enter = nn.Linear(3, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(6))
        self.leave = nn.Linear(width, 1)

    def forward(self, x):
        x = torch.sin(5 * self.enter(x))
        for layer in self.layers:
            x = x + nn.functional.softplus(layer(x), beta=10)
        return self.leave(x)


field = Field()
lbfgs = torch.optim.LBFGS(field.parameters(), lr=0.5, max_iter=3, history_size=5)
calls = 0


def closure():
    global calls
    calls += 1
    lbfgs.zero_grad()
    off = field(points) - distance
    size = sum((p * p).sum() for p in field.parameters())
    loss = off.abs().mean() + 1e-5 * size
    loss.backward()
    return loss


for outer in range(3):
    print("outer %d loss %.8g calls %d" % (outer, lbfgs.step(closure).item(), calls), flush=True)
with torch.no_grad():
    print("last loss %.8g" % (field(points) - distance).abs().mean().item())
