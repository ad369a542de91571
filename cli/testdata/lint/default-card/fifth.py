"""The model goes to card 3, the batches to the current one."""

import torch
from torchvision.models import resnet18

model = resnet18().cuda(3)
optimizer = torch.optim.SGD(model.parameters(), 0.1)


def train(loader):
    for x, y in loader:
        x, y = x.cuda(), y.cuda()  # expect: default-card
        loss = torch.nn.functional.cross_entropy(model(x.to(3)), y.to(3))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
