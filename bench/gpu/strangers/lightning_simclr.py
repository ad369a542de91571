"""SimCLR in Lightning: two views in one batch, NT-Xent in training_step, ResNet with BatchNorm,
LARS-like exclusion of parameters, cosine per step.
"""

# tiny: --batch 8 --side 32 --arch resnet18 --dim 16
import argparse
import math
import warnings

import lightning.pytorch as pl
import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")


class Views(Dataset):
    def __init__(self, n, side):
        self.n, self.side = n, side

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        base = torch.rand(3, self.side, self.side, generator=g)
        return [
            base + 0.1 * torch.randn(base.shape, generator=g),
            base.flip(-1) + 0.1 * torch.randn(base.shape, generator=g),
        ], i % 10


class SimCLR(pl.LightningModule):
    def __init__(self, arch, hidden_dim, lr, temperature, weight_decay, max_steps):
        super().__init__()
        self.save_hyperparameters()
        self.convnet = getattr(torchvision.models, arch)(num_classes=4 * hidden_dim)
        self.convnet.fc = nn.Sequential(
            self.convnet.fc, nn.ReLU(inplace=True), nn.Linear(4 * hidden_dim, hidden_dim)
        )

    def configure_optimizers(self):
        decay = [p for n, p in self.named_parameters() if p.ndim > 1]
        rest = [p for n, p in self.named_parameters() if p.ndim <= 1]
        opt = torch.optim.AdamW(
            [
                {"params": decay, "weight_decay": self.hparams.weight_decay},
                {"params": rest, "weight_decay": 0.0},
            ],
            lr=self.hparams.lr,
        )
        sched = torch.optim.lr_scheduler.LambdaLR(
            opt, lambda s: 0.5 * (1 + math.cos(math.pi * s / self.hparams.max_steps))
        )
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}

    def info_nce_loss(self, batch, mode="train"):
        imgs, _ = batch
        imgs = torch.cat(imgs, dim=0)
        feats = self.convnet(imgs)
        cos_sim = F.cosine_similarity(feats[:, None, :], feats[None, :, :], dim=-1)
        self_mask = torch.eye(cos_sim.shape[0], dtype=torch.bool, device=cos_sim.device)
        cos_sim.masked_fill_(self_mask, -9e15)
        pos_mask = self_mask.roll(shifts=cos_sim.shape[0] // 2, dims=0)
        cos_sim = cos_sim / self.hparams.temperature
        nll = (-cos_sim[pos_mask] + torch.logsumexp(cos_sim, dim=-1)).mean()
        self.log(mode + "_loss", nll)
        return nll

    def training_step(self, batch, batch_idx):
        loss = self.info_nce_loss(batch)
        print(f"step {self.global_step} loss {loss.item():.6f}", flush=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.info_nce_loss(batch, mode="val")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--batch", type=int, default=96)
    p.add_argument("--side", type=int, default=128)
    p.add_argument("--arch", default="resnet50")
    p.add_argument("--dim", type=int, default=128)
    a = p.parse_args()
    pl.seed_everything(42, verbose=False)
    model = SimCLR(a.arch, a.dim, lr=5e-5, temperature=0.5, weight_decay=1e-4, max_steps=20)
    train = DataLoader(
        Views(20 * a.batch, a.side), batch_size=a.batch, shuffle=True, drop_last=True
    )
    val = DataLoader(Views(2 * a.batch, a.side), batch_size=a.batch, drop_last=True)
    trainer = pl.Trainer(
        accelerator="auto",
        devices=1,
        max_steps=20,
        val_check_interval=10,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, train, val)


if __name__ == "__main__":
    main()
