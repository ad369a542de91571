"""What cannot be cut exactly is declined with the reason, and training goes on as it was."""

import unittest

import torch
import torch.nn as nn
import torch.nn.functional as F
from card import ASKED
from training import PIECES, furthest, parameters_apart, remedies, sgd, train


def data(n=16, count=3):
    torch.manual_seed(2)
    return [(torch.randn(n, 8), torch.randint(0, 3, (n,))) for _ in range(count)]


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 3)


class BatchNormed(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 3))


class SeesOthers(Base):
    def forward(self, x):
        return self.linear(x - x.mean(0))


class Contrastive(Base):
    def forward(self, x):
        z = F.normalize(self.linear(x), dim=1)
        return F.cross_entropy(z @ z.T * 5, torch.arange(len(x)))


class BalancesExperts(Base):
    """The usual penalty for experts of which some get all rows: a product of means. It can hardly
    be seen in the loss, and is half of what the gate learns from.
    """

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(8, 3)

    def forward(self, x, y):
        p = self.gate(x).softmax(1)
        used = F.one_hot(p.argmax(1), 3).float().mean(0)
        return F.cross_entropy(self.linear(x) * (1 + 1e-4 * p), y) + 3e-5 * (used * p.mean(0)).sum()


class SmallVariance(Base):
    """A hinge on the spread of the batch that weighs a thousandth."""

    def forward(self, x, y):
        z = self.linear(x)
        return F.cross_entropy(z, y) + 1e-3 * F.relu(1 - z.std(0)).mean()


class SmallContrastive(Base):
    def forward(self, x, y):
        z = self.linear(x)
        w = F.normalize(z, dim=1)
        return F.cross_entropy(z, y) + 1e-3 * F.cross_entropy(w @ w.T, torch.arange(len(x)))


class HardestPairs(Base):
    """Labels that come once have no pair."""

    def forward(self, x, y):
        z, same = self.linear(x), (y[:, None] == y) & ~torch.eye(len(y), dtype=torch.bool)
        return F.cross_entropy(z, y) + 1e-2 * (torch.cdist(z, z) * same).sum() / (1 + same.sum())


class AddsSpread(Base):
    """A feature that is one number for the whole batch, as in discriminators of faces."""

    def forward(self, x, y=None):
        z = self.linear(x)
        return torch.cat([z, 1e-2 * z.std(0).mean().expand(len(x), 1)], 1)


class NoBatchInOutput(Base):
    def forward(self, x):
        return self.linear(x).t() @ self.linear(x)


class ChangesItsInput(Base):
    def forward(self, x):
        return self.linear(x.mul_(1.5))


class Counts(Base):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return self.linear(x) / self.calls


class MovesABuffer(Base):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x):
        with torch.no_grad():
            self.mean.lerp_(x.mean(0), 0.1)
        return self.linear(x - self.mean)


class WeighsClasses(Base):
    def forward(self, x, y):
        return F.cross_entropy(self.linear(x), y, weight=torch.tensor([1.0, 2.0, 5.0]))


class Hooked(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(8, 3))
        self[0].register_forward_hook(lambda m, i, o: None)


class Packed(Base):
    def forward(self, packed):
        return self.linear(packed.data)


def classify(m, b):
    return F.cross_entropy(m(b[0].clone()), b[1])


