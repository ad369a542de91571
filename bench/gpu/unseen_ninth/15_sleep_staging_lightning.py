"""Sleep staging from two-channel EEG with a residual 1-D CNN and a GRU over epochs (Lightning)."""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

device = "cuda" if torch.cuda.is_available() else "cpu"
L.seed_everything(123)

if device == "cpu":
    hp = dict(samples=300, epochs=5, batch=2, width=8, steps=8)
else:
    hp = dict(samples=3000, epochs=20, batch=40, width=64, steps=12)

STAGES = 5
BANDS = torch.tensor([20.0, 8.0, 13.0, 1.5, 6.0])  # dominant frequency per stage, in Hz


class Nights(Dataset):
    """A random walk over the stages; each 30-second epoch oscillates in the stage's band."""

    def __init__(self, size, offset=0):
        self.size, self.offset = size, offset

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.offset + i)
        moves = torch.randint(-1, 2, (hp["epochs"],), generator=g)
        stages = (moves.cumsum(0) + torch.randint(0, STAGES, (1,), generator=g)) % STAGES
        t = torch.arange(hp["samples"]) / 100.0
        phase = torch.rand(hp["epochs"], 2, 1, generator=g) * 6.28
        wave = torch.sin(2 * torch.pi * BANDS[stages][:, None, None] * t + phase)
        return wave + torch.randn(wave.shape, generator=g), stages


class ResBlock(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv1d(cin, cout, 7, stride, 3, bias=False)
        self.bn1 = nn.BatchNorm1d(cout)
        self.conv2 = nn.Conv1d(cout, cout, 7, 1, 3, bias=False)
        self.bn2 = nn.BatchNorm1d(cout)
        self.drop = nn.Dropout(0.1)
        self.skip = nn.Conv1d(cin, cout, 1, stride, bias=False)

    def forward(self, x):
        y = self.drop(F.relu(self.bn1(self.conv1(x))))
        return F.relu(self.bn2(self.conv2(y)) + self.skip(x))


class SleepStager(L.LightningModule):
    def __init__(self, width, steps, **_):
        super().__init__()
        self.save_hyperparameters()
        self.encoder = nn.Sequential(
            nn.Conv1d(2, width, 25, stride=2, padding=12, bias=False),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            ResBlock(width, 2 * width, 2),
            ResBlock(2 * width, 2 * width, 2),
            ResBlock(2 * width, 4 * width, 4),
            ResBlock(4 * width, 4 * width, 4),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
        )
        self.context = nn.GRU(4 * width, 2 * width, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(4 * width, STAGES)
        self.register_buffer("class_weight", torch.tensor([1.0, 1.5, 0.8, 1.2, 1.0]))

    def forward(self, x):
        n, e = x.shape[:2]
        features = self.encoder(x.flatten(0, 1)).view(n, e, -1)
        return self.head(self.context(features)[0])

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        loss = F.cross_entropy(
            logits.flatten(0, 1), y.flatten(), weight=self.class_weight, label_smoothing=0.05
        )
        print(f"step {self.global_step} loss {loss.item():.6f}", flush=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_acc", (self(x).argmax(-1) == y).float().mean(), batch_size=len(x))

    def on_validation_epoch_end(self):
        print(f"  validation accuracy {self.trainer.callback_metrics['val_acc']:.3f}")

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3, weight_decay=1e-2)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, 2e-3, total_steps=self.hparams.steps + 1
        )
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


def main():
    half = hp["steps"] // 2
    train = DataLoader(Nights(hp["batch"] * half), batch_size=hp["batch"], shuffle=True)
    val = DataLoader(Nights(hp["batch"], offset=10**6), batch_size=hp["batch"])
    trainer = L.Trainer(
        accelerator="gpu" if device == "cuda" else "cpu",
        devices=1,
        max_epochs=2,
        gradient_clip_val=1.0,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(SleepStager(**hp), train, val)


if __name__ == "__main__":
    main()
