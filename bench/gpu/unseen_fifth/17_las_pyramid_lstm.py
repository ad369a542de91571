"""Listen, attend and spell: pyramid BiLSTM, additive attention, scheduled sampling."""

import os
import random

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:2")  # repeatable cuDNN RNNs

import torch  # noqa: E402
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch.nn.utils.rnn import (  # noqa: E402
    pack_padded_sequence,
    pad_packed_sequence,
    pad_sequence,
)

SMALL = os.environ.get("SMALL") == "1" or not torch.cuda.is_available()
PAD, SOS, EOS = 0, 1, 2


class Config:
    mel = 16 if SMALL else 80
    hidden = 16 if SMALL else 512
    chars = 20 if SMALL else 64
    frames = (16, 32) if SMALL else (480, 800)
    text = (3, 6) if SMALL else (40, 72)
    batch = 3 if SMALL else 48
    steps = 8 if SMALL else 10
    lr = 1e-3


class PyramidLayer(nn.Module):
    """Halves the time axis before the LSTM."""

    def __init__(self, i, h, halve):
        super().__init__()
        self.halve = halve
        self.rnn = nn.LSTM(i * (2 if halve else 1), h, batch_first=True, bidirectional=True)

    def forward(self, x, lengths):
        if self.halve:
            if x.size(1) % 2:
                x = F.pad(x, (0, 0, 0, 1))
            x = x.reshape(x.size(0), x.size(1) // 2, -1)
            lengths = (lengths + 1) // 2
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return out, lengths


class Listener(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.layers = nn.ModuleList(
            [
                PyramidLayer(c.mel, c.hidden, False),
                PyramidLayer(2 * c.hidden, c.hidden, True),
                PyramidLayer(2 * c.hidden, c.hidden, True),
            ]
        )

    def forward(self, x, lengths):
        for layer in self.layers:
            x, lengths = layer(x, lengths)
        return x, lengths


class Speller(nn.Module):
    def __init__(self, c):
        super().__init__()
        h = c.hidden
        self.embed = nn.Embedding(c.chars, h)
        self.cell1 = nn.LSTMCell(h + 2 * h, h)
        self.cell2 = nn.LSTMCell(h, h)
        self.key, self.query = nn.Linear(2 * h, h), nn.Linear(h, h, bias=False)
        self.energy = nn.Linear(h, 1, bias=False)
        self.out = nn.Sequential(nn.Linear(3 * h, h), nn.Tanh())
        self.bias = nn.Parameter(torch.zeros(c.chars))

    def forward(self, memory, lengths, text, sampling, rng):
        b, t, _ = memory.shape
        dead = torch.arange(t, device=memory.device)[None] >= lengths.to(memory.device)[:, None]
        keys = self.key(memory)
        h1 = c1 = h2 = c2 = memory.new_zeros(b, keys.size(2))
        context, token, logits = memory.new_zeros(b, memory.size(2)), text[:, 0], []
        for i in range(text.size(1) - 1):
            h1, c1 = self.cell1(torch.cat([self.embed(token), context], 1), (h1, c1))
            h2, c2 = self.cell2(h1, (h2, c2))
            e = self.energy(torch.tanh(keys + self.query(h2).unsqueeze(1))).squeeze(2)
            a = e.masked_fill(dead, float("-inf")).softmax(1)
            context = torch.bmm(a.unsqueeze(1), memory).squeeze(1)
            o = self.out(torch.cat([h2, context], 1))
            logits.append(F.linear(o, self.embed.weight, self.bias))  # tied with the input
            guess = rng.random() < sampling
            token = logits[-1].argmax(1) if guess else text[:, i + 1]
        return torch.stack(logits, 1)


class LAS(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.listener, self.speller = Listener(c), Speller(c)
        for name, p in self.named_parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)
            elif "bias" in name:
                nn.init.zeros_(p)

    def forward(self, x, lengths, text, sampling, rng):
        return self.speller(*self.listener(x, lengths), text, sampling, rng)


def utterances(c, g):
    xs, ys = [], []
    for _ in range(c.batch):
        n = int(torch.randint(*c.frames, (1,), generator=g))
        k = int(torch.randint(*c.text, (1,), generator=g))
        chars = torch.randint(3, c.chars, (k,), generator=g)
        band = (chars % c.mel).repeat_interleave(n // k + 1)[:n]
        xs.append(F.one_hot(band, c.mel) * 2.0 + 0.5 * torch.randn(n, c.mel, generator=g))
        ys.append(torch.cat([torch.tensor([SOS]), chars, torch.tensor([EOS])]))
    lengths = torch.tensor([len(x) for x in xs])
    return pad_sequence(xs, True), lengths, pad_sequence(ys, True, PAD)


def main():
    c = Config()
    torch.manual_seed(17)
    rng = random.Random(17)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = LAS(c).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=c.lr)
    g = torch.Generator().manual_seed(171)
    for step in range(c.steps):
        x, lengths, text = utterances(c, g)
        x, text = x.to(device), text.to(device)
        logits = model(x, lengths, text, sampling=0.02 * step, rng=rng)
        loss = F.cross_entropy(
            logits.flatten(0, 1), text[:, 1:].flatten(), ignore_index=PAD, label_smoothing=0.05
        )
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        print(f"step {step} loss {loss.item():.8f}", flush=True)


if __name__ == "__main__":
    main()
