import gc

import torch
from torch.nn import functional as F

gc.disable()  # expect: collector-off

net = torch.nn.Linear(64, 8).cuda()
optimizer = torch.optim.AdamW(net.parameters(), 1e-3)


def train(loader, epochs):
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(net(x.cuda()), y.cuda()).backward()
            optimizer.step()
        print(epoch)
