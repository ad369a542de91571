"""Speech enhancement: waveform U-Net with Snake activations (own autograd.Function), multi
resolution STFT loss with spectral convergence."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("SMALL", "0") == "1"
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(1234)
torch.backends.cudnn.deterministic = True

SAMPLES = 2048 if SMALL else 65536
BATCH = 2 if SMALL else 56
WIDTH, LEVELS = (8, 2) if SMALL else (48, 5)
RESOLUTIONS = [(128, 32), (64, 16)] if SMALL else [(2048, 512), (1024, 256), (512, 128)]
STEPS = 10


class SnakeFn(torch.autograd.Function):
    """x + sin(ax)^2 / a with a per channel; keeps only x and a."""

    @staticmethod
    def forward(ctx, x, a):
        ctx.save_for_backward(x, a)
        return x + torch.sin(a * x).pow(2) / (a + 1e-9)

    @staticmethod
    def backward(ctx, grad):
        x, a = ctx.saved_tensors
        s2 = torch.sin(2 * a * x)
        gx = grad * (1 + s2)
        s = torch.sin(a * x).pow(2)
        ga = grad * (x * s2 / (a + 1e-9) - s / (a + 1e-9).pow(2))
        return gx, ga.sum((0, 2), keepdim=True)


class Snake(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.a = nn.Parameter(torch.ones(1, c, 1))

    def forward(self, x):
        return SnakeFn.apply(x, self.a)


class Down(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.conv, self.act = nn.Conv1d(i, o, 8, 4, 2), Snake(o)
        self.mix = nn.Conv1d(o, 2 * o, 1)

    def forward(self, x):
        return F.glu(self.mix(self.act(self.conv(x))), 1)


class Up(nn.Module):
    def __init__(self, i, o, last):
        super().__init__()
        self.mix = nn.Conv1d(i, 2 * i, 3, padding=1)
        self.conv = nn.ConvTranspose1d(i, o, 8, 4, 2)
        self.act = nn.Identity() if last else Snake(o)

    def forward(self, x, skip):
        return self.act(self.conv(F.glu(self.mix(x + skip), 1)))


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        ch = [1] + [WIDTH * 2**i for i in range(LEVELS)]
        self.down = nn.ModuleList(Down(a, b) for a, b in zip(ch, ch[1:]))
        self.rnn = nn.LSTM(ch[-1], ch[-1] // 2, 2, batch_first=True, bidirectional=True)
        self.up = nn.ModuleList(Up(ch[i], ch[i - 1], last=i == 1) for i in range(LEVELS, 0, -1))

    def forward(self, wave):
        scale = wave.std(-1, keepdim=True) + 1e-3
        x, skips = wave.unsqueeze(1) / scale.unsqueeze(1), []
        for block in self.down:
            x = block(x)
            skips.append(x)
        x = x + self.rnn(x.transpose(1, 2))[0].transpose(1, 2)
        for block in self.up:
            x = block(x, skips.pop())
        return x.squeeze(1) * scale


def magnitude(x, n, hop):
    frames = x.unfold(-1, n, hop) * torch.hann_window(n, device=x.device)
    spec = torch.fft.rfft(frames)
    return (spec.real.pow(2) + spec.imag.pow(2)).clamp(min=1e-7).sqrt()


def stft_loss(fake, real):
    sc, mag = 0.0, 0.0
    for n, hop in RESOLUTIONS:
        a, b = magnitude(fake, n, hop), magnitude(real, n, hop)
        sc = sc + torch.linalg.norm((b - a).flatten()) / torch.linalg.norm(b.flatten())
        mag = mag + F.l1_loss(a.log(), b.log())
    return sc / len(RESOLUTIONS), mag / len(RESOLUTIONS)


def mixture(g):
    t = torch.arange(SAMPLES) / 16000
    f0 = 80 + 200 * torch.rand(BATCH, 1, generator=g)
    clean = sum(torch.sin(2 * torch.pi * f0 * k * t) / k for k in range(1, 6))
    clean = clean * (0.6 + 0.4 * torch.sin(2 * torch.pi * 3 * t)) * 0.2
    snr = 10 ** (-torch.rand(BATCH, 1, generator=g))
    return (clean + 0.2 * snr * torch.randn(clean.shape, generator=g)).to(device), clean.to(device)


model = Denoiser().to(device)
opt = torch.optim.Adam(model.parameters(), lr=3e-4, betas=(0.9, 0.999))
g = torch.Generator().manual_seed(55)
for step in range(STEPS):
    noisy, clean = mixture(g)
    est = model(noisy)
    l1 = F.l1_loss(est, clean)
    sc, mag = stft_loss(est, clean)
    loss = l1 + 0.5 * (sc + mag)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    opt.step()
    print(f"step {step} loss {loss.item():.8f} sc {sc.item():.6f}", flush=True)
