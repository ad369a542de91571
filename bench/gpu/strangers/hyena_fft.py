# Long convolutions by FFT with filters that a small network makes from positions, gated, on long
# sequences; next-token loss inside the model.
# tiny: --dim 8 --depth 2 --batch 2 --length 32 --vocab 30 --device cpu
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

ap = argparse.ArgumentParser()
ap.add_argument("--dim", type=int, default=256)
ap.add_argument("--depth", type=int, default=6)
ap.add_argument("--batch", type=int, default=16)
ap.add_argument("--length", type=int, default=2048)
ap.add_argument("--vocab", type=int, default=64)
ap.add_argument("--device", default="cuda")
a = ap.parse_args()
torch.manual_seed(31)


class Filter(nn.Module):
    def __init__(self, d):
        super().__init__()
        t = torch.linspace(0, 1, a.length)[:, None]
        self.register_buffer("z", torch.cat([t, torch.sin(20 * t), torch.cos(20 * t)], 1))
        self.net = nn.Sequential(nn.Linear(3, 64), nn.SiLU(), nn.Linear(64, d))
        self.decay = nn.Parameter(torch.rand(d) * 4 + 1)

    def forward(self):
        return (self.net(self.z) * torch.exp(-self.decay * self.z[:, :1])).t()


class Hyena(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.into = nn.LayerNorm(d), nn.Linear(d, 3 * d)
        self.short = nn.Conv1d(3 * d, 3 * d, 3, padding=2, groups=3 * d)
        self.filter, self.out = Filter(d), nn.Linear(d, d)
        self.ff = nn.Sequential(
            nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d)
        )

    def forward(self, x):
        n = x.size(1)
        u = self.short(self.into(self.norm(x)).transpose(1, 2))[..., :n]
        v, g1, g2 = u.chunk(3, 1)
        v = v * torch.sigmoid(g1)
        f = torch.fft.rfft(self.filter(), 2 * n)
        y = torch.fft.irfft(torch.fft.rfft(v, 2 * n) * f, 2 * n)[..., :n]
        x = x + self.out((y * g2).transpose(1, 2))
        return x + self.ff(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(a.vocab, a.dim)
        self.layers = nn.ModuleList(Hyena(a.dim) for _ in range(a.depth))
        self.head = nn.Linear(a.dim, a.vocab)

    def forward(self, ids, targets=None):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        logits = self.head(x)
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


model = Model().to(a.device)
opt = torch.optim.AdamW(model.parameters(), 5e-4)
g = torch.Generator().manual_seed(3)
for step in range(12):
    ids = torch.randint(0, a.vocab, (a.batch, a.length + 1), generator=g).to(a.device)
    _, loss = model(ids[:, :-1], ids[:, 1:])
    opt.zero_grad()
    loss.backward()
    opt.step()
    print("step %d loss %.9g" % (step, loss.item()), flush=True)
