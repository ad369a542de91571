"""LightningModules that keep what their steps make."""
import pytorch_lightning as pl
import torch.nn.functional as F
from peft import prepare_model_for_kbit_training
from torch import nn


class Keeps(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.training_step_outputs, self.validation_step_outputs = [], []
        self.cleared = []

    def forward(self, x):
        return self.layer(x)

    def training_step(self, batch, index):
        x, y = batch
        loss = F.mse_loss(self(x), y)
        self.training_step_outputs.append(loss)  # expect: module-keeps-tensors
        return loss

    def validation_step(self, batch, index):
        x, y = batch
        out = self(x)
        self.validation_step_outputs.append(out)  # expect: module-keeps-tensors
        self.cleared.append(out)

    def on_train_epoch_end(self):
        self.training_step_outputs.clear()
        self.cleared.clear()


class Returns(pl.LightningModule):
    def training_step(self, batch, index):
        x, y = batch
        out = self(x)
        return {"loss": F.mse_loss(out, y), "out": out}  # expect: lightning-keeps-step-outputs

    def training_epoch_end(self, outputs):
        print(len(outputs))


class Right(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.losses = []

    def training_step(self, batch, index):
        x, y = batch
        loss = F.mse_loss(self.layer(x), y)
        self.losses.append(loss.item())
        return {"loss": loss, "n": len(x)}

    def training_epoch_end(self, outputs):
        self.losses = []


def quantized(model):
    return prepare_model_for_kbit_training(model)  # expect: kbit-upcast
