"""Waveform source separation with a small Demucs, trained through accelerate."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CUDA = torch.cuda.is_available()
SAMPLES = 65536 if CUDA else 4096
CHANNELS = 48 if CUDA else 4
DEPTH = 4
SOURCES = 3
BATCH = 64 if CUDA else 2
STEPS = 10 if CUDA else 3


class Demucs(nn.Module):
    def __init__(self, kernel=8, stride=4):
        super().__init__()
        self.encoder, self.decoder = nn.ModuleList(), nn.ModuleList()
        cin, c = 2, CHANNELS
        for i in range(DEPTH):
            self.encoder.append(
                nn.Sequential(
                    nn.Conv1d(cin, c, kernel, stride, padding=2),
                    nn.ReLU(),
                    nn.Conv1d(c, 2 * c, 1),
                    nn.GLU(dim=1),
                )
            )
            layers = [
                nn.Conv1d(c, 2 * c, 3, padding=1),
                nn.GLU(dim=1),
                nn.ConvTranspose1d(c, cin if i else 2 * SOURCES, kernel, stride, padding=2),
            ]
            self.decoder.insert(0, nn.Sequential(*layers, *([nn.ReLU()] if i else [])))
            cin, c = c, 2 * c
        self.lstm = nn.LSTM(cin, cin, num_layers=2, bidirectional=True, batch_first=True)
        self.merge = nn.Linear(2 * cin, cin)

    def forward(self, mix):
        mean, std = mix.mean((1, 2), keepdim=True), mix.std((1, 2), keepdim=True) + 1e-5
        x, skips = (mix - mean) / std, []
        for layer in self.encoder:
            x = layer(x)
            skips.append(x)
        h, _ = self.lstm(x.transpose(1, 2))
        x = self.merge(h).transpose(1, 2)
        for layer in self.decoder:
            x = layer(x + skips.pop())
        b, _, t = x.shape
        return x.view(b, SOURCES, 2, t) * std.unsqueeze(1) + mean.unsqueeze(1)


def rescale(module, reference=0.1):
    for m in module.modules():
        if isinstance(m, (nn.Conv1d, nn.ConvTranspose1d)):
            scale = (m.weight.std().detach() / reference) ** 0.5
            m.weight.data /= scale
            m.bias.data /= scale


def sources(n):
    """Sine, square and noise bursts with random pitch and panning."""
    t = torch.arange(SAMPLES) / 16000
    f = 80 + 400 * torch.rand(n, SOURCES, 1, 1)
    wave = torch.sin(6.2831853 * f * t)
    wave[:, 1] = wave[:, 1].sign()
    wave[:, 2] = torch.randn(n, 1, SAMPLES) * (wave[:, 2] > 0)
    return 0.2 * wave * torch.rand(n, SOURCES, 2, 1)


def main():
    set_seed(1010)
    accelerator = Accelerator(cpu=not CUDA)
    model = Demucs()
    rescale(model)
    stems = sources(BATCH * 2)
    loader = DataLoader(TensorDataset(stems), batch_size=BATCH, shuffle=True, drop_last=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    done = 0
    while done < STEPS:
        for (stem,) in loader:
            # remix: every source comes from another song of the batch
            stem = torch.stack([stem[:, s].roll(s + done, 0) for s in range(SOURCES)], 1)
            estimate = model(stem.sum(1))
            loss = (estimate - stem).abs().mean()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            optimizer.zero_grad()
            accelerator.print(f"update {done} L1 loss {loss.item():.7f}", flush=True)
            done += 1
            if done == STEPS:
                break


if __name__ == "__main__":
    main()
