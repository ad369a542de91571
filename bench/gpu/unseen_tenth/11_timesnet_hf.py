"""Multi-periodicity forecasting (TimesNet) of many series, a custom module in the HF Trainer."""

import math
import tempfile
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, set_seed
from transformers.utils import ModelOutput


@dataclass
class ForecastOutput(ModelOutput):
    loss: torch.Tensor | None = None
    forecast: torch.Tensor | None = None


@dataclass
class Setup:
    history: int = 336
    horizon: int = 96
    channels: int = 21
    d_model: int = 128
    d_ff: int = 128
    layers: int = 3
    top_k: int = 3
    kernels: int = 4
    batch: int = 384
    steps: int = 12


class Inception(nn.Module):
    """Parallel square kernels of growing size, averaged."""

    def __init__(self, cin, cout, kernels):
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv2d(cin, cout, 2 * i + 1, padding=i) for i in range(kernels)
        )

    def forward(self, x):
        return torch.stack([conv(x) for conv in self.convs], dim=-1).mean(-1)


class TimesBlock(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.k = s.top_k
        self.conv = nn.Sequential(
            Inception(s.d_model, s.d_ff, s.kernels),
            nn.GELU(),
            Inception(s.d_ff, s.d_model, s.kernels),
        )

    def forward(self, x):
        b, t, c = x.shape
        spectrum = torch.fft.rfft(x, dim=1).abs()
        ranking = spectrum.mean((0, 2)).detach()
        ranking[0] = 0
        top = ranking.topk(self.k).indices.tolist()
        outs = []
        for f in top:
            period = max(2, t // f)
            rows = math.ceil(t / period)
            y = F.pad(x, (0, 0, 0, rows * period - t))
            y = y.view(b, rows, period, c).permute(0, 3, 1, 2).contiguous()
            y = self.conv(y).permute(0, 2, 3, 1).reshape(b, rows * period, c)
            outs.append(y[:, :t])
        weight = F.softmax(spectrum.mean(-1)[:, top], dim=1)
        mixed = (torch.stack(outs, -1) * weight[:, None, None, :]).sum(-1)
        return mixed + x


class TimesNet(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s = s
        self.value = nn.Conv1d(s.channels, s.d_model, 3, padding=1, padding_mode="circular")
        self.marks = nn.Linear(4, s.d_model)
        self.dropout = nn.Dropout(0.1)
        self.extend = nn.Linear(s.history, s.history + s.horizon)
        self.blocks = nn.ModuleList(TimesBlock(s) for _ in range(s.layers))
        self.norms = nn.ModuleList(nn.LayerNorm(s.d_model) for _ in range(s.layers))
        self.project = nn.Linear(s.d_model, s.channels)

    def forward(self, past, marks, labels=None):
        mean = past.mean(1, keepdim=True)
        scale = past.std(1, keepdim=True) + 1e-5
        x = (past - mean) / scale
        x = self.value(x.transpose(1, 2)).transpose(1, 2) + self.marks(marks)
        x = self.extend(self.dropout(x).transpose(1, 2)).transpose(1, 2)
        for block, norm in zip(self.blocks, self.norms, strict=True):
            x = norm(block(x))
        forecast = (self.project(x) * scale + mean)[:, -self.s.horizon :]
        loss = None
        if labels is not None:
            loss = F.smooth_l1_loss(forecast, labels)
        return ForecastOutput(loss=loss, forecast=forecast)


class Seasonal(Dataset):
    def __init__(self, s, n, seed):
        g = torch.Generator().manual_seed(seed)
        total = n + s.history + s.horizon
        t = torch.arange(total).float()[:, None]
        phase = 6.28 * torch.rand(1, s.channels, generator=g)
        amp = torch.rand(3, s.channels, generator=g)
        noise = 0.2 * torch.randn(total, s.channels, generator=g)
        self.x = amp[0] * torch.sin(t * 6.28 / 24 + phase) + noise + 0.001 * t * amp[2]
        self.x += amp[1] * torch.sin(t * 6.28 / 168 + 2 * phase)
        day, week = t[:, 0] * 6.28 / 24, t[:, 0] * 6.28 / 168
        self.marks = torch.stack([day.sin(), day.cos(), week.sin(), week.cos()], 1)
        self.s, self.n = s, n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        mid = i + self.s.history
        return {
            "past": self.x[i:mid],
            "marks": self.marks[i:mid],
            "labels": self.x[mid : mid + self.s.horizon],
        }


class ForecastTrainer(Trainer):
    def log(self, logs, *args, **kwargs):
        if "loss" in logs:
            print(f"step {self.state.global_step} loss {float(logs['loss']):.6f}", flush=True)
        if "eval_mae" in logs:
            print(f"  eval mae {logs['eval_mae']:.4f}")


def metrics(pred):
    forecast, truth = torch.as_tensor(pred.predictions), torch.as_tensor(pred.label_ids)
    return {"mae": (forecast - truth).abs().mean().item()}


def main():
    set_seed(2021)
    gpu = torch.cuda.is_available()
    s = Setup() if gpu else Setup(48, 16, 4, 8, 8, 2, 2, 2, 4, 8)
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out,
            max_steps=s.steps,
            per_device_train_batch_size=s.batch,
            per_device_eval_batch_size=s.batch // 2,
            learning_rate=1e-3,
            lr_scheduler_type="polynomial",
            optim="adamw_torch",
            weight_decay=0.01,
            eval_strategy="steps",
            eval_steps=s.steps // 2,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=not gpu,
        )
        trainer = ForecastTrainer(
            model=TimesNet(s),
            args=args,
            train_dataset=Seasonal(s, s.batch * s.steps, seed=0),
            eval_dataset=Seasonal(s, s.batch, seed=1),
            compute_metrics=metrics,
        )
        trainer.train()


if __name__ == "__main__":
    main()
