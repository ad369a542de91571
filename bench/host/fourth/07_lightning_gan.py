"""A GAN in Lightning with manual optimization, spectral norm in the critic, one network a time."""

import logging
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
for name in ("lightning.pytorch", "lightning.fabric"):
    logging.getLogger(name).setLevel(logging.ERROR)
torch.set_num_threads(1)


def grow(a, b):
    return nn.Sequential(
        nn.Upsample(scale_factor=2), nn.Conv2d(a, b, 3, 1, 1), nn.GroupNorm(8, b), nn.ReLU()
    )


class Gan(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.draw = nn.Sequential(
            nn.Linear(32, 96 * 16), nn.Unflatten(1, (96, 4, 4)), grow(96, 64), grow(64, 48),
            grow(48, 32), nn.Conv2d(32, 3, 3, 1, 1), nn.Tanh(),
        )  # fmt: skip
        self.judge = nn.Sequential(
            spectral_norm(nn.Conv2d(3, 48, 3, 1, 1)), nn.LeakyReLU(0.2),
            spectral_norm(nn.Conv2d(48, 64, 4, 2, 1)), nn.LeakyReLU(0.2),
            spectral_norm(nn.Conv2d(64, 96, 4, 2, 1)), nn.LeakyReLU(0.2),
            nn.Flatten(), spectral_norm(nn.Linear(96 * 64, 1)),
        )  # fmt: skip

    def training_step(self, batch, index):
        (real,) = batch
        first, second = self.optimizers()
        noise = torch.randn(len(real), 32)
        fake = self.draw(noise)
        judged = F.relu(1 - self.judge(real)).mean() + F.relu(1 + self.judge(fake.detach())).mean()
        second.zero_grad()
        self.manual_backward(judged)
        second.step()
        drawn = -self.judge(fake).mean()
        first.zero_grad()
        self.manual_backward(drawn)
        first.step()
        print("%d loss_j %.8g loss_d %.8g" % (index, judged.item(), drawn.item()), flush=True)

    def configure_optimizers(self):
        return (
            torch.optim.Adam(self.draw.parameters(), 2e-4, (0.0, 0.9)),
            torch.optim.Adam(self.judge.parameters(), 2e-4, (0.0, 0.9)),
        )


L.seed_everything(37, verbose=False)
data = DataLoader(TensorDataset(torch.rand(288, 3, 32, 32) * 2 - 1), batch_size=96)
L.Trainer(
    max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
).fit(Gan(), data)  # fmt: skip
