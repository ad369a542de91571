"""Sequence tagger for long signals with two autograd functions of our own: a squared ReLU that
keeps only its output, and a linear layer that quantises what it keeps to int8."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("SMALL") == "1"
cuda = torch.cuda.is_available()
device = torch.device("cuda" if cuda else "cpu")
N, T, D, LAYERS, TAGS = (2, 24, 16, 2, 5) if SMALL else (24, 768, 512, 6, 48)


class SquaredReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        r = x.clamp(min=0)
        ctx.save_for_backward(r)
        return r * r

    @staticmethod
    def backward(ctx, grad):
        (r,) = ctx.saved_tensors
        return 2 * r * grad


class Int8SavedLinear(torch.autograd.Function):
    """y = x W^T + b; x is kept in int8 with one scale per row for the weight's gradient."""

    @staticmethod
    def forward(ctx, x, w, b):
        scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-8) / 127
        ctx.save_for_backward((x / scale).round().to(torch.int8), scale, w)
        return F.linear(x, w, b)

    @staticmethod
    def backward(ctx, g):
        q, scale, w = ctx.saved_tensors
        x = q.to(g.dtype) * scale
        gw = g.flatten(0, -2).t() @ x.flatten(0, -2)
        return g @ w, gw, g.flatten(0, -2).sum(0)


class CompactLinear(nn.Linear):
    def forward(self, x):
        return Int8SavedLinear.apply(x, self.weight, self.bias)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(D)
        self.mix = nn.Conv1d(D, D, 9, padding=4, groups=D)
        self.up, self.down = CompactLinear(D, 4 * D), CompactLinear(4 * D, D)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        h = self.norm(x)
        h = h + self.mix(h.transpose(1, 2)).transpose(1, 2)
        return x + self.drop(self.down(SquaredReLU.apply(self.up(h))))


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(32, D)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.gru = nn.GRU(D, D // 2, batch_first=True, bidirectional=True)
        self.out = nn.Linear(D, TAGS)

    def forward(self, x):
        return self.out(self.gru(self.blocks(self.inp(x)))[0])


def main():
    torch.manual_seed(27)
    model = Tagger().to(device)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=3e-4, momentum=0.9)
    gen = torch.Generator().manual_seed(28)
    for step in range(18):
        x = torch.randn(N, T, 32, generator=gen).to(device)
        y = torch.randint(0, TAGS, (N, T), generator=gen).to(device)
        lengths = torch.randint(T // 3, T + 1, (N,), generator=gen).to(device)
        valid = torch.arange(T, device=device)[None] < lengths[:, None]
        scores = model(x)
        loss = F.cross_entropy(scores[valid], y[valid])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.9f}", flush=True)


if __name__ == "__main__":
    main()
