"""Weights that somebody else has published were saved from the CPU; a checkpoint of one's own was
saved from the card.
"""

import torch
from torchvision import models


def train(loader, resume, pretrained_path):
    net = models.resnet18().cuda()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    if resume:
        checkpoint = torch.load(resume)  # expect: checkpoint-without-map-location
        net.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
    else:
        weights = torch.load(pretrained_path)  # hint: checkpoint-without-map-location
        net.load_state_dict(weights)
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(net(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
