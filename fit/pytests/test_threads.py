"""What a trial switches off is off for its own thread only."""

import threading
import unittest

import torch
import torch.nn as nn
import torch.nn.functional as F
from _memroom_probe import compiled
from _memroom_probe.fit.batch.without_dropout import without_dropout
from _memroom_probe.fit.calls import sideways
from training import PIECES, remedies


def elsewhere(fn):
    """What fn returns on another thread."""
    found = []
    thread = threading.Thread(target=lambda: found.append(fn()))
    thread.start()
    thread.join()
    return found[0]


class Threads(unittest.TestCase):
    def test_dropout_goes_on_on_other_threads(self):
        x = torch.ones(1000)
        ignored = set()
        with without_dropout(ignored):
            self.assertTrue(torch.equal(F.dropout(x, 0.5), x))
            self.assertTrue(torch.equal(nn.Dropout(0.5)(x), x))
            other = elsewhere(lambda: F.dropout(x, 0.5))
            elsewhere(
                lambda: F.cross_entropy(torch.zeros(2, 3), torch.tensor([7, 1]), None, None, 7)
            )
        self.assertGreater(int((other == 0).sum()), 300)
        self.assertEqual(ignored, set(), "another thread's labels are no news about this module")
        self.assertGreater(int((F.dropout(x, 0.5) == 0).sum()), 300)

    def test_every_kind_of_dropout(self):
        torch.manual_seed(0)
        x = torch.ones(4, 8, 6)
        for name in ("dropout", "dropout1d", "alpha_dropout", "feature_alpha_dropout"):
            with self.subTest(name):
                dropout = getattr(F, name)
                with without_dropout(set()):
                    self.assertTrue(torch.equal(getattr(F, name)(x, 0.5, True), x))
                self.assertFalse(torch.equal(getattr(F, name)(x, 0.5, True), x))
                self.assertFalse(torch.equal(dropout(x, 0.5, True), x))
        q = torch.randn(1, 1, 4, 8)
        with without_dropout(set()):
            a = F.scaled_dot_product_attention(q, q, q, dropout_p=0.9)
            b = F.scaled_dot_product_attention(q, q, q)
            self.assertTrue(torch.equal(a, b))
            self.assertFalse(
                torch.equal(
                    elsewhere(lambda: F.scaled_dot_product_attention(q, q, q, dropout_p=0.9)), b
                )
            )

    def test_ignored_labels_are_noted(self):
        ignored = set()
        logits, labels = torch.zeros(3, 4), torch.tensor([1, 2, 3])
        with without_dropout(ignored):
            F.cross_entropy(logits, labels, ignore_index=3)
            F.nll_loss(logits, labels, ignore_index=2)
        self.assertEqual(ignored, {2, 3})

    def test_a_thread_trains_while_another_tries(self):
        """Two threads with dropout: the one that trains by itself gets its own trajectory."""

        def own():
            generator = torch.Generator().manual_seed(3)
            total = 0.0
            for _ in range(200):
                x = torch.rand(64, generator=generator)
                total += float((F.dropout(x, 0.5) == 0).sum())
            return total

        found = []
        thread = threading.Thread(target=lambda: found.append(own()))
        model = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.5), nn.ReLU(), nn.Linear(32, 2))
        with remedies(*PIECES, of="no step"):
            thread.start()
            for _ in range(5):
                model(torch.randn(16, 8)).sum().backward()
            thread.join()
        self.assertGreater(found[0], 0.4 * 200 * 64)


class Compiled(unittest.TestCase):
    def test_the_guard_is_true_while_a_program_is_traced(self):
        """A name that torch does not have would leave it false for ever."""
        compiled.install(torch)
        self.assertFalse(compiled.compiling())

        def twice_if_traced(x):
            return 2 * x if compiled.compiling() else x

        traced = torch.compile(twice_if_traced, backend="eager")
        self.assertEqual(float(traced(torch.tensor(3.0))), 6.0)
        self.assertEqual(float(twice_if_traced(torch.tensor(3.0))), 3.0)

    def test_remedies_break_no_graph(self):
        from torch._dynamo.utils import counters

        x, y = torch.randn(16, 8), torch.randint(0, 4, (16,))

        def breaks(*asked):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 4))
            torch._dynamo.reset()
            counters.clear()

            def loss(model, x, y):
                return F.cross_entropy(model(x), y)

            program = torch.compile(loss, backend="eager", fullgraph=True)
            original = F.cross_entropy
            try:
                with remedies(*asked, of="no step"):
                    for _ in range(3):
                        program(model, x, y).backward()
            finally:
                F.cross_entropy = original
            return sum(counters["graph_break"].values()), counters["stats"]["unique_graphs"]

        plain = breaks()
        self.assertEqual(plain, (0, 1))
        self.assertEqual(breaks(*PIECES), plain)
        self.assertEqual(breaks(("chunked_loss", {"above": 0})), plain)
        with without_dropout(set()):
            pass  # from here on torch's functions ask which thread calls
        self.assertEqual(breaks(), plain)


class Sideways(unittest.TestCase):
    def test_numbers_of_nodes_stay(self):
        """A trial makes nodes, and the loop's thread does not count them."""
        model = nn.Linear(4, 4)

        def trial():
            results = model(torch.randn(3, 4)).float().sum()
            torch.autograd.grad(results, list(model.parameters()))
            self.assertFalse(torch.autograd.is_multithreading_enabled())
            return threading.current_thread().name, torch.is_autocast_enabled("cpu")

        before = torch.autograd._get_sequence_nr()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            self.assertEqual(sideways.run(trial), ("memroom-trial", True))
        self.assertEqual(sideways.run(trial), ("memroom-trial", False))
        self.assertEqual(torch.autograd._get_sequence_nr(), before)
        self.assertTrue(torch.autograd.is_multithreading_enabled())

    def test_what_it_raises(self):
        with self.assertRaises(ZeroDivisionError):
            sideways.run(lambda: 1 / 0)

    def test_what_only_this_thread_has(self):
        here, name = threading.current_thread().name, lambda: threading.current_thread().name
        with torch.device("cpu"):
            self.assertEqual(sideways.run(name), here)
        with torch.autograd.graph.save_on_cpu():
            self.assertEqual(sideways.run(name), here)
        with torch.inference_mode():
            self.assertEqual(sideways.run(name), here)


if __name__ == "__main__":
    unittest.main()
