"""Lists in a dict that is begun anew as a whole, and one that nobody empties."""

import torch
from lightning import LightningModule
from torch import nn


class Begun(LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net, self.loss_fn = net, nn.CrossEntropyLoss()
        self.seen = {"loss": [], "outputs": []}

    def validation_step(self, batch, batch_idx):
        x, y = batch
        outputs = self.net(x)
        self.seen["loss"].append(self.loss_fn(outputs, y))
        self.seen["outputs"].append(outputs)

    def on_validation_epoch_end(self):
        self.log("loss", torch.stack(self.seen["loss"]).mean())
        self.seen = {"loss": [], "outputs": []}


class Kept(LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net, self.loss_fn = net, nn.CrossEntropyLoss()
        self.shown = {"loss": [], "outputs": []}

    def validation_step(self, batch, batch_idx):
        x, y = batch
        outputs = self.net(x)
        self.shown["outputs"].append(outputs)  # expect: module-keeps-tensors

    def on_validation_epoch_end(self):
        self.log("mean", torch.cat(self.shown["outputs"]).mean())
