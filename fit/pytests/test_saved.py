"""What autograd saves in programs that make it hard to send away: transformed functions, tensors
without memory, a few large ones, batches that grow.
"""

import os
import sys
import tempfile
import types
import unittest
import weakref
from unittest import mock

import torch
import torch.nn as nn
import torch.nn.functional as F
from _memroom_probe.fit.calls import aside, refers
from _memroom_probe.fit.choose import running
from _memroom_probe.fit.choose.case import Case, Growing
from _memroom_probe.fit.choose.choices import Choice
from _memroom_probe.fit.remedies import activation_offload
from card import ASKED, Card, run_on
from training import furthest


def trained(model, losses):
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 1e-3)
    for loss in losses:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


class Forces(nn.Module):
    """A derivative for each sample, inside of the model."""

    def __init__(self, derive):
        super().__init__()
        self.inp, self.mid, self.out = nn.Linear(6, 48), nn.Linear(48, 48), nn.Linear(48, 1)
        self.derive = derive

    def energy(self, x):
        return self.out(torch.tanh(self.mid(torch.tanh(self.inp(x))))).squeeze(-1)

    def forward(self, x):
        return self.energy(x), torch.func.vmap(self.derive(self.energy))(x)


def forces(derive):
    model = Forces(derive)

    def losses():
        for _ in range(4):
            energy, slope = model(torch.randn(256, 6))
            yield (energy - 1).square().mean() + slope.square().mean()

    return trained(model, losses())


