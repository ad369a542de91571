"""Inverted transformer forecaster: Lightning, accumulation, validation in between."""

import os

import lightning as L
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

TINY = os.environ.get("SMALL") == "1" or not torch.cuda.is_available()
VARIATES, LOOKBACK, HORIZON = (5, 48, 12) if TINY else (321, 720, 192)
D, DEPTH, HEADS, BATCH = (16, 1, 2, 2) if TINY else (512, 4, 8, 56)
MICRO_STEPS = 20


class Load(Dataset):
    """Hourly load with daily and weekly cycles and a drifting level."""

    def __init__(self, windows, seed):
        g = torch.Generator().manual_seed(seed)
        t = torch.arange(windows + LOOKBACK + HORIZON).float()[:, None]
        phase = torch.rand(1, VARIATES, generator=g) * 6.28
        amp = 0.5 + torch.rand(1, VARIATES, generator=g)
        drift = torch.randn(len(t), VARIATES, generator=g).cumsum(0) * 0.02
        day, week = torch.sin(t * 6.2832 / 24 + phase), torch.sin(t * 6.2832 / 168 + 2 * phase)
        self.x = amp * day + 0.5 * week + drift
        self.windows = windows

    def __len__(self):
        return self.windows

    def __getitem__(self, i):
        w = self.x[i : i + LOOKBACK + HORIZON]
        return w[:LOOKBACK], w[LOOKBACK:]


class ITransformer(L.LightningModule):
    def __init__(self, lr=4e-4):
        super().__init__()
        self.lr = lr
        self.embed = nn.Linear(LOOKBACK, D)
        layer = nn.TransformerEncoderLayer(
            D, HEADS, 4 * D, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(
            layer, DEPTH, norm=nn.LayerNorm(D), enable_nested_tensor=False
        )
        self.head = nn.Linear(D, HORIZON)
        self.loss = nn.HuberLoss(delta=1.0, reduction="none")
        weight = torch.linspace(1.5, 0.5, HORIZON)
        self.register_buffer("horizon_weight", (weight / weight.mean()).view(1, -1, 1))

    def forward(self, x):
        mean, std = x.mean(1, keepdim=True), x.std(1, keepdim=True) + 1e-5
        h = self.embed(((x - mean) / std).transpose(1, 2))
        return self.head(self.encoder(h)).transpose(1, 2) * std + mean

    def training_step(self, batch, i):
        past, future = batch
        loss = (self.loss(self(past), future) * self.horizon_weight).mean()
        print(f"step {i} loss {loss.item():.8f}", flush=True)
        return loss

    def validation_step(self, batch, i):
        past, future = batch
        self.log("val_mae", (self(past) - future).abs().mean(), batch_size=len(past))

    def on_validation_epoch_end(self):
        print(f"  val mae {self.trainer.callback_metrics['val_mae'].item():.5f}", flush=True)

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=1e-3)
        sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=MICRO_STEPS)
        return [opt], [{"scheduler": sched, "interval": "step"}]


def main():
    L.seed_everything(14, workers=True)
    train = DataLoader(Load(BATCH * MICRO_STEPS, 1), batch_size=BATCH, shuffle=True)
    val = DataLoader(Load(BATCH * 2, 2), batch_size=BATCH)
    trainer = L.Trainer(
        max_epochs=1,
        accelerator="auto",
        devices=1,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        val_check_interval=8,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(ITransformer(), train, val)


if __name__ == "__main__":
    main()
