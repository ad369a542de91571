"""Gradients that are read after they were zeroed. fixes: 0"""
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    model.zero_grad(False)
    print(sum(p.grad.norm().item() for p in model.parameters()))
