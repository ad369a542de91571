"""Filling gaps in sensor tables with a conditional score model (CSDI) over time and features."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

device = "cuda" if torch.cuda.is_available() else "cpu"
large = device == "cuda"
torch.manual_seed(83)

batch_size = 64 if large else 4
features, length = (32, 96) if large else (5, 12)
channels = 64 if large else 16
residual_layers = 4 if large else 2
diffusion_steps = 50


def encode(position, dim):
    freq = 10.0 ** (torch.arange(dim // 2, device=position.device) / (dim // 2 - 1) * -4.0)
    angle = position[..., None].float() * freq
    return torch.cat([angle.sin(), angle.cos()], dim=-1)


def transformer():
    return nn.TransformerEncoderLayer(
        channels, 8, 2 * channels, dropout=0.0, activation="gelu", batch_first=True
    )


class ResidualLayer(nn.Module):
    def __init__(self, side_dim):
        super().__init__()
        self.noise = nn.Linear(128, channels)
        self.side = nn.Linear(side_dim, 2 * channels)
        self.middle = nn.Linear(channels, 2 * channels)
        self.out = nn.Linear(channels, 2 * channels)
        self.time_layer, self.feature_layer = transformer(), transformer()

    def forward(self, x, side, noise):
        b, k, n, c = x.shape
        y = x + self.noise(noise)[:, None, None]
        y = self.time_layer(y.reshape(b * k, n, c)).view(b, k, n, c)
        y = y.transpose(1, 2).reshape(b * n, k, c)
        y = self.feature_layer(y).view(b, n, k, c).transpose(1, 2)
        gate, signal = (self.middle(y) + self.side(side)).chunk(2, dim=-1)
        rest, skip = self.out(torch.sigmoid(gate) * torch.tanh(signal)).chunk(2, dim=-1)
        return (x + rest) / math.sqrt(2), skip


class CSDI(nn.Module):
    def __init__(self):
        super().__init__()
        self.feature = nn.Embedding(features, 16)
        self.enter = nn.Linear(2, channels)
        self.noise = nn.Sequential(nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU())
        self.layers = nn.ModuleList(ResidualLayer(64 + 16 + 1) for _ in range(residual_layers))
        self.leave = nn.Sequential(nn.Linear(channels, channels), nn.ReLU(), nn.Linear(channels, 1))

    def forward(self, noisy, known, mask, t):
        b, k, n = noisy.shape
        x = F.relu(self.enter(torch.stack([known * mask, noisy * (1 - mask)], dim=-1)))
        times = encode(torch.arange(n, device=x.device), 64).expand(b, k, n, 64)
        names = self.feature.weight[None, :, None].expand(b, k, n, 16)
        side = torch.cat([times, names, mask[..., None]], dim=-1)
        noise = self.noise(encode(t, 128))
        skips = 0
        for layer in self.layers:
            x, skip = layer(x, side, noise)
            skips = skips + skip
        return self.leave(skips / math.sqrt(len(self.layers))).squeeze(-1)


def tables(g):
    t = torch.arange(length) / 24
    phase = torch.rand(batch_size, 1, 1, generator=g) + torch.arange(features)[:, None] / features
    series = torch.sin(2 * math.pi * (t + phase)) + 0.3 * torch.cos(math.pi * t * (1 + phase))
    series = series + 0.05 * torch.randn(series.shape, generator=g)
    observed = (torch.rand(series.shape, generator=g) > 0.2).float()
    keep = torch.rand(batch_size, 1, 1, generator=g)
    condition = observed * (torch.rand(series.shape, generator=g) < keep).float()
    return series.to(device), observed.to(device), condition.to(device)


beta = torch.linspace(1e-4**0.5, 0.5**0.5, diffusion_steps) ** 2
alpha_bar = torch.cumprod(1 - beta, 0).to(device)
g = torch.Generator().manual_seed(18)
model = CSDI().to(device)
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-6)
warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 3)
later = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, later], [3])


def denoising_loss(net, batch):
    series, observed, condition = batch
    t = torch.randint(0, diffusion_steps, (batch_size,), generator=g).to(device)
    noise = torch.randn(series.shape, generator=g).to(device)
    level = alpha_bar[t][:, None, None]
    noisy = level.sqrt() * series + (1 - level).sqrt() * noise
    wanted = observed - condition
    error = (noise - net(noisy, series, condition, t)) * wanted
    return error.square().sum() / wanted.sum().clamp(min=1)


for step in range(12):
    model.train()
    loss = denoising_loss(model, tables(g))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    ema.update_parameters(model)
    print(f"step {step} loss {loss.item():.6f}")
    if step in (5, 11):
        ema.eval()
        with torch.no_grad():
            print(f"step {step} validation loss {denoising_loss(ema, tables(g)).item():.6f}")
