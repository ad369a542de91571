"""Models whose first call sets something by its batch: a trial on a few samples must not be it."""

import functools
import unittest

import torch
import torch.nn as nn
import torch.nn.functional as F
from card import ASKED, Card, run_on


class Scaled(nn.Module):
    """Weights by the first batch, and a flag; as in normalising flows."""

    def __init__(self, width):
        super().__init__()
        self.shift, self.scale = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.ones(width))
        self.ready = False

    def forward(self, x):
        if not self.ready:
            with torch.no_grad():
                self.shift.copy_(x.mean(0))
                self.scale.copy_(x.std(0) + 0.1)
            self.ready = True
        return (x - self.shift) / self.scale


class ByData(Scaled):
    """The same through `.data`, which no version tells."""

    def forward(self, x):
        if not self.ready:
            self.shift.data, self.ready = x.detach().mean(0), True
        return x - self.shift


class Remembered(nn.Module):
    """Statistics of the first batch, in a tensor that is None until then."""

    def __init__(self, width):
        super().__init__()
        self.mean, self.seen = None, False

    def forward(self, x):
        if not self.seen:
            self.mean, self.seen = x.detach().mean(0), True
        return x - self.mean


class WithoutFlag(nn.Module):
    """An attribute that is not there until the first call."""

    def __init__(self, width):
        super().__init__()

    def forward(self, x):
        if not hasattr(self, "mean"):
            self.mean = x.detach().mean(0)
        return x - self.mean


class InABuffer(nn.Module):
    def __init__(self, width):
        super().__init__()

    def forward(self, x):
        if "mean" not in self._buffers:
            self.register_buffer("mean", x.detach().mean(0))
        return x - self.mean


class LateFlag(nn.Module):
    """A flag that the first call makes."""

    def __init__(self, width):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        if not getattr(self, "done", False):
            with torch.no_grad():
                self.shift.add_(x.mean(0))
            self.done = True
        return x - self.shift


class Codes(nn.Module):
    """A parent's flag for what its child does: codes that are samples of the first batch."""

    def __init__(self, width):
        super().__init__()
        self.table, self.fresh = nn.Embedding(4, width), True

    def forward(self, x):
        if self.fresh:
            with torch.no_grad():
                self.table.weight.copy_(x[-4:])
            self.fresh = False
        near = torch.cdist(x, self.table.weight)
        return x - 0.1 * near.softmax(1) @ self.table.weight


KINDS = (Scaled, ByData, Remembered, WithoutFlag, InABuffer, LateFlag, Codes)


class Model(nn.Module):
    def __init__(self, kind, width=32):
        super().__init__()
        self.begin = nn.Linear(8, width)
        self.parts = nn.ModuleList(
            nn.Sequential(kind(width), nn.Linear(width, width), nn.GELU()) for _ in range(4)
        )
        self.end = nn.Linear(width, 1)

    def forward(self, x):
        x = self.begin(x)
        for part in self.parts:
            x = part(x)
        return self.end(x)


def loop(kind):
    model = Model(kind)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    for _ in range(4):
        x = torch.randn(64, 8) * torch.arange(1, 65)[:, None] / 16
        loss = F.mse_loss(model(x), x[:, :1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


class FirstCall(unittest.TestCase):
    def test_it_stays_the_first(self):
        for kind in KINDS:
            with self.subTest(kind=kind.__name__):
                plenty = Card()
                whole, _ = run_on(functools.partial(loop, kind), plenty)
                limit = int(0.7 * plenty.most)
                with self.assertRaises(torch.cuda.OutOfMemoryError):
                    run_on(functools.partial(loop, kind), Card(limit))
                got, told = run_on(functools.partial(loop, kind), Card(limit), ASKED)
                self.assertEqual(len(got), len(whole), told.text())
                for a, b in zip(whole, got):
                    self.assertLess(abs(a - b) / abs(a), 1e-5, told.text())

    def test_hooks_are_not_added_twice(self):
        """A first call that adds a hook says so in a flag: that stays as it is."""

        class Hooked(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.inner, self.hooked = nn.Linear(width, width), False

            def forward(self, x):
                if not self.hooked:
                    self.inner.register_forward_hook(lambda m, a, out: out * 0.5)
                    self.hooked = True
                return self.inner(x)

        whole, _ = run_on(functools.partial(loop, Hooked), Card())
        got, told = run_on(functools.partial(loop, Hooked), Card(1 << 40), ASKED)
        for a, b in zip(whole, got):
            self.assertLess(abs(a - b) / abs(a), 1e-5, told.text())


if __name__ == "__main__":
    unittest.main()
