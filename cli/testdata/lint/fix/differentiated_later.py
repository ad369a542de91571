"""A sum that the caller differentiates: without its graph the training is another. fixes: 0"""
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
inner = torch.optim.SGD(model.parameters(), lr=0.1)
outer = torch.optim.SGD(model.parameters(), lr=0.01)


def adapt(batches):
    total = 0.0
    for x in batches:
        loss = model(x).pow(2).mean()
        loss.backward(retain_graph=True)
        total += loss
    return total


for _ in range(3):
    total = adapt([torch.randn(2, 4) for _ in range(3)])
    total.backward()
    outer.step()
    outer.zero_grad()
print([p.tolist() for p in model.parameters()])
