"""Conv-TasNet two-speaker separation, SI-SNR with permutation invariant training."""

import argparse
import json
import os
import tempfile
from itertools import permutations

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset

CUDA = torch.cuda.is_available()
EPS = 1e-8

parser = argparse.ArgumentParser()
parser.add_argument("--N", type=int, default=256 if CUDA else 16, help="encoder filters")
parser.add_argument("--L", type=int, default=16)
parser.add_argument("--B", type=int, default=128 if CUDA else 8)
parser.add_argument("--H", type=int, default=256 if CUDA else 16)
parser.add_argument("--P", type=int, default=3)
parser.add_argument("--X", type=int, default=8 if CUDA else 2)
parser.add_argument("--R", type=int, default=3 if CUDA else 1)
parser.add_argument("--C", type=int, default=2)
parser.add_argument("--segment", type=float, default=4.0 if CUDA else 0.1)
parser.add_argument("--sr", type=int, default=8000)
parser.add_argument("--bs", type=int, default=8 if CUDA else 2)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--updates", type=int, default=4 if CUDA else 1)
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--max-norm", type=float, default=5.0)


class Mixtures(IterableDataset):
    """two harmonic voices with slow amplitude modulation"""

    def __init__(self, n, length, sr, seed):
        self.n, self.length, self.sr, self.seed = n, length, sr, seed

    def voice(self, g):
        t = torch.arange(self.length) / self.sr
        f0 = 90 + 200 * torch.rand(1, generator=g)
        x = sum(torch.rand(1, generator=g) * torch.sin(6.2832 * f0 * k * t) for k in range(1, 8))
        am = 0.5 + 0.5 * torch.sin(6.2832 * (1 + 3 * torch.rand(1, generator=g)) * t)
        return x * am + 0.02 * torch.randn(self.length, generator=g)

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed)
        for _ in range(self.n):
            src = torch.stack([self.voice(g), self.voice(g)])
            src = src / src.std(-1, keepdim=True)
            yield src.sum(0), src


class GlobalLayerNorm(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(1, ch, 1))
        self.beta = nn.Parameter(torch.zeros(1, ch, 1))

    def forward(self, y):
        mean = y.mean((1, 2), keepdim=True)
        var = ((y - mean) ** 2).mean((1, 2), keepdim=True)
        return self.gamma * (y - mean) / (var + EPS) ** 0.5 + self.beta


class TemporalBlock(nn.Module):
    def __init__(self, B, H, P, dilation):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(B, H, 1, bias=False),
            nn.PReLU(),
            GlobalLayerNorm(H),
            nn.Conv1d(
                H, H, P, padding=dilation * (P - 1) // 2, dilation=dilation, groups=H, bias=False
            ),
            nn.PReLU(),
            GlobalLayerNorm(H),
            nn.Conv1d(H, B, 1, bias=False),
        )

    def forward(self, x):
        return x + self.net(x)


class ConvTasNet(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.a = a
        self.encoder = nn.Conv1d(1, a.N, a.L, stride=a.L // 2, bias=False)
        blocks = [TemporalBlock(a.B, a.H, a.P, 2**x) for _ in range(a.R) for x in range(a.X)]
        self.separator = nn.Sequential(
            GlobalLayerNorm(a.N), nn.Conv1d(a.N, a.B, 1), *blocks, nn.Conv1d(a.B, a.C * a.N, 1)
        )
        self.decoder = nn.ConvTranspose1d(a.N, 1, a.L, stride=a.L // 2, bias=False)

    def forward(self, mix):
        w = F.relu(self.encoder(mix.unsqueeze(1)))
        mask = F.relu(self.separator(w)).view(mix.size(0), self.a.C, self.a.N, -1)
        est = self.decoder((w.unsqueeze(1) * mask).flatten(0, 1)).view(mix.size(0), self.a.C, -1)
        return F.pad(est, (0, mix.size(-1) - est.size(-1)))


def pit_si_snr(est, src):
    est = est - est.mean(-1, keepdim=True)
    src = src - src.mean(-1, keepdim=True)
    s_t, s_e = src.unsqueeze(1), est.unsqueeze(2)  # B,1,C,T and B,C,1,T
    proj = (s_e * s_t).sum(-1, keepdim=True) * s_t / (s_t.pow(2).sum(-1, keepdim=True) + EPS)
    noise = s_e - proj
    snr = 10 * torch.log10(proj.pow(2).sum(-1) / (noise.pow(2).sum(-1) + EPS) + EPS)  # B,C,C
    scores = torch.stack(
        [
            sum(snr[:, i, p] for i, p in enumerate(perm)) / snr.size(1)
            for perm in permutations(range(snr.size(1)))
        ],
        1,
    )
    return -scores.max(1).values.mean()


class Solver:
    def __init__(self, args):
        self.args, self.dev = args, "cuda" if CUDA else "cpu"
        T = int(args.segment * args.sr)
        self.tr = DataLoader(Mixtures(args.bs * args.updates, T, args.sr, 1), batch_size=args.bs)
        self.cv = DataLoader(Mixtures(args.bs, T, args.sr, 2), batch_size=args.bs)
        self.model = ConvTasNet(args).to(self.dev)
        self.opt = torch.optim.Adam(self.model.parameters(), lr=args.lr)
        self.halver = torch.optim.lr_scheduler.ReduceLROnPlateau(self.opt, factor=0.5, patience=0)
        self.history = []

    def run_epoch(self, epoch, train):
        self.model.train(train)
        total = []
        for i, (mix, src) in enumerate(self.tr if train else self.cv):
            mix, src = mix.to(self.dev), src.to(self.dev)
            loss = pit_si_snr(self.model(mix), src)
            if train:
                self.opt.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), self.args.max_norm)
                self.opt.step()
                print(f"Epoch {epoch} | Iter {i + 1} | loss {loss.item():.8f}", flush=True)
            total.append(loss.item())
        return sum(total) / len(total)

    def train(self):
        with tempfile.TemporaryDirectory() as save:
            for epoch in range(self.args.epochs):
                tr = self.run_epoch(epoch, True)
                with torch.no_grad():
                    cv = self.run_epoch(epoch, False)
                self.halver.step(cv)
                self.history.append({"train": tr, "valid": cv})
                torch.save(self.model.state_dict(), os.path.join(save, f"epoch{epoch}.pth"))
        print(json.dumps(self.history))


if __name__ == "__main__":
    torch.manual_seed(123456)
    Solver(parser.parse_args()).train()
