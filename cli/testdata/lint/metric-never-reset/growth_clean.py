"""The same without growth."""

import gc

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchmetrics import AUROC

gc.disable()
torch.cuda.memory._record_memory_history(max_entries=100000)


class Net(L.LightningModule):
    """Lightning resets a metric that is logged as an object."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 2)
        self.auroc = AUROC(task="binary")

    def validation_step(self, batch, i):
        x, y = batch
        self.auroc.update(self.net(x), y)
        self.log("auroc", self.auroc)
        print(self.auroc.compute())


def once(model, loader):
    """A metric that is made anew for each evaluation."""
    score = AUROC(task="binary")
    for x, y in loader:
        score.update(model(x), y)
    return score.compute()


def train(dataset, epochs):
    model = nn.Linear(8, 2)
    fast = torch.compile(model)
    loader = DataLoader(dataset, num_workers=2, persistent_workers=True)
    opt = torch.optim.SGD(model.parameters(), 0.1)
    for epoch in range(epochs):
        for x, y in loader:
            opt.zero_grad()
            nn.functional.cross_entropy(fast(x), y).backward()
            opt.step()
        gc.collect()
    for size in (8, 16):
        small = torch.compile(nn.Linear(size, size))
        small(torch.rand(size)).sum().backward()
