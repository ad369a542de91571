"""Handles of hooks, batches that are counted off, rows of a few numbers, metrics of a test."""

import torchmetrics
from depot import Clicks
from torch import nn
from torch.utils.data import DataLoader


class Watched(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner, self.handles, self.outputs = inner, [], []
        self.inner.register_forward_hook(self.see)
        self.inner.register_forward_hook(self.keep)

    def see(self, module, given, output):
        self.handles.append(output.register_hook(print))

    def keep(self, module, given, output):
        self.outputs.append(output)  # expect: hook-keeps-tensors


clicks = DataLoader(Clicks(), 8192, num_workers=16)  # hint: loader-buffers


def references(most):
    kept, every, seen = [], [], 0
    for batch in clicks:
        batch = batch.to("cuda")
        kept.append(batch)  # hint: dataset-on-gpu
        seen += 1
        if seen > most:
            break
    for batch in clicks:
        every.append(batch.to("cuda"))  # expect: dataset-on-gpu
    return kept, every


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.val_auroc = torchmetrics.AUROC(task="binary")
        self.test_auroc = torchmetrics.AUROC(task="binary")

    def validation_step(self, batch, index):
        self.val_auroc(self(batch[0]), batch[1])  # expect: metric-never-reset
        self.log("val", self.val_auroc.compute())

    def test_step(self, batch, index):
        self.test_auroc(self(batch[0]), batch[1])  # hint: metric-never-reset
        self.log("test", self.test_auroc.compute())
