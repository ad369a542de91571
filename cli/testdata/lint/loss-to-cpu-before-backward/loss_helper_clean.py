"""The loss stays where it is; what is moved to the CPU is printed, or is not differentiated."""

import torch
from torch import nn


class Distiller:
    def __init__(self, net, weights):
        self.net = net.cuda()
        self.criterion = nn.CrossEntropyLoss(weight=weights)
        self.opt = torch.optim.Adam(self.net.parameters())

    def objective(self, batch):
        logits = self.net(batch["pixels"].cuda(non_blocking=True))
        return self.criterion(logits, batch["mask"].cuda())

    def shown(self, loss):
        return loss.detach().cpu()

    def epoch(self, loader):
        for batch in loader:
            self.opt.zero_grad()
            loss = self.objective(batch)
            loss.backward()
            self.opt.step()
            last = self.shown(loss)
            print(last)


def on_the_host(net, x, y):
    out = net(x.cuda()).cpu()
    return nn.functional.cross_entropy(out, y)


def train(net, loader, opt):
    for x, y in loader:
        loss = on_the_host(net, x, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(loss.item())
