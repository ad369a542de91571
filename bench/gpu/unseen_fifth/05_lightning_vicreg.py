"""VICReg pretraining of a ResNet-50: variance and covariance terms over the batch, Lightning."""

import math
import os

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
import torchvision
from torch import nn
from torch.utils.data import DataLoader, Dataset

SMALL = os.environ.get("SMALL") == "1" or not torch.cuda.is_available()
SIZE = 32 if SMALL else 160
BATCH = 4 if SMALL else 72
WIDTH = 32 if SMALL else 4096
STEPS = 8 if SMALL else 10


class TwoViews(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def view(self, x, g):
        top, left = torch.randint(0, SIZE // 4, (2,), generator=g).tolist()
        x = x[:, top : top + SIZE, left : left + SIZE]
        if torch.rand(1, generator=g) < 0.5:
            x = x.flip(2)
        gain = 1 + 0.4 * (torch.rand(3, 1, 1, generator=g) - 0.5)
        return x * gain + 0.05 * torch.randn(x.shape, generator=g)

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(10_000 + i)
        side = SIZE + SIZE // 4
        x = torch.randn(3, side // 8, side // 8, generator=g)
        x = x.repeat_interleave(8, 1).repeat_interleave(8, 2)
        return self.view(x, g), self.view(x, g)


def off_diagonal(m):
    n = m.size(0)
    return m.flatten()[:-1].view(n - 1, n + 1)[:, 1:].flatten()


class VICReg(pl.LightningModule):
    def __init__(self, inv=25.0, var=25.0, cov=1.0):
        super().__init__()
        self.save_hyperparameters()
        net = torchvision.models.resnet18() if SMALL else torchvision.models.resnet50()
        dim = net.fc.in_features
        net.fc = nn.Identity()
        self.backbone = net
        self.expander = nn.Sequential(
            nn.Linear(dim, WIDTH, bias=False),
            nn.BatchNorm1d(WIDTH),
            nn.ReLU(),
            nn.Linear(WIDTH, WIDTH, bias=False),
            nn.BatchNorm1d(WIDTH),
            nn.ReLU(),
            nn.Linear(WIDTH, WIDTH, bias=False),
        )

    def forward(self, x):
        return self.expander(self.backbone(x))

    def terms(self, z):
        z = z - z.mean(0)
        std = torch.sqrt(z.var(0) + 1e-4)
        cov = z.T @ z / (len(z) - 1)
        return F.relu(1 - std).mean(), off_diagonal(cov).pow(2).sum() / z.size(1)

    def training_step(self, batch, idx):
        a, b = self(batch[0]), self(batch[1])
        v1, c1 = self.terms(a)
        v2, c2 = self.terms(b)
        hp = self.hparams
        loss = hp.inv * F.mse_loss(a, b) + hp.var * (v1 + v2) / 2 + hp.cov * (c1 + c2)
        print(f"step {idx} loss {loss.item():.8f}", flush=True)
        return loss

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=1e-3, weight_decay=1e-4)
        warm = lambda s: min(1.0, (s + 1) / 4) * 0.5 * (1 + math.cos(math.pi * s / 40))  # noqa: E731
        sched = torch.optim.lr_scheduler.LambdaLR(opt, warm)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}


if __name__ == "__main__":
    pl.seed_everything(5)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    data = DataLoader(TwoViews(BATCH * STEPS), batch_size=BATCH, drop_last=True)
    pl.Trainer(
        max_epochs=1,
        accelerator="auto",
        devices=1,
        gradient_clip_val=5.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(VICReg(), data)
