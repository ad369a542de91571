"""Modules of Lightning 1 whose training_step hands tensors to training_epoch_end."""

import pytorch_lightning as pl
import torch
from torch import nn
from torch.nn import functional as F


class Classifier(pl.LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self.net(x)
        loss = F.cross_entropy(logits, y)
        return {"loss": loss, "logits": logits, "target": y}  # expect: lightning-keeps-step-outputs

    def training_epoch_end(self, outputs):
        right = [(o["logits"].argmax(-1) == o["target"]).float().mean() for o in outputs]
        self.log("train_acc", torch.stack(right).mean())


class Detector(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(64, 4)

    def step(self, batch):
        x, boxes = batch
        found = self.net(x)
        return {  # expect: lightning-keeps-step-outputs
            "loss": F.l1_loss(found, boxes),
            "boxes": found.exp(),
        }

    def training_step(self, batch, batch_idx):
        return self.step(batch)

    def training_epoch_end(self, outputs):
        print(len(outputs), "steps")


class Logged(pl.LightningModule):
    """Numbers and the loss only."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        out = self(x)
        loss = F.mse_loss(out, y)
        return {"loss": loss, "error": (out - y).abs().mean().item()}

    def training_epoch_end(self, outputs):
        self.log("error", sum(o["error"] for o in outputs) / len(outputs))


class OnlyLoss(pl.LightningModule):
    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.mse_loss(self(x), y)

    def training_epoch_end(self, outputs):
        self.log("epoch_loss", torch.stack([o["loss"] for o in outputs]).mean())


class NoEpochEnd(pl.LightningModule):
    """Nothing asks Lightning to keep what the steps return."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        out = self(x)
        return {"loss": F.mse_loss(out, y), "out": out}
