"""Lightning's DDP strategy over two processes that it starts itself."""

import logging
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
for name in ("lightning.pytorch", "lightning.fabric"):
    logging.getLogger(name).setLevel(logging.ERROR)
torch.set_num_threads(1)


class Denoiser(L.LightningModule):
    def __init__(self, c=32):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, c, 3, padding=1))
        for _ in range(5):
            self.body.append(
                nn.Sequential(nn.GroupNorm(4, c), nn.SiLU(), nn.Conv2d(c, c, 3, padding=1))
            )
        self.body.append(nn.Conv2d(c, 3, 3, padding=1))

    def training_step(self, batch, index):
        (x,) = batch
        noisy = x + 0.1 * torch.sin(37 * x)
        loss = nn.functional.mse_loss(noisy - self.body(noisy), x)
        if self.global_rank == 0:
            print("step %d loss %.8g" % (index, loss.item()), flush=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-3)


if __name__ == "__main__":
    L.seed_everything(5, verbose=False)
    data = DataLoader(TensorDataset(torch.rand(192, 3, 48, 48)), batch_size=32, shuffle=True)
    L.Trainer(
        max_epochs=1,
        accelerator="cpu",
        strategy="ddp",
        devices=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(Denoiser(), data)
