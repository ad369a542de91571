import queue

import torch
from torch import nn

model = nn.Linear(8, 8).cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
crit = nn.MSELoss()


results = queue.Queue()


def train(loader):
    for x, y in loader:
        out = model(x)
        loss = crit(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        results.put((loss, out))  # expect: graph-kept-in-list
