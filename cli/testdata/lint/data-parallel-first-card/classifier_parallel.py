"""A classifier gives a few numbers a sample: the first card hardly notices."""

import torch
from torch import nn
from torchvision import models


def train(loader):
    net = nn.DataParallel(models.resnet18(num_classes=10)).cuda()  # hint: data-parallel-first-card
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x, y in loader:
        loss = nn.functional.cross_entropy(net(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
