"""What has a backward without arguments is one number, whatever its maker is called."""

import torch
from torch import nn


def scored(net, batches, optimizer):
    measure = nn.SmoothL1Loss()
    for x, y in batches:
        gap = measure(net(x.cuda()), y.cuda()).to("cpu")  # expect: loss-to-cpu-before-backward
        optimizer.zero_grad()
        gap.backward()
        optimizer.step()


def ranked(net, pairs, optimizer):
    for better, worse in pairs:
        hinge = net.margin(better.cuda(), worse.cuda()).cpu()  # expect: loss-to-cpu-before-backward
        optimizer.zero_grad()
        hinge.backward()
        optimizer.step()


def on_the_host(net, head, batches, optimizer):
    for x, y in batches:
        features = net(x.cuda()).cpu()
        gap = nn.functional.mse_loss(head(features), y)
        optimizer.zero_grad()
        gap.backward()
        optimizer.step()


def weighted(net, batches):
    for x, weights in batches:
        out = net(x.cuda()).cpu()
        out.backward(torch.ones_like(weights))
