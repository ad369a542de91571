"""Pieces of a batch draw the random numbers that the whole batch draws: losses are equal up to the
order of sums, and the generator ends where it would have ended.
"""

import unittest

import torch
import torch.nn as nn
import torch.nn.functional as F
from _memroom_probe.fit.batch import draws
from torch.utils.checkpoint import checkpoint
from training import furthest, remedies, sow

ROWS, TIME, WIDTH = 12, 5, 16


class Head(nn.Module):
    """What lies before and behind that which draws."""

    def __init__(self):
        super().__init__()
        self.enter, self.leave = nn.Linear(8, WIDTH), nn.Linear(WIDTH, 3)


class Drops(Head):
    def forward(self, x):
        h = F.dropout(torch.tanh(self.enter(x)), 0.3, self.training)
        return self.leave(F.dropout(h, 0.2)).mean(1)


class DropsChannels(Head):
    def forward(self, x):
        h = F.dropout1d(torch.tanh(self.enter(x)).transpose(1, 2), 0.3)
        return self.leave(h.mean(2))


class Attends(Head):
    """torch's own layer, whose attention lies in memory with time first inside."""

    def __init__(self, batch_first=True):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, 0.2, batch_first=batch_first)

    def forward(self, x):
        return self.leave(self.layer(self.enter(x)).mean(1))


class AttendsTimeFirst(Attends):
    def __init__(self):
        super().__init__(batch_first=False)

    def forward(self, x):
        return self.leave(self.layer(self.enter(x).transpose(0, 1)).mean(0))


class Recurrent(Head):
    def __init__(self):
        super().__init__()
        self.layer = nn.LSTM(WIDTH, WIDTH, 2, dropout=0.3, batch_first=True)

    def forward(self, x):
        return self.leave(self.layer(self.enter(x))[0][:, -1])


class SkipsSamples(Head):
    """Stochastic depth: one number for each sample."""

    def forward(self, x):
        h = torch.tanh(self.enter(x))
        keeps = h.new_empty(len(h), 1, 1).bernoulli_(0.7)
        return self.leave(h * keeps / 0.7).mean(1)


class SkipsLayers(Head):
    """One number for all samples, and masks that come only where the layer is not skipped."""

    def forward(self, x):
        h = torch.tanh(self.enter(x))
        if float(torch.rand(())) < 0.5:
            h = F.dropout(h, 0.4)
        return self.leave(F.dropout(h, 0.2)).mean(1)


class AddsNoise(Head):
    """As a variational encoder does, with sizes told in several ways."""

    def forward(self, x):
        h = torch.tanh(self.enter(x))
        h = h + 0.3 * torch.randn_like(h) + torch.rand(len(x), 1, 1)
        return self.leave(h + torch.randn((len(x), TIME, 1))).mean(1)


class Chooses(Head):
    def forward(self, x):
        h = self.enter(x)
        taken = torch.multinomial(h.mean(1).softmax(-1), 1)
        h = F.gumbel_softmax(h) + h.gather(2, taken[:, None].expand(-1, TIME, 1))
        return self.leave(h).mean(1)


class ReturnsLoss(Drops):
    def forward(self, x, y):
        return F.cross_entropy(super().forward(x), y)


class RunsAgain(Drops):
    """The script's own checkpointing runs it again where nobody draws for the whole batch."""

    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


def train(kind, asked=()):
    """Losses, and a number drawn after each step; and what was said."""
    sow(4)
    model, seen = kind(), []
    optimizer = torch.optim.SGD(model.parameters(), 0.3)
    with remedies(*asked, of=[kind]) as told:
        for _ in range(4):
            x, y = torch.randn(ROWS, TIME, 8), torch.randint(0, 3, (ROWS,))
            returns = isinstance(model, ReturnsLoss)
            loss = model(x, y) if returns else F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += [loss.item(), float(torch.rand(()))]
    return seen, told


class DrawsTest(unittest.TestCase):
    def test_pieces_draw_what_the_batch_draws(self):
        for kind in (
            Drops,
            DropsChannels,
            Attends,
            AttendsTimeFirst,
            Recurrent,
            SkipsSamples,
            SkipsLayers,
            AddsNoise,
            Chooses,
            ReturnsLoss,
        ):
            whole, _ = train(kind)
            for pieces in (3, ROWS):
                with self.subTest(kind=kind.__name__, pieces=pieces):
                    got, told = train(kind, [("micro_batch", {"pieces": pieces})])
                    self.assertIn("split into %d" % pieces, told.text())
                    self.assertEqual({f["equivalence"] for _, _, f in told}, {"exact"})
                    self.assertLess(furthest(whole, got), 1e-5)

    def test_a_second_run_of_the_script_is_found(self):
        whole, _ = train(RunsAgain)
        got, told = train(RunsAgain, [("micro_batch", {"pieces": 3})])
        self.assertEqual([f["equivalence"] for _, _, f in told], ["expected"])

    def test_offsets_of_a_card(self):
        """The state of a card's generator is a seed and an offset."""
        state = torch.tensor([7, 40]).view(torch.uint8)
        self.assertEqual(draws._offset(draws._moved(state, 24)), 64)
        self.assertEqual(draws._offset(state), 40)


if __name__ == "__main__":
    unittest.main()
