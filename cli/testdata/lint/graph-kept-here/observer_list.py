import torch
import torch.nn.functional as F
from mydata import loader
from torchvision.models import resnet18


class Observable:
    def __init__(self):
        self._subs = []

    def subscribe(self, fn):
        self._subs.append(fn)

    def emit(self, value):
        for fn in self._subs:
            fn(value)


best = {"all": []}


def remember(value):
    best["all"].append(value)  # expect: graph-kept-here


events = Observable()
events.subscribe(remember)
net = resnet18(num_classes=10).to("cuda")
opt = torch.optim.SGD(net.parameters(), 0.1)
for epoch in range(90):
    for img, lab in loader:
        out = net(img.to("cuda"))
        cost = F.cross_entropy(out, lab.to("cuda"))
        opt.zero_grad()
        cost.backward()
        opt.step()
        events.emit(cost)  # expect: graph-kept-in-list
