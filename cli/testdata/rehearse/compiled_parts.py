"""Parts that are compiled by themselves: a loss (not with `eager`), and with `graphs` the model as
CUDA graphs.
"""

import sys

import torch

model = torch.nn.Sequential(
    torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024)
).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
run = torch.compile(model, mode="reduce-overhead") if "graphs" in sys.argv else model


def distance(a, b):
    """Eagerly it keeps several results as large as its arguments."""
    return ((a - b).sin().exp().sin().exp() ** 2).mean()


if "eager" not in sys.argv:
    distance = torch.compile(distance)


for _ in range(5):
    x = torch.randn(32768, 1024, device="cuda")
    distance(run(x), x).backward()
    optimizer.step()
    optimizer.zero_grad()
