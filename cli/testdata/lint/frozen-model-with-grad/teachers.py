"""A teacher that is only asked needs no graph."""

import torch
import torchvision
from torch import nn

teacher = torchvision.models.resnet50(weights="DEFAULT").cuda().eval()
student = torchvision.models.resnet18().cuda()
opt = torch.optim.SGD(student.parameters(), lr=0.1)


def soft(loader):
    for step, (x, _) in enumerate(loader):
        target = teacher(x.cuda()).softmax(-1)  # expect: frozen-model-with-grad
        loss = nn.functional.cross_entropy(student(x.cuda()), target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(step, loss.item())


def inferred(loader):
    for x, _ in loader:
        with torch.inference_mode():
            target = teacher(x.cuda()).softmax(-1)
        loss = nn.functional.cross_entropy(student(x.cuda()), target)
        opt.zero_grad()
        loss.backward()
        opt.step()


def alone(loader):
    for x, y in loader:
        loss = nn.functional.cross_entropy(student(x.cuda()), y.cuda())
        opt.zero_grad()
        loss.backward()
        opt.step()
