import torch
from torch import nn

model = nn.Linear(8, 8).cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
crit = nn.MSELoss()


def train(loader):
    losses = []
    for x, y in loader:
        opt.zero_grad()
        (loss := crit(model(x), y)).backward()
        opt.step()
        losses.append(loss)  # expect: graph-kept-in-list
    return losses
