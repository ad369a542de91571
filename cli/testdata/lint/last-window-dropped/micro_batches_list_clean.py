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
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(net(x.cuda()), y.cuda())
        (loss / ACC).backward()
        if (i + 1) % ACC == 0:  # hint: last-window-dropped
            opt.step()
            opt.zero_grad()


train()
