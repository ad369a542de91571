import torch
from torch import nn

model = nn.Linear(8, 8).cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
crit = nn.MSELoss()


class Book:
    def __init__(self):
        self.rows = {}

    def __setitem__(self, k, v):
        self.rows.setdefault(k, []).append(v)  # expect: graph-kept-here


def train(loader):
    book = Book()
    for x, y in loader:
        loss = crit(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        book["loss"] = loss  # expect: graph-kept-in-list
