"""Gradients are switched off by an expression that chooses."""

import torch
from feeds import train_loader, valid_loader
from nets import build

net = build().cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


def epoch(phase):
    net.train() if phase == "train" else net.eval()
    torch.set_grad_enabled(True) if phase == "train" else torch.set_grad_enabled(False)
    for x, y in train_loader if phase == "train" else valid_loader:
        out, _ = net(x.cuda())
        loss = (out - y.cuda()).pow(2).mean()
        if phase == "train":
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


for _ in range(100):
    epoch("train")
    epoch("valid")
