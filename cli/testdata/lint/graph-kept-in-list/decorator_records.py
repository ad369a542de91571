import functools

import torch
from torch import nn

model = nn.Linear(8, 8).cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
crit = nn.MSELoss()


def recorded(fn):
    results = []

    @functools.wraps(fn)
    def wrapper(*args):
        out = fn(*args)
        results.append(out)  # expect: graph-kept-in-list
        return out

    wrapper.results = results
    return wrapper


@recorded
def step(x, y):
    loss = crit(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss


def train(loader):
    for x, y in loader:
        step(x, y)
