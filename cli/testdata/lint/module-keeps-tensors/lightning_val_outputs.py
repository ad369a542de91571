import lightning as L
import torch
from torch import nn


class Segmenter(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Conv2d(3, 21, 3, padding=1)
        self.masks = []

    def training_step(self, batch, idx):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def validation_step(self, batch, idx):
        x, y = batch
        logits = self.net(x)
        self.masks.append(logits)  # expect: module-keeps-tensors
        self.log("val_loss", nn.functional.cross_entropy(logits, y))

    def on_train_epoch_end(self):
        self.log("epoch", float(self.current_epoch))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())
