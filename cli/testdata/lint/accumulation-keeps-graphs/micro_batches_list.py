import torch
from torch import nn

from feed import loader

net = nn.Sequential(nn.Linear(300, 3000), nn.ReLU(), nn.Linear(3000, 5)).cuda()
opt = torch.optim.SGD(net.parameters(), 0.01)
ACC = 16


def flush(pending):
    torch.stack(pending).mean().backward()
    opt.step()
    opt.zero_grad()


def train():
    pending = []
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(net(x.cuda()), y.cuda())
        pending.append(loss)  # expect: accumulation-keeps-graphs
        if len(pending) == ACC:
            flush(pending)
            pending.clear()


train()