class Ragged:
    """A batch that fit cannot cut: nobody knows what it holds."""

    __slots__ = ("rows", "owner", "count")

    def __init__(self, most, count=24):
        lengths = torch.randint(most // 2, most, (count,))
        self.owner = torch.repeat_interleave(torch.arange(count), lengths)
        self.rows, self.count = torch.randn(len(self.owner), 16), count


class Pooled(nn.Module):
    """With a second network that follows the first one in every call, if asked for."""

    def __init__(self, follows):
        super().__init__()
        self.net, self.follower = self.layers(), self.layers() if follows else None
        if follows:
            self.follower.requires_grad_(False)

    def layers(self):
        parts = [nn.Linear(16, 64)]
        for _ in range(4):
            parts += [nn.GELU(), nn.Linear(64, 64)]
        return nn.Sequential(*parts, nn.GELU(), nn.Linear(64, 8))

    def pool(self, net, batch):
        return torch.zeros(batch.count, 8).index_add_(0, batch.owner, net(batch.rows))

    def forward(self, batch):
        if self.follower is None:
            return self.pool(self.net, batch)
        for slow, quick in zip(self.follower.parameters(), self.net.parameters()):
            slow.data.mul_(0.5).add_(quick.data, alpha=0.5)
        with torch.no_grad():
            wanted = self.pool(self.follower, batch)
        return self.pool(self.net, batch) - wanted.flip(0)


def growing(sizes, follows):
    model = Pooled(follows)
    return trained(model, (model(Ragged(most)).square().mean() for most in sizes))


def three_calls():
    model = Pooled(False)

    def losses():
        for _ in range(4):
            yield F.triplet_margin_loss(*[model(Ragged(20)) for _ in range(3)])

    return trained(model, losses())


def graphs_stay():
    """The graph of a step is there until the next one has its own."""
    parts = [nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.GELU())]
    for _ in range(5):
        parts.append(nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.GELU()))
    model = nn.Sequential(*parts, nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(5):
        result = model(torch.randn(512, 16))
        loss = result.square().mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
        yield loss.item()


class Loops(unittest.TestCase):
    def equal(self, loop, share=0.65):
        plenty = Card()
        whole, _ = run_on(loop, plenty)
        limit = int(share * plenty.most)
        with self.assertRaises(torch.cuda.OutOfMemoryError):
            run_on(loop, Card(limit))
        got, told = run_on(loop, Card(limit), ASKED)
        self.assertEqual(len(got), len(whole), told.text())
        self.assertLess(furthest(whole, got), 1e-6, told.text())
        return told

    def test_graphs_that_stay(self):
        with mock.patch.object(refers, "script_says", lambda pattern: "retain" in pattern):
            told = self.equal(graphs_stay)
        self.assertIn("offloaded", told.text())
        self.assertNotIn("checkpointing in", told.text())

    def test_transformed_functions_inside_of_a_model(self):
        for derive in (torch.func.grad, torch.func.hessian):
            with self.subTest(derive=derive.__name__):
                self.equal(lambda derive=derive: forces(derive))

    def test_batches_that_grow(self):
        for sizes in ((16, 16, 20, 24, 28, 32), (30, 24, 34, 28, 36)):
            with self.subTest(sizes=sizes):
                self.equal(lambda sizes=sizes: growing(sizes, False))

    def test_a_call_that_is_made_again_changes_its_parameters_once(self):
        # What stays is bounded where batches grow; without that a forward pass runs out.
        with mock.patch.object(Growing, "keep", return_value=1 << 40):
            told = self.equal(lambda: growing((16, 16, 52, 52), True))
        self.assertIn("it ran again", told.text())

    def test_calls_that_wait_together_share_the_room(self):
        self.equal(three_calls)


class Hooks(unittest.TestCase):
    def test_step_aside_and_come_back(self):
        saved = []

        def pack(tensor):
            saved.append(tensor.shape)
            return tensor

        aside.install()
        self.addCleanup(aside.forget)
        x = torch.ones(3, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            slopes = torch.func.vmap(torch.func.grad(lambda v: v**3))(torch.arange(4.0))
            self.assertEqual(saved, [])
            x.square().sum().backward()
        self.assertEqual(slopes.tolist(), [0.0, 3.0, 12.0, 27.0])
        self.assertTrue(saved)
        aside.forget()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            with self.assertRaises(RuntimeError):
                torch.func.grad(lambda v: v**3)(torch.tensor(1.0))

    def away(self, quota, keep=float("inf")):
        away = activation_offload.Away(nn.Module(), (), quota, 0)
        away.keep = keep
        value = torch.ones(64, requires_grad=True)
        with away:
            for _ in range(4):
                value = value.sin()  # saves what it is given: 256 bytes
        return away

    def test_no_more_stays_than_was_planned_with(self):
        self.assertEqual(self.away(1.5 * 256).sent, 2 * 256)
        self.assertEqual(self.away(256).sent, 256)
        self.assertEqual(self.away(0).sent, 0)

    def test_what_a_longer_batch_saves_beyond_that_travels(self):
        away = self.away(256, keep=256)
        self.assertEqual((away.sent, away.stayed), (3 * 256, 256))

    def test_sparse_rows_stay(self):
        matrix = torch.eye(40).to_sparse_csr()
        x = torch.ones(40, 8, requires_grad=True)
        with activation_offload.Away(nn.Module(), (), above=0):
            result = torch.sparse.mm(matrix, x.square())
        result.sum().backward()
        self.assertEqual(x.grad.unique().tolist(), [2.0])


class Rules(unittest.TestCase):
    def test_what_stays_shrinks_as_batches_grow(self):
        known = Growing(saved=100, room=60, beside=40)
        self.assertEqual(known.keep(), 60)
        known.saw(150)
        self.assertEqual(known.keep(), 40)
        known.saw(120)
        self.assertEqual(known.keep(), 40)
        known.saw(1000)
        self.assertEqual(known.keep(), 0)

    def test_what_ran_before_is_taken_again(self):
        whole, near, far = (Choice(words, n, 0) for words, n in (("a", 100), ("b", 90), ("c", 50)))
        model = nn.Linear(1, 1)

        def taken(ran):
            case = Case(weakref.ref(model), "m", Choice("d", 95, 0), [whole, near, far], ran=ran)
            near.seconds, far.seconds = 1, 2
            return running._smaller(case)

        self.assertIs(taken([]), far)
        self.assertIs(taken([near]), near)
        self.assertIs(taken([whole]), far)

    def test_a_file_that_is_imported_later_is_read_too(self):
        with tempfile.TemporaryDirectory() as folder:
            paths = [os.path.join(folder, name) for name in ("train.py", "beside.py")]
            for path, text in zip(paths, ("import beside\n", "word_of_this_test = 1\n")):
                with open(path, "w") as f:
                    f.write(text)
            main, beside = types.ModuleType("__main__"), types.ModuleType("beside")
            main.__file__, beside.__file__ = paths
            with mock.patch.dict(sys.modules, {"__main__": main}):
                self.assertFalse(refers.script_says("word_of_this_test"))
                with mock.patch.dict(sys.modules, {"beside_of_this_test": beside}):
                    self.assertTrue(refers.script_says("word_of_this_test"))


if __name__ == "__main__":
    unittest.main()
