import torch
from torch import nn

model = nn.Linear(8, 8).cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
crit = nn.MSELoss()


class Stat:
    def __init__(self):
        self.total, self.n = 0, 0

    def __iadd__(self, value):
        self.total = self.total + value  # expect: graph-kept-here
        self.n += 1
        return self


def train(loader):
    stat = Stat()
    for x, y in loader:
        loss = crit(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        stat += loss  # expect: loss-graph-accumulated
