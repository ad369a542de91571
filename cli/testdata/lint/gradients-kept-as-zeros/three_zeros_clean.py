"""Gradients that are freed, as PyTorch does by default."""

import lightning as L
import torch
from torch.nn import functional as F


def plain(model, optimizer, loader):
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x.cuda()), y.cuda()).backward()
        optimizer.step()


class Manual(L.LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.automatic_optimization = False

    def training_step(self, batch, i):
        x, y = batch
        optimizer = self.optimizers()
        optimizer.zero_grad(set_to_none=True)
        self.manual_backward(F.mse_loss(self.net(x), y))
        optimizer.step()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


def by_switch(model, optimizer, loader, as_none):
    for x, y in loader:
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=as_none)