class Declined(unittest.TestCase):
    CASES = [
        (BatchNormed, classify, "BatchNorm1d in training mode"),
        (SeesOthers, classify, "samples interact"),
        (Contrastive, lambda m, b: m(b[0]), "not a weighted mean"),
        (BalancesExperts, lambda m, b: m(*b), "gradients show"),
        (SmallVariance, lambda m, b: m(*b), "not a weighted mean"),
        (SmallContrastive, lambda m, b: m(*b), "not a weighted mean"),
        (HardestPairs, lambda m, b: m(*b), "not a weighted mean"),
        (AddsSpread, classify, "samples interact"),
        (NoBatchInOutput, lambda m, b: m(b[0]).pow(2).mean(), "no batch dimension"),
        (ChangesItsInput, classify, "in place"),
        (Counts, classify, "attribute"),
        (MovesABuffer, classify, "buffer"),
        (WeighsClasses, lambda m, b: m(*b), "not a weighted mean"),
        (Hooked, classify, "forward hook"),
        (
            Packed,
            lambda m, b: m(nn.utils.rnn.pack_sequence(list(b[0].split(4)))).pow(2).mean(),
            "PackedSequence",
        ),
    ]

    def test_each(self):
        for kind, step, reason in self.CASES:
            with self.subTest(kind.__name__):
                torch.manual_seed(0)
                model = kind()
                whole, a, _ = train(model, step, data(), sgd)
                pieces, b, told = train(model, step, data(), sgd, PIECES)
                self.assertIn(reason, told.text())
                self.assertEqual(told.kinds("micro_batch"), ["declined"], told.text())
                self.assertEqual(whole, pieces)
                for x, y in zip(a.buffers(), b.buffers()):
                    self.assertTrue(torch.equal(x, y))

    def test_under_autocast(self):
        """Half precision hides what is small; a trial in full precision has seen it."""

        def mixed(step):
            def run(m, b):
                with torch.autocast("cpu", torch.bfloat16):
                    return step(m, b)

            return run

        for kind, step, reason in self.CASES:
            if kind.__name__.startswith(("Small", "Adds", "Hardest", "Contrastive", "Sees")):
                with self.subTest(kind.__name__):
                    torch.manual_seed(0)
                    _, _, told = train(kind(), mixed(step), data(), sgd, PIECES)
                    self.assertIn(reason, told.text())
                    self.assertEqual(told.kinds("micro_batch"), ["declined"], told.text())

    def test_second_term_with_other_weights(self):
        """Over rows, while the first is over labels that count: both agree until a batch comes with
        ignored labels.
        """

        class TwoTerms(Base):
            def __init__(self):
                super().__init__()
                self.value = nn.Linear(8, 1)

            def forward(self, x, y):
                return (
                    F.cross_entropy(self.linear(x), y, ignore_index=-1)
                    + 1e-3 * self.value(x).pow(2).mean()
                )

        torch.manual_seed(0)
        model, batches = TwoTerms(), [(x, y) for x, y in data()]
        batches[-1] = (
            batches[-1][0],
            torch.where(
                torch.arange(len(batches[-1][1])) % 3 > 0,
                batches[-1][1],
                torch.full_like(batches[-1][1], -1),
            ),
        )
        whole, a, _ = train(model, lambda m, b: m(*b), batches, sgd)
        pieces, b, told = train(model, lambda m, b: m(*b), batches, sgd, PIECES)
        self.assertEqual(told.kinds("micro_batch"), ["applied", "declined"], told.text())
        self.assertLess(max(furthest(whole, pieces), parameters_apart(a, b)), 1e-6)

    def test_shape_that_only_a_run_shows(self):
        """Pads to the longest row of what it sees: pieces cannot be joined, and the call starts
        over in one piece.
        """

        class Trims(Base):
            def forward(self, x, lengths):
                return self.linear(x[:, : int(lengths.max())])

        torch.manual_seed(0)
        batches = [
            (torch.randn(16, 6, 8), torch.full((16,), 6)),
            (torch.randn(16, 6, 8), torch.tensor([6] * 4 + [3] * 12)),
        ]
        step = lambda m, b: m(*b).pow(2).mean()
        whole, _, _ = train(Trims(), step, batches, sgd)
        torch.manual_seed(0)
        model = Trims()
        whole, _, _ = train(model, step, batches, sgd)
        pieces, _, told = train(model, step, batches, sgd, PIECES)
        self.assertIn("different shapes", told.text())
        self.assertLess(furthest(whole, pieces), 1e-6)


class Recorded(unittest.TestCase):
    """torch.jit records a graph, for TensorBoard or a checkpoint, with any number of rows."""

    def test_what_is_recorded_runs_as_it_is(self):
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
        x = torch.randn(6, 8)
        whole = [("checkpointing", {}), ("activation_offload", {"above": 0})]
        for asked in (PIECES, whole):
            with self.subTest(asked), remedies(*asked, of="no step") as told:
                graph = torch.jit.trace(model, x[:1], check_trace=False)
                self.assertEqual(told, [])
                self.assertTrue(torch.equal(graph(x), model(x)))

    def test_recorded_twice_before_the_first_step(self):
        """As TensorBoard's add_graph does: torch.jit compares two recordings."""
        model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(True), nn.Linear(8, 3))
        with remedies(*ASKED, of="no step"):
            graph = torch.jit.trace(model, torch.randn(6, 8))
        self.assertNotIn("detach", str(graph.graph))


if __name__ == "__main__":
    unittest.main()
