# HiFi-GAN vocoder: mel -> waveform.  multi-period + multi-scale discriminators,
# feature matching, L1 on the mel spectrogram.
import itertools

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import weight_norm

CUDA = torch.cuda.is_available()


class AttrDict(dict):
    def __init__(self, *a, **k):
        super().__init__(*a, **k)
        self.__dict__ = self


h = AttrDict(
    batch_size=16 if CUDA else 2,
    learning_rate=2e-4,
    adam_b1=0.8,
    adam_b2=0.99,
    lr_decay=0.999,
    seed=1234,
    upsample_rates=[8, 8, 2, 2] if CUDA else [4, 4],
    upsample_kernel_sizes=[16, 16, 4, 4] if CUDA else [8, 8],
    upsample_initial_channel=256 if CUDA else 16,
    resblock_kernel_sizes=[3, 7, 11] if CUDA else [3],
    resblock_dilations=[1, 3, 5],
    segment_size=16384 if CUDA else 1024,
    num_mels=80 if CUDA else 8,
    n_fft=1024 if CUDA else 64,
    hop_size=256 if CUDA else 16,
    sampling_rate=22050,
    disc_ch=32 if CUDA else 4,
    steps=8 if CUDA else 2,
)


def mel_basis():
    fr = torch.linspace(0, h.sampling_rate / 2, h.n_fft // 2 + 1)
    mel = lambda f: 2595 * torch.log10(1 + f / 700)
    pts = torch.linspace(0, float(mel(torch.tensor(h.sampling_rate / 2))), h.num_mels + 2)
    hz = 700 * (10 ** (pts / 2595) - 1)
    up = (fr[None] - hz[:-2, None]) / (hz[1:-1] - hz[:-2])[:, None]
    down = (hz[2:, None] - fr[None]) / (hz[2:] - hz[1:-1])[:, None]
    return torch.clamp(torch.minimum(up, down), min=0)


def mel_spectrogram(y, basis, window):
    pad = (h.n_fft - h.hop_size) // 2
    y = F.pad(y.unsqueeze(1), (pad, pad), mode="reflect").squeeze(1)
    spec = torch.stft(y, h.n_fft, h.hop_size, window=window, center=False, return_complex=True)
    spec = torch.sqrt(spec.real.pow(2) + spec.imag.pow(2) + 1e-6)
    return torch.log(torch.clamp(basis @ spec, min=1e-4))


class ResBlock(nn.Module):
    def __init__(self, ch, k, dils):
        super().__init__()
        self.c1 = nn.ModuleList(
            [weight_norm(nn.Conv1d(ch, ch, k, dilation=d, padding=(k * d - d) // 2)) for d in dils]
        )
        self.c2 = nn.ModuleList([weight_norm(nn.Conv1d(ch, ch, k, padding=k // 2)) for _ in dils])

    def forward(self, x):
        for a, b in zip(self.c1, self.c2):
            x = x + b(F.leaky_relu(a(F.leaky_relu(x, 0.1)), 0.1))
        return x


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        c = h.upsample_initial_channel
        self.pre = weight_norm(nn.Conv1d(h.num_mels, c, 7, padding=3))
        self.ups, self.blocks = nn.ModuleList(), nn.ModuleList()
        for u, k in zip(h.upsample_rates, h.upsample_kernel_sizes):
            self.ups.append(weight_norm(nn.ConvTranspose1d(c, c // 2, k, u, padding=(k - u) // 2)))
            c //= 2
            self.blocks.append(
                nn.ModuleList(
                    [ResBlock(c, rk, h.resblock_dilations) for rk in h.resblock_kernel_sizes]
                )
            )
        self.post = weight_norm(nn.Conv1d(c, 1, 7, padding=3))

    def forward(self, x):
        x = self.pre(x)
        for up, group in zip(self.ups, self.blocks):
            x = up(F.leaky_relu(x, 0.1))
            x = sum(b(x) for b in group) / len(group)
        return torch.tanh(self.post(F.leaky_relu(x)))


class PeriodD(nn.Module):
    def __init__(self, period):
        super().__init__()
        self.period, c = period, h.disc_ch
        chans = [1, c, c * 4, c * 16, c * 16]
        self.convs = nn.ModuleList(
            [
                weight_norm(nn.Conv2d(i, o, (5, 1), (3, 1), padding=(2, 0)))
                for i, o in zip(chans[:-1], chans[1:])
            ]
        )
        self.post = weight_norm(nn.Conv2d(chans[-1], 1, (3, 1), padding=(1, 0)))

    def forward(self, x):
        fmap, (b, c, t) = [], x.shape
        if t % self.period:
            x = F.pad(x, (0, self.period - t % self.period), mode="reflect")
        x = x.view(b, c, -1, self.period)
        for conv in self.convs:
            x = F.leaky_relu(conv(x), 0.1)
            fmap.append(x)
        x = self.post(x)
        return x.flatten(1), fmap + [x]


class ScaleD(nn.Module):
    def __init__(self, pool):
        super().__init__()
        c = h.disc_ch
        self.pool = nn.AvgPool1d(2 * pool, pool, padding=pool) if pool > 1 else nn.Identity()
        spec = [
            (1, c * 4, 15, 1, 1),
            (c * 4, c * 4, 41, 2, 4),
            (c * 4, c * 8, 41, 2, 4),
            (c * 8, c * 16, 41, 4, 4),
        ]
        self.convs = nn.ModuleList(
            [weight_norm(nn.Conv1d(i, o, k, s, padding=k // 2, groups=g)) for i, o, k, s, g in spec]
        )
        self.post = weight_norm(nn.Conv1d(c * 16, 1, 3, padding=1))

    def forward(self, x):
        x, fmap = self.pool(x), []
        for conv in self.convs:
            x = F.leaky_relu(conv(x), 0.1)
            fmap.append(x)
        x = self.post(x)
        return x.flatten(1), fmap + [x]


def train():
    torch.manual_seed(h.seed)
    device = torch.device("cuda" if CUDA else "cpu")
    gen = Generator().to(device)
    discs = nn.ModuleList(
        [PeriodD(p) for p in (2, 3, 5, 7, 11)] + [ScaleD(p) for p in (1, 2, 4)]
    ).to(device)
    basis, window = mel_basis().to(device), torch.hann_window(h.n_fft).to(device)
    optim_g = torch.optim.AdamW(gen.parameters(), h.learning_rate, betas=(h.adam_b1, h.adam_b2))
    optim_d = torch.optim.AdamW(
        itertools.chain(discs.parameters()), h.learning_rate, betas=(h.adam_b1, h.adam_b2)
    )
    sch_g = torch.optim.lr_scheduler.ExponentialLR(optim_g, h.lr_decay)
    sch_d = torch.optim.lr_scheduler.ExponentialLR(optim_d, h.lr_decay)
    rng = torch.Generator().manual_seed(h.seed)
    t = torch.arange(h.segment_size) / h.sampling_rate

    for steps in range(h.steps):
        f0 = 80 + 300 * torch.rand(h.batch_size, 1, generator=rng)
        y = sum(torch.sin(6.2832 * f0 * k * t) / k for k in range(1, 6)) * 0.2
        y = (y + 0.01 * torch.randn(y.shape, generator=rng)).to(device)
        mel = mel_spectrogram(y, basis, window)
        y_hat = gen(mel)
        y = y.unsqueeze(1)

        # discriminators
        optim_d.zero_grad()
        loss_d = 0
        for d in discs:
            r, g_ = d(y)[0], d(y_hat.detach())[0]
            loss_d = loss_d + (1 - r).pow(2).mean() + g_.pow(2).mean()
        loss_d.backward()
        optim_d.step()

        # generator
        optim_g.zero_grad()
        loss_mel = F.l1_loss(mel_spectrogram(y_hat.squeeze(1), basis, window), mel) * 45
        loss_adv = loss_fm = 0
        for d in discs:
            _, fr = d(y)
            out, fg = d(y_hat)
            loss_adv = loss_adv + (1 - out).pow(2).mean()
            loss_fm = loss_fm + 2 * sum((a.detach() - b).abs().mean() for a, b in zip(fr, fg))
        loss_g = loss_adv + loss_fm + loss_mel
        loss_g.backward()
        optim_g.step()
        sch_g.step()
        sch_d.step()
        print(
            f"Steps : {steps}, Gen loss {loss_g.item():.8f}, Disc loss {loss_d.item():.8f}, "
            f"mel {loss_mel.item() / 45:.5f}",
            flush=True,
        )


if __name__ == "__main__":
    train()
