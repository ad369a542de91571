"""ECAPA-TDNN speaker verification, additive angular margin softmax, cyclic learning rate."""

import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

CUDA = torch.cuda.is_available()

parser = argparse.ArgumentParser(description="ECAPA trainer")
parser.add_argument("--seconds", type=float, default=4.0 if CUDA else 0.5)
parser.add_argument("--batch_size", type=int, default=80 if CUDA else 3)
parser.add_argument("--channels", type=int, default=1024 if CUDA else 32)
parser.add_argument("--n_speakers", type=int, default=5994 if CUDA else 12)
parser.add_argument("--n_iter", type=int, default=10 if CUDA else 3)
parser.add_argument("--lr", type=float, default=5e-4)


class SE(nn.Module):
    def __init__(self, c, b=128):
        super().__init__()
        self.se = nn.Sequential(
            nn.AdaptiveAvgPool1d(1), nn.Conv1d(c, b, 1), nn.ReLU(), nn.Conv1d(b, c, 1), nn.Sigmoid()
        )

    def forward(self, x):
        return x * self.se(x)


class Bottle2neck(nn.Module):
    def __init__(self, c, dilation, scale=8):
        super().__init__()
        w = c // scale
        self.width, self.nums = w, scale - 1
        self.conv1, self.bn1 = nn.Conv1d(c, c, 1), nn.BatchNorm1d(c)
        self.convs = nn.ModuleList(
            nn.Conv1d(w, w, 3, dilation=dilation, padding=dilation) for _ in range(self.nums)
        )
        self.bns = nn.ModuleList(nn.BatchNorm1d(w) for _ in range(self.nums))
        self.conv3, self.bn3 = nn.Conv1d(c, c, 1), nn.BatchNorm1d(c)
        self.se = SE(c)

    def forward(self, x):
        out = self.bn1(F.relu(self.conv1(x)))
        parts = torch.split(out, self.width, 1)
        res, sp = [], None
        for i in range(self.nums):
            sp = parts[i] if i == 0 else sp + parts[i]
            sp = self.bns[i](F.relu(self.convs[i](sp)))
            res.append(sp)
        out = torch.cat(res + [parts[-1]], 1)
        return self.se(self.bn3(F.relu(self.conv3(out)))) + x


class ECAPA(nn.Module):
    def __init__(self, c, n_mels=80, emb=192):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv1d(n_mels, c, 5, padding=2), nn.ReLU(), nn.BatchNorm1d(c))
        self.l1, self.l2, self.l3 = (Bottle2neck(c, d) for d in (2, 3, 4))
        self.l4 = nn.Conv1d(3 * c, 1536, 1)
        self.attention = nn.Sequential(
            nn.Conv1d(4608, 256, 1),
            nn.ReLU(),
            nn.BatchNorm1d(256),
            nn.Tanh(),
            nn.Conv1d(256, 1536, 1),
            nn.Softmax(2),
        )
        self.bn5 = nn.BatchNorm1d(3072)
        self.fc6 = nn.Linear(3072, emb)
        self.bn6 = nn.BatchNorm1d(emb)

    def forward(self, x):
        x = self.stem(x - x.mean(-1, keepdim=True))
        x1 = self.l1(x)
        x2 = self.l2(x + x1)
        x3 = self.l3(x + x1 + x2)
        x = F.relu(self.l4(torch.cat((x1, x2, x3), 1)))
        t = x.size(-1)
        ctx = torch.cat(
            (
                x,
                x.mean(2, keepdim=True).repeat(1, 1, t),
                torch.sqrt(x.var(2, keepdim=True).clamp(min=1e-4)).repeat(1, 1, t),
            ),
            1,
        )
        w = self.attention(ctx)
        mu = (x * w).sum(2)
        sg = torch.sqrt(((x**2 * w).sum(2) - mu**2).clamp(min=1e-4))
        return self.bn6(self.fc6(self.bn5(torch.cat((mu, sg), 1))))


class AAMsoftmax(nn.Module):
    def __init__(self, n, m=0.2, s=30.0, emb=192):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n, emb))
        nn.init.xavier_normal_(self.weight)
        self.m, self.s = m, s

    def forward(self, x, label):
        cos = F.linear(F.normalize(x), F.normalize(self.weight))
        sin = torch.sqrt((1 - cos**2).clamp(1e-6, 1))
        phi = cos * math.cos(self.m) - sin * math.sin(self.m)
        hot = F.one_hot(label, cos.size(1)).bool()
        return F.cross_entropy(self.s * torch.where(hot, phi, cos), label)


class VoxFake(Dataset):
    def __init__(self, args):
        g = torch.Generator().manual_seed(0)
        self.timbre = torch.randn(args.n_speakers, 80, 1, generator=g)
        total = args.n_iter * args.batch_size
        self.labels = torch.randint(0, args.n_speakers, (total,), generator=g)
        self.frames = int(args.seconds * 100)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(10_000 + i)
        y = self.labels[i]
        noise = torch.randn(80, self.frames, generator=g)
        return noise * (1 + 0.3 * self.timbre[y]), y


if __name__ == "__main__":
    args = parser.parse_args()
    torch.manual_seed(5)
    device = "cuda" if CUDA else "cpu"
    net = ECAPA(args.channels).to(device)
    head = AAMsoftmax(args.n_speakers).to(device)
    params = list(net.parameters()) + list(head.parameters())
    optim = torch.optim.Adam(params, lr=args.lr, weight_decay=2e-5)
    sched = torch.optim.lr_scheduler.CyclicLR(
        optim, 1e-5, args.lr, step_size_up=4, mode="triangular2", cycle_momentum=False
    )
    loader = DataLoader(VoxFake(args), args.batch_size, num_workers=2 if CUDA else 0)
    for num, (mel, spk) in enumerate(loader, 1):
        net.zero_grad()
        head.zero_grad()
        loss = head(net(mel.to(device)), spk.to(device))
        loss.backward()
        optim.step()
        sched.step()
        print("[%2d] lr %.6f loss %.8f" % (num, sched.get_last_lr()[0], loss.item()), flush=True)
