# The next frames of a film: convolutional LSTM cells unrolled over time in Python, half of the time
# fed with their own guesses, L1 and gradient difference losses.
# tiny: --hidden 4 --batch 2 --frames 4 --size 16 --device cpu
import argparse

import torch
from torch import nn

ap = argparse.ArgumentParser()
ap.add_argument("--hidden", type=int, default=64)
ap.add_argument("--batch", type=int, default=12)
ap.add_argument("--frames", type=int, default=16)
ap.add_argument("--size", type=int, default=64)
ap.add_argument("--device", default="cuda")
a = ap.parse_args()
torch.manual_seed(17)


class Cell(nn.Module):
    def __init__(self, i, h):
        super().__init__()
        self.h = h
        self.gates = nn.Conv2d(i + h, 4 * h, 5, padding=2)

    def forward(self, x, state):
        h, c = state
        i, f, o, g = self.gates(torch.cat([x, h], 1)).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


class Predictor(nn.Module):
    def __init__(self, h):
        super().__init__()
        self.cells = nn.ModuleList([Cell(1, h), Cell(h, h), Cell(h, h)])
        self.out = nn.Conv2d(h, 1, 1)

    def forward(self, film):
        b, n, _, hgt, wid = film.shape
        zeros = film.new_zeros(b, self.cells[0].h, hgt, wid)
        states = [(zeros, zeros) for _ in self.cells]
        guesses, guess = [], None
        for t in range(n - 1):
            x = film[:, t] if guess is None or t % 2 == 0 else guess
            for k, cell in enumerate(self.cells):
                states[k] = cell(x, states[k])
                x = states[k][0]
            guess = torch.sigmoid(self.out(x))
            guesses.append(guess)
        return torch.stack(guesses, 1)


def sharp(a, b):
    dx = (a.diff(dim=-1).abs() - b.diff(dim=-1).abs()).abs().mean()
    dy = (a.diff(dim=-2).abs() - b.diff(dim=-2).abs()).abs().mean()
    return dx + dy


net = Predictor(a.hidden).to(a.device)
opt = torch.optim.RMSprop(net.parameters(), 1e-3, alpha=0.9)
g = torch.Generator().manual_seed(1)
for step in range(12):
    film = torch.rand(a.batch, a.frames, 1, a.size, a.size, generator=g).to(a.device)
    guess = net(film)
    want = film[:, 1:]
    loss = (guess - want).abs().mean() + 0.1 * sharp(guess, want)
    opt.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    print("step %d loss %.9g" % (step, loss.item()), flush=True)
