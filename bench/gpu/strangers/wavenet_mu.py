"""Autoregressive sound: gated dilated causal convolutions with skip sums, mu-law classes."""

# tiny: --channels 8 --batch 3 --length 300 --device cpu
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

ap = argparse.ArgumentParser()
ap.add_argument("--channels", type=int, default=96)
ap.add_argument("--batch", type=int, default=12)
ap.add_argument("--length", type=int, default=8000)
ap.add_argument("--device", default="cuda")
a = ap.parse_args()
torch.manual_seed(6)


class Gated(nn.Module):
    def __init__(self, c, dilation):
        super().__init__()
        self.pad = dilation
        self.conv = nn.Conv1d(c, 2 * c, 2, dilation=dilation)
        self.skip, self.res = nn.Conv1d(c, c, 1), nn.Conv1d(c, c, 1)

    def forward(self, x):
        t, s = self.conv(F.pad(x, (self.pad, 0))).chunk(2, 1)
        z = torch.tanh(t) * torch.sigmoid(s)
        return x + self.res(z), self.skip(z)


class WaveNet(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed = nn.Embedding(256, c)
        self.stack = nn.ModuleList(Gated(c, 2 ** (i % 8)) for i in range(16))
        self.post = nn.Sequential(nn.ReLU(), nn.Conv1d(c, c, 1), nn.ReLU(), nn.Conv1d(c, 256, 1))

    def forward(self, codes):
        x, total = self.embed(codes).transpose(1, 2), 0
        for layer in self.stack:
            x, skip = layer(x)
            total = total + skip
        return self.post(total)


def mu_law(wave):
    y = torch.sign(wave) * torch.log1p(255 * wave.abs()) / torch.log(torch.tensor(256.0))
    return ((y + 1) / 2 * 255 + 0.5).long()


net = WaveNet(a.channels).to(a.device)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
g = torch.Generator().manual_seed(2)
for step in range(12):
    f = torch.rand(a.batch, 1, generator=g) * 0.1
    wave = torch.sin(f * torch.arange(a.length + 1)[None]) * 0.9
    codes = mu_law(wave).to(a.device)
    optimizer.zero_grad()
    loss = F.cross_entropy(net(codes[:, :-1]), codes[:, 1:])
    loss.backward()
    optimizer.step()
    print("step %d loss %.9g" % (step, loss.item()), flush=True)
