"""Probabilistic forecasting: channel-independent patch transformer, pinball loss, accelerate with
accumulate() and clipping. 11 batches per epoch and groups of 3, so the last group is short."""

import os

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset

SMALL = os.environ.get("SMALL") == "1"
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


class Windows(Dataset):
    def __init__(self, n, channels, past, future):
        g = torch.Generator().manual_seed(2)
        t = torch.arange(n + past + future).float()
        freq = torch.rand(channels, 1, generator=g) * 0.3 + 0.02
        trend = torch.randn(channels, t.numel(), generator=g).cumsum(1) * 0.05
        self.series = torch.sin(freq * t) + trend
        self.n, self.past, self.future = n, past, future

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        w = self.series[:, i : i + self.past + self.future]
        return w[:, : self.past], w[:, self.past :]


class PatchForecaster(nn.Module):
    def __init__(self, past, future, patch, stride, dim, depth, heads):
        super().__init__()
        self.patch, self.stride, self.future = patch, stride, future
        n = (past - patch) // stride + 1
        self.embed = nn.Linear(patch, dim)
        self.pos = nn.Parameter(torch.randn(1, n, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(
            dim, heads, dim * 4, dropout=0.1, activation="gelu", batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth)
        self.head = nn.Linear(n * dim, future * len(QUANTILES))
        self.gain, self.shift = nn.Parameter(torch.ones(1)), nn.Parameter(torch.zeros(1))

    def forward(self, x):
        b, c, _ = x.shape
        mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True) + 1e-5
        x = (x - mean) / std * self.gain + self.shift
        p = x.unfold(-1, self.patch, self.stride).flatten(0, 1)
        h = self.encoder(self.embed(p) + self.pos)
        y = self.head(h.flatten(1)).view(b, c, self.future, len(QUANTILES))
        y = (y - self.shift) / self.gain
        return y * std.unsqueeze(-1) + mean.unsqueeze(-1)


def pinball(pred, target):
    q = torch.tensor(QUANTILES, device=pred.device)
    err = target.unsqueeze(-1) - pred
    crossing = torch.relu(pred[..., :-1] - pred[..., 1:]).mean()
    return torch.maximum(q * err, (q - 1) * err).mean() + 0.1 * crossing


def main():
    set_seed(10)
    accelerator = Accelerator(gradient_accumulation_steps=3)
    if SMALL:
        bs, channels, past, future, shape = 2, 3, 64, 8, (8, 4, 16, 1, 2)
    else:
        bs, channels, past, future, shape = 24, 40, 512, 96, (16, 8, 256, 5, 8)
    loader = DataLoader(Windows(bs * 11, channels, past, future), batch_size=bs, shuffle=True)
    model = PatchForecaster(past, future, *shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=40)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    model.train()
    for step, (past_x, future_y) in enumerate(loader):
        with accelerator.accumulate(model):
            loss = pinball(model(past_x), future_y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        print(f"step {step} loss {loss.item():.8f}", flush=True)


if __name__ == "__main__":
    main()
