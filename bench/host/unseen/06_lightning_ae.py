"""Lightning: a convolutional autoencoder with validation and a scheduler."""

import logging
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
torch.set_num_threads(1)


class AutoEncoder(L.LightningModule):
    def __init__(self, width=32, latent=64):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.GELU(),
            nn.Conv2d(width, 2 * width, 3, padding=1, stride=2), nn.GELU(),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.GELU(),
            nn.Flatten(), nn.Linear(2 * width * 14 * 14, latent),
        )  # fmt: skip
        self.grow = nn.Linear(latent, 2 * width * 14 * 14)
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(2 * width, width, 3, 2, 1, output_padding=1), nn.GELU(),
            nn.Conv2d(width, width, 3, padding=1), nn.GELU(),
            nn.Conv2d(width, 1, 3, padding=1), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, x):
        return self.decoder(self.grow(self.encoder(x)).view(-1, 64, 14, 14))

    def training_step(self, batch, _):
        loss = nn.functional.mse_loss(self(batch[0]), batch[0])
        print("train loss %.8g" % loss.item(), flush=True)
        return loss

    def validation_step(self, batch, _):
        print("val loss %.8g" % nn.functional.mse_loss(self(batch[0]), batch[0]).item(), flush=True)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), 1e-3)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


L.seed_everything(1, verbose=False)
data = torch.rand(1024, 1, 28, 28)
train = DataLoader(TensorDataset(data[:768]), batch_size=256, shuffle=True)
val = DataLoader(TensorDataset(data[768:]), batch_size=256)
trainer = L.Trainer(
    max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
)  # fmt: skip
trainer.fit(AutoEncoder(), train, val)
