"""PatchTST-like long-horizon forecaster as a LightningModule (electricity-style data)."""

import logging
import tempfile

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CUDA = torch.cuda.is_available()
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

HP = dict(
    channels=321 if CUDA else 4,
    lookback=512 if CUDA else 64,
    horizon=96 if CUDA else 16,
    patch=16,
    stride=8,
    d_model=128 if CUDA else 16,
    heads=8 if CUDA else 2,
    layers=3 if CUDA else 1,
    batch=16 if CUDA else 2,
    lr=5e-4,
)


class Electricity(Dataset):
    def __init__(self, hp, windows, seed):
        g = torch.Generator().manual_seed(seed)
        length = hp["lookback"] + hp["horizon"] + windows
        t = torch.arange(length).float()[:, None]
        period = torch.tensor([24.0, 168.0])[torch.randint(0, 2, (hp["channels"],), generator=g)]
        phase = 6.28 * torch.rand(hp["channels"], generator=g)
        noise = 0.5 * torch.randn(length, hp["channels"], generator=g)
        self.x = torch.sin(6.28 * t / period + phase) + noise
        self.hp, self.windows = hp, windows

    def __len__(self):
        return self.windows

    def __getitem__(self, i):
        mid = i + self.hp["lookback"]
        return self.x[i:mid], self.x[mid : mid + self.hp["horizon"]]


class PatchTST(nn.Module):
    def __init__(self, hp):
        super().__init__()
        self.hp = hp
        n_patch = (hp["lookback"] - hp["patch"]) // hp["stride"] + 1
        self.embed = nn.Linear(hp["patch"], hp["d_model"])
        self.pos = nn.Parameter(0.02 * torch.randn(n_patch, hp["d_model"]))
        layer = nn.TransformerEncoderLayer(
            hp["d_model"],
            hp["heads"],
            2 * hp["d_model"],
            dropout=0.0,
            activation="gelu",
            batch_first=True,
        )
        self.encoder = nn.TransformerEncoder(layer, hp["layers"])
        self.head = nn.Linear(n_patch * hp["d_model"], hp["horizon"])

    def forward(self, x):
        mu = x.mean(1, keepdim=True)
        sd = x.std(1, keepdim=True) + 1e-5
        z = ((x - mu) / sd).transpose(1, 2)
        b, c, _ = z.shape
        z = z.unfold(-1, self.hp["patch"], self.hp["stride"]).flatten(0, 1)
        z = self.encoder(self.embed(z) + self.pos)
        y = self.head(z.flatten(1)).view(b, c, -1).transpose(1, 2)
        return y * sd + mu


class Forecaster(L.LightningModule):
    def __init__(self, hp):
        super().__init__()
        self.save_hyperparameters()
        self.net = PatchTST(hp)
        self.criterion = nn.MSELoss()

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = self.criterion(self.net(x), y)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_mae", (self.net(x) - y).abs().mean(), prog_bar=False)

    def configure_optimizers(self):
        opt = torch.optim.Adam(self.parameters(), lr=self.hparams.hp["lr"])
        total = self.trainer.estimated_stepping_batches
        sch = torch.optim.lr_scheduler.OneCycleLR(opt, self.hparams.hp["lr"], total_steps=total)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sch, "interval": "step"}}


class Printer(L.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        print(f"step {trainer.global_step} loss {outputs['loss'].item():.8f}", flush=True)

    def on_validation_epoch_end(self, trainer, module):
        print("validation mae", float(trainer.callback_metrics["val_mae"]))


def main():
    L.seed_everything(2021, verbose=False)
    steps = 5 if CUDA else 2
    train_set = Electricity(HP, steps * HP["batch"], 0)
    train = DataLoader(train_set, batch_size=HP["batch"], shuffle=True)
    val = DataLoader(Electricity(HP, HP["batch"], 1), batch_size=HP["batch"])
    with tempfile.TemporaryDirectory() as root:
        trainer = L.Trainer(
            max_epochs=2,
            accelerator="gpu" if CUDA else "cpu",
            devices=1,
            gradient_clip_val=1.0,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            num_sanity_val_steps=0,
            default_root_dir=root,
            callbacks=[Printer()],
        )
        trainer.fit(Forecaster(HP), train, val)


if __name__ == "__main__":
    main()
