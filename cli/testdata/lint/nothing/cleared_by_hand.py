"""Gradients cleared by hand, without zero_grad."""
import torch
from torch import nn

model = nn.Linear(8, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)

for step in range(10):
    loss = model(torch.randn(4, 8)).sum()
    loss.backward()
    opt.step()
    for p in model.parameters():
        p.grad = None
