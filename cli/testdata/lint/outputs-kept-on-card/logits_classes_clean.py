"""Logits of ten classes are small."""

import torch
from torchvision.models import resnet50

device = "cuda"
net = resnet50(num_classes=10).to(device)


def ranked(net, loader):
    net.eval()
    logits = []
    with torch.no_grad():
        for x, _ in loader:
            logits.append(net(x.to(device)))  # hint: outputs-kept-on-card
    return torch.cat(logits).topk(3)
