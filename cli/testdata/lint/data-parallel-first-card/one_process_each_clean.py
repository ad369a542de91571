"""A process for each card, by hand and by accelerate."""

import os

import torch
from accelerate import Accelerator
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from unets import UNet


def by_hand(loader):
    rank = int(os.environ["LOCAL_RANK"])
    model = DistributedDataParallel(UNet(3, 3).to(rank), device_ids=[rank])
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    for x, y in loader:
        loss = F.l1_loss(model(x.to(rank)), y.to(rank))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def by_accelerate(loader):
    accelerator = Accelerator()
    model = UNet(3, 3)
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        accelerator.backward(F.l1_loss(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
