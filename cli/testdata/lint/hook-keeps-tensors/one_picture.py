"""A hook in a script that sends one picture through the model keeps one output."""

import torch
from torchvision import models

maps = []


def keep(module, inputs, output):
    maps.append(output)  # hint: hook-keeps-tensors


net = models.resnet18()
net.layer4.register_forward_hook(keep)
score = net(torch.load("picture.pt"))
score.max().backward()
print(maps[0].shape)
