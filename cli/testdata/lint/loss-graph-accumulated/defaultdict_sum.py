from collections import defaultdict

import torch
from torch import nn

model = nn.Linear(8, 8).cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
crit = nn.MSELoss()


def train(loader):
    sums = defaultdict(float)
    for x, y in loader:
        out = model(x)
        parts = {"mse": crit(out, y), "reg": out.abs().mean()}
        loss = sum(parts.values())
        opt.zero_grad()
        loss.backward()
        opt.step()
        for name, value in parts.items():
            sums[name] += value  # expect: loss-graph-accumulated
