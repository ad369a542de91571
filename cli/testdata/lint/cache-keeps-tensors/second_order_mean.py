"""A running mean of a penalty of second order, and layers that are called one by one."""

import functools

import torch
from nets import Critic, Generator
from torch import autograd
from torchvision.models import resnet101

net = resnet101(weights="DEFAULT").cuda().eval()


def penalty(critic, x):
    x = x.requires_grad_()
    grad = autograd.grad(critic(x).sum(), x, create_graph=True)[0]
    return ((grad.flatten(1).norm(2, dim=1) - 1) ** 2).mean()


def train(loader):
    generator, critic = Generator().cuda(), Critic().cuda()
    optimizer = torch.optim.Adam(critic.parameters())
    mean, clean = {"gp": 0.0}, {"gp": 0.0}
    for real in loader:
        fake = generator(torch.randn(64, 512).cuda()).detach()
        gp = penalty(critic, fake)
        loss = critic(fake).mean() - critic(real.cuda()).mean() + 10 * gp
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean["gp"] = 0.99 * mean["gp"] + 0.01 * gp  # expect: graph-kept-in-list
        clean["gp"] = 0.99 * clean["gp"] + 0.01 * gp.item()


@functools.lru_cache(maxsize=None)  # expect: cache-keeps-tensors
def features(path):
    with torch.no_grad():
        return net.layer2(net.layer1(net.maxpool(net.conv1(torch.load(path).cuda()))))


def all_features(paths):
    return [features(p).mean().item() for p in paths]
