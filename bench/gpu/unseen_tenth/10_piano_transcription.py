"""Piano transcription (onsets, offsets, frames, velocity) with Lightning in fp16."""

import logging
import warnings

import lightning.pytorch as pl
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

FULL = torch.cuda.is_available()
MELS, FRAMES, PITCHES = (229, 640, 88) if FULL else (40, 32, 12)
COMPLEXITY, BATCH, STEPS = (48, 16, 12) if FULL else (8, 2, 8)


class SyntheticPiano(Dataset):
    """Piano rolls and a spectrogram in which every pitch has its own few harmonics."""

    def __init__(self, n, seed):
        self.n, self.seed = n, seed
        self.profile = torch.zeros(PITCHES, MELS)
        for p in range(PITCHES):
            for k in range(1, 5):
                bin_ = int((p + 12 * (k - 1) ** 0.7) / (PITCHES + 30) * MELS)
                self.profile[p, min(bin_, MELS - 1)] += 1.0 / k

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed + i)
        onset, offset = torch.zeros(FRAMES, PITCHES), torch.zeros(FRAMES, PITCHES)
        frame, velocity = torch.zeros(FRAMES, PITCHES), torch.zeros(FRAMES, PITCHES)
        count = FRAMES // 4
        start = torch.randint(0, FRAMES - 4, (count,), generator=g).tolist()
        pitch = torch.randint(0, PITCHES, (count,), generator=g).tolist()
        length = torch.randint(2, 30, (count,), generator=g).tolist()
        loud = torch.rand(count, generator=g).tolist()
        for s, p, n, v in zip(start, pitch, length, loud, strict=True):
            e = min(s + n, FRAMES - 1)
            onset[s : s + 2, p], offset[e, p], frame[s:e, p], velocity[s : s + 2, p] = 1, 1, 1, v
        mel = frame @ self.profile + 2 * onset @ self.profile
        mel = torch.log(mel + 1e-2) + 0.1 * torch.randn(FRAMES, MELS, generator=g)
        return {"mel": mel, "onset": onset, "offset": offset, "frame": frame, "velocity": velocity}


class ConvStack(nn.Module):
    def __init__(self, out):
        super().__init__()
        c = COMPLEXITY
        self.cnn = nn.Sequential(
            nn.Conv2d(1, c, 3, padding=1),
            nn.BatchNorm2d(c),
            nn.ReLU(),
            nn.Conv2d(c, c, 3, padding=1),
            nn.BatchNorm2d(c),
            nn.ReLU(),
            nn.MaxPool2d((1, 2)),
            nn.Dropout(0.25),
            nn.Conv2d(c, 2 * c, 3, padding=1),
            nn.BatchNorm2d(2 * c),
            nn.ReLU(),
            nn.MaxPool2d((1, 2)),
            nn.Dropout(0.25),
        )
        self.fc = nn.Sequential(nn.Linear(2 * c * (MELS // 4), out), nn.Dropout(0.5))

    def forward(self, mel):
        x = self.cnn(mel.unsqueeze(1))
        return self.fc(x.transpose(1, 2).flatten(2))


class OnsetsAndFrames(nn.Module):
    def __init__(self):
        super().__init__()
        size = COMPLEXITY * 8
        self.onset_stack, self.offset_stack = ConvStack(size), ConvStack(size)
        self.frame_stack, self.velocity_stack = ConvStack(size), ConvStack(size)
        self.onset_rnn = nn.LSTM(size, size // 2, batch_first=True, bidirectional=True)
        self.offset_rnn = nn.LSTM(size, size // 2, batch_first=True, bidirectional=True)
        self.onset_out, self.offset_out = nn.Linear(size, PITCHES), nn.Linear(size, PITCHES)
        self.frame_out, self.velocity_out = nn.Linear(size, PITCHES), nn.Linear(size, PITCHES)
        self.join = nn.LSTM(3 * PITCHES, size // 2, batch_first=True, bidirectional=True)
        self.joined_out = nn.Linear(size, PITCHES)

    def forward(self, mel):
        onset = self.onset_out(self.onset_rnn(self.onset_stack(mel))[0])
        offset = self.offset_out(self.offset_rnn(self.offset_stack(mel))[0])
        activation = self.frame_out(self.frame_stack(mel))
        joined = torch.cat(
            [onset.sigmoid().detach(), offset.sigmoid().detach(), activation.sigmoid()], -1
        )
        frame = self.joined_out(self.join(joined)[0])
        return onset, offset, frame, self.velocity_out(self.velocity_stack(mel))


class Transcriber(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = OnsetsAndFrames()
        self.history = []

    def losses(self, batch):
        onset, offset, frame, velocity = self.net(batch["mel"])
        heads = {
            "onset": F.binary_cross_entropy_with_logits(onset, batch["onset"]),
            "offset": F.binary_cross_entropy_with_logits(offset, batch["offset"]),
            "frame": F.binary_cross_entropy_with_logits(frame, batch["frame"]),
        }
        mask = batch["onset"]
        heads["velocity"] = (mask * (velocity - batch["velocity"]) ** 2).sum() / mask.sum()
        return heads, frame

    def training_step(self, batch, _):
        heads, _ = self.losses(batch)
        loss = sum(heads.values())
        self.history.append(loss.detach())
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        print(f"step {self.global_step} loss {self.history[-1].item():.6f}", flush=True)

    def validation_step(self, batch, _):
        _, frame = self.losses(batch)
        guess, truth = frame > 0, batch["frame"] > 0
        f1 = 2 * (guess & truth).sum() / (guess.sum() + truth.sum()).clamp(min=1)
        print(f"  frame f1 {f1.item():.4f}")

    def configure_optimizers(self):
        opt = torch.optim.Adam(self.parameters(), lr=6e-4)
        sched = torch.optim.lr_scheduler.StepLR(opt, step_size=10, gamma=0.98)
        return [opt], [{"scheduler": sched, "interval": "step"}]


def main():
    pl.seed_everything(1988, verbose=False)
    train = DataLoader(SyntheticPiano(BATCH * STEPS, 0), BATCH, shuffle=True)
    valid = DataLoader(SyntheticPiano(BATCH, 10**6), BATCH)
    trainer = pl.Trainer(
        max_steps=STEPS,
        accelerator="gpu" if FULL else "cpu",
        devices=1,
        precision="16-mixed" if FULL else "32-true",
        gradient_clip_val=3.0,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Transcriber(), train, valid)


if __name__ == "__main__":
    main()
