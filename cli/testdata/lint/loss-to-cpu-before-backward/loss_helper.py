"""The loss is moved to the CPU by the function that computes it."""

import torch
from torch import nn


class Distiller:
    def __init__(self, net, weights):
        self.net = net.cuda()
        self.criterion = nn.CrossEntropyLoss(weight=weights)
        self.opt = torch.optim.Adam(self.net.parameters())

    def objective(self, batch):
        logits = self.net(batch["pixels"].cuda(non_blocking=True))
        mask = batch["mask"].cuda()
        return self.criterion(logits, mask).cpu()  # expect: loss-to-cpu-before-backward

    def epoch(self, loader):
        for batch in loader:
            self.opt.zero_grad()
            loss = self.objective(batch)
            loss.backward()
            self.opt.step()


def compute(net, x, y):
    loss = nn.functional.cross_entropy(net(x.cuda()), y.cuda())
    return loss.to("cpu")  # expect: loss-to-cpu-before-backward


def train(net, loader, opt):
    for x, y in loader:
        loss = compute(net, x, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(loss.item())
