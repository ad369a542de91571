"""What grows beside the tensors of a step."""

import gc

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchmetrics import AUROC, CatMetric, MeanMetric
from torchmetrics.classification import BinaryAUROC

gc.disable()  # expect: collector-off
torch.cuda.memory._record_memory_history()  # expect: memory-history-on
scores = AUROC(task="binary")
mean = MeanMetric()


def evaluate(model, loader):
    with torch.no_grad():
        for x, y in loader:
            scores.update(model(x), y)  # expect: metric-never-reset
            mean.update(x.mean())
    return scores.compute(), mean.compute()


class Judge:
    def __init__(self):
        self.all = CatMetric()
        self.binned = BinaryAUROC(thresholds=200)

    def look(self, batch):
        self.all(batch)  # expect: metric-never-reset
        self.binned.update(batch, batch > 0)
        return self.all.compute(), self.binned.compute()


def train(dataset, epochs):
    for epoch in range(epochs):
        model = nn.Linear(8, 2)
        fast = torch.compile(model)  # expect: compiled-in-loop
        loader = DataLoader(  # expect: workers-in-loop
            dataset, num_workers=2, persistent_workers=True
        )
        opt = torch.optim.SGD(model.parameters(), 0.1)
        for x, y in loader:
            opt.zero_grad()
            nn.functional.cross_entropy(fast(x), y).backward()
            opt.step()
        print(epoch, evaluate(model, loader))
