"""Batches are made on the host and moved between the steps; the old one lives until the new one is there."""
import torch
from torch import nn

model = nn.Linear(256, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
for _ in range(1000):
    batch = torch.randn(64, 100_000).cuda()
    loss = model(batch[:, :256]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
