"""Sound events in ten-second clips: log-mel on the card, a CRNN, fp16 with a gradient scaler."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

device = "cuda" if torch.cuda.is_available() else "cpu"
large = device == "cuda"
torch.manual_seed(59)

batch_size = 64 if large else 4
rate, seconds = (16000, 10) if large else (4000, 1)
width = 64 if large else 8
mels, hop, events = 64, rate // 100, 10


class Clips(Dataset):
    """Tones, chirps and noise bursts of ten kinds at random times."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(1000 + i)
        wave = 0.05 * torch.randn(rate * seconds, generator=g)
        frames = seconds * 100
        target = torch.zeros(events, frames)
        for _ in range(4):
            kind = int(torch.randint(0, events, (1,), generator=g))
            a = int(torch.randint(0, frames - 30, (1,), generator=g))
            b = min(frames, a + int(torch.randint(20, 31 + frames // 5, (1,), generator=g)))
            t = torch.arange((b - a) * hop) / rate
            freq = rate / 40 * (1 + kind)
            wave[a * hop : b * hop] += torch.sin(
                2 * math.pi * freq * t * (1 + 0.2 * (kind % 3) * t)
            )
            target[kind, a:b] = 1
        return wave, target


def mel_filters(n_fft):
    top = 2595 * math.log10(1 + rate / 2 / 700)
    points = 700 * (10 ** (torch.linspace(0, top, mels + 2) / 2595) - 1)
    bins = torch.linspace(0, rate / 2, n_fft // 2 + 1)
    up = (bins - points[:-2, None]) / (points[1:-1] - points[:-2])[:, None]
    down = (points[2:, None] - bins) / (points[2:] - points[1:-1])[:, None]
    return torch.minimum(up, down).clamp(min=0)


class CRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.n_fft = 1024 if large else 256
        self.register_buffer("window", torch.hann_window(self.n_fft))
        self.register_buffer("filters", mel_filters(self.n_fft))
        layers, cin = [], 1
        for cout, pool in (
            (width, (2, 1)),
            (width, (2, 2)),
            (2 * width, (4, 1)),
            (2 * width, (4, 1)),
        ):
            for c in (cin, cout):
                layers += [nn.Conv2d(c, cout, 3, padding=1), nn.BatchNorm2d(cout), nn.SiLU()]
            layers += [nn.AvgPool2d(pool), nn.Dropout(0.1)]
            cin = cout
        self.cnn = nn.Sequential(*layers)
        self.rnn = nn.GRU(2 * width, width, 2, batch_first=True, bidirectional=True, dropout=0.1)
        self.frame = nn.Linear(2 * width, events)
        self.attention = nn.Linear(2 * width, events)

    def features(self, wave):
        spec = torch.stft(wave, self.n_fft, hop, window=self.window, return_complex=True)
        mel = torch.log(self.filters @ spec.abs().square() + 1e-5)[..., :-1]
        mean, std = mel.mean((1, 2), keepdim=True), mel.std((1, 2), keepdim=True)
        return ((mel - mean) / std).unsqueeze(1)

    def forward(self, wave):
        with torch.autocast(device, enabled=False):
            x = self.features(wave)
        x = self.cnn(x).squeeze(2).transpose(1, 2)
        x, _ = self.rnn(x)
        strong = self.frame(x)
        weight = self.attention(x).softmax(1)
        weak = (strong.sigmoid() * weight).sum(1).clamp(1e-4, 1 - 1e-4)
        return strong.float(), weak.float()


model = CRNN().to(device)
optimizer = torch.optim.NAdam(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler(device, enabled=large, init_scale=2.0**12)
loader = DataLoader(Clips(batch_size * 6), batch_size=batch_size, shuffle=True)
positive = torch.full((events, 1), 4.0, device=device)
step = 0
for epoch in range(2):
    for wave, target in loader:
        wave, target = wave.to(device), target.to(device)
        with torch.autocast(device, dtype=torch.float16, enabled=large):
            strong, weak = model(wave)
        coarse = F.max_pool1d(target, 2)
        loss = F.binary_cross_entropy_with_logits(
            strong.transpose(1, 2), coarse, pos_weight=positive
        )
        loss = loss + 0.5 * F.binary_cross_entropy(weak, target.amax(2))
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        scaler.step(optimizer)
        scaler.update()
        print(f"epoch {epoch} step {step} loss {loss.item():.6f}")
        step += 1
