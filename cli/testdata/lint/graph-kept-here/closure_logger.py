import torch
from torch import nn

model = nn.Linear(8, 8).cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
crit = nn.MSELoss()


def make_logger():
    seen = []

    def log(value):
        seen.append(value)  # expect: graph-kept-here

    return log


def train(loader):
    log = make_logger()
    for x, y in loader:
        loss = crit(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        log(loss)  # expect: graph-kept-in-list
