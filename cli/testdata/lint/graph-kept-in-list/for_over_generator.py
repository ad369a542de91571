import torch
from torch import nn

model = nn.Linear(8, 8).cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
crit = nn.MSELoss()


def steps(loader):
    for x, y in loader:
        loss = crit(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        yield loss


def train(loader):
    history = []
    for loss in steps(loader):
        history.append(loss)  # expect: graph-kept-in-list
    return history


def train_clean(loader):
    history = []
    for loss in steps(loader):
        history.append(float(loss))
    return history
