"""An evaluation without no_grad, and programs that only measure a model."""

import time

import torch
from torch.utils.data import DataLoader


def score(net, held_out):
    net.eval()
    hits = 0
    for images, labels in DataLoader(held_out, batch_size=64):
        images = images.to("cuda")
        answer = net(images)  # expect: eval-without-no-grad
        hits += (answer.argmax(1).cpu() == labels).sum().item()
    return hits


def milliseconds(net):
    """A few rounds that are written down: the graph of one batch at a time."""
    net.eval()
    frame = torch.rand(1, 3, 256, 256).cuda()
    began = time.time()
    for _ in range(10):
        net(frame)  # hint: eval-without-no-grad
    return (time.time() - began) * 100


def shapes(net, rounds):
    """Made-up input, however many rounds."""
    net.eval()
    noise = torch.randn(8, 3, 64, 64)
    noise = noise.to("cuda")
    for _ in range(rounds):
        print(net(noise).shape)  # hint: eval-without-no-grad
