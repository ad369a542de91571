"""Probabilistic forecasting, DeepAR style (LSTM with a Student-t output), in Lightning."""

import logging
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
GPU = torch.cuda.is_available()
CONTEXT, HORIZON = (192, 24) if GPU else (20, 4)
SERIES = 8192 if GPU else 24
BATCH = 1024 if GPU else 8
HIDDEN = 256 if GPU else 8


def make_series(n, seed):
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(CONTEXT + HORIZON + 1, dtype=torch.float32)
    level = torch.exp(torch.randn(n, 1, generator=g))
    phase = 24 * torch.rand(n, 1, generator=g)
    wave = 1.5 + torch.sin(2 * torch.pi * (t + phase) / 24) + 0.3 * torch.sin(t / 80)
    y = level * wave + 0.1 * level * torch.randn(n, len(t), generator=g)
    hour = ((t + phase) % 24).long()
    return TensorDataset(y, hour, torch.arange(n) % 50)


class DeepAR(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.hour = nn.Embedding(24, 8)
        self.group = nn.Embedding(50, 16)
        self.rnn = nn.LSTM(1 + 8 + 16, HIDDEN, num_layers=3, batch_first=True)
        self.head = nn.Linear(HIDDEN, 3)

    def forward(self, y, hour, group):
        scale = y[:, :CONTEXT].abs().mean(1, keepdim=True) + 1e-3
        z = y / scale
        g = self.group(group).unsqueeze(1).expand(-1, z.shape[1] - 1, -1)
        x = torch.cat([z[:, :-1, None], self.hour(hour[:, 1:]), g], -1)
        loc, width, df = self.head(self.rnn(x)[0]).unbind(-1)
        width = nn.functional.softplus(width) + 1e-3
        df = 2 + nn.functional.softplus(df)
        dist = torch.distributions.StudentT(df, loc, width, validate_args=False)
        return dist, z[:, 1:]

    def training_step(self, batch, i):
        dist, z = self(*batch)
        loss = -dist.log_prob(z).mean()
        print(f"epoch {self.current_epoch} batch {i} loss {loss.item():.6f}", flush=True)
        return loss

    def validation_step(self, batch, i):
        dist, z = self(*batch)
        err = (dist.loc - z)[:, -HORIZON:].abs().mean()
        self.log("mae", err, prog_bar=False)
        loss = -dist.log_prob(z)[:, -HORIZON:].mean()
        print(f"validation batch {i} loss {loss.item():.6f} mae {err.item():.5f}", flush=True)

    def configure_optimizers(self):
        opt = torch.optim.Adam(self.parameters(), lr=2e-3)
        return [opt], [torch.optim.lr_scheduler.ExponentialLR(opt, gamma=0.8)]


def main():
    L.seed_everything(14)
    train = DataLoader(make_series(SERIES, 1), batch_size=BATCH, shuffle=True, pin_memory=GPU)
    val = DataLoader(make_series(BATCH * 2, 2), batch_size=BATCH)
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="gpu" if GPU else "cpu",
        devices=1,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(DeepAR(), train, val)


if __name__ == "__main__":
    main()
