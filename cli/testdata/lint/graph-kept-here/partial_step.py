from functools import partial

import torch
from torch import nn

model = nn.Linear(8, 8).cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
crit = nn.MSELoss()


def keep(store, value):
    store.append(value)  # expect: graph-kept-here


def train(loader):
    store = []
    record = partial(keep, store)
    for x, y in loader:
        loss = crit(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        record(loss)  # expect: graph-kept-in-list
    return store
