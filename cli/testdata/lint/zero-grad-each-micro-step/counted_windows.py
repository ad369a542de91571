"""Windows of accumulation whose place is counted in a variable."""

import torch
from torch import nn
from torch.nn import functional as F

net = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).cuda()
optimizer = torch.optim.AdamW(net.parameters())


def forgets(loader, parts):
    at = 0
    for x, y in loader:
        net.zero_grad()  # expect: zero-grad-each-micro-step
        (F.mse_loss(net(x.cuda()), y.cuda()) / parts).backward()
        at = (at + 1) % parts
        if at == 0:
            optimizer.step()


def forgets_by_rest(loader, parts):
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()  # expect: zero-grad-each-micro-step
        (F.mse_loss(net(x.cuda()), y.cuda()) / parts).backward()
        window, rest = divmod(i + 1, parts)
        if rest == 0:  # hint: last-window-dropped
            optimizer.step()
            print(window)


def remembers(loader, parts):
    at = 0
    for x, y in loader:
        (F.mse_loss(net(x.cuda()), y.cuda()) / parts).backward()
        at = (at + 1) % parts
        if at == 0:
            optimizer.step()
            net.zero_grad()
