"""Memory that grows with --bs."""
import sys

import torch

rows = int(sys.argv[sys.argv.index("--bs") + 1])
weight = torch.zeros(1024, 1024, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(3):
    x = torch.zeros(rows, 4096, 1024, device="cuda")
    loss = (x @ weight).tanh().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
