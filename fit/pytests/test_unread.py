"""Logits beside a loss are put together where the script reads them, and only there."""

import ast
import unittest
from unittest import mock

import torch
import torch.nn as nn
import torch.nn.functional as F
from _memroom_probe.fit.batch.joined import Joined
from _memroom_probe.fit.remedies import accumulate, unread
from card import ASKED, Card, other_times, run_on
from training import PIECES, furthest, remedies, sow


class Words(nn.Module):
    def __init__(self, drop=0.0):
        super().__init__()
        self.embed, self.out = nn.Embedding(50, 16), nn.Linear(16, 50)
        self.drop = nn.Dropout(drop)

    def forward(self, x):
        logits = self.out(self.drop(torch.tanh(self.embed(x))))
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), x[:, 1:].flatten())
        return {"loss": loss, "logits": logits}


def nothing(out, values):
    return out["loss"]


def accuracy(out, values):
    values.append(float(out["logits"].argmax(-1).float().mean()))
    return out["loss"]


def also_learns_from_them(out, values):
    return out["loss"] + 1e-2 * out["logits"].square().mean()


def keeps(out, values):
    values.append(out["logits"].detach())
    return out["loss"]


class Unread(unittest.TestCase):
    def loop(self, use, drop=0.0):
        """(what the script saw, its weights): with what it kept read after the steps."""
        sow(1)
        model, values, losses = Words(drop), [], []
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        for _ in range(3):
            loss = use(model(torch.randint(0, 50, (8, 6))), values)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        read = [float(v.double().sum()) if torch.is_tensor(v) else v for v in values]
        return losses + read, [p.detach().clone() for p in model.parameters()]

    def both(self, use, drop=0.0):
        with remedies(of="no step"):
            whole, weights = self.loop(use, drop)
        count = []
        join = Joined.result
        counted = mock.patch.object(Joined, "result", lambda j: count.append(1) or join(j))
        with mock.patch.object(accumulate, "LARGE", 1), counted:
            with remedies(*PIECES, of="the loop is compared with itself") as told:
                got, others = self.loop(use, drop)
        self.assertEqual(told.kinds("micro_batch"), ["applied"], told.text())
        self.assertEqual(len(whole), len(got))
        self.assertLess(furthest(whole, got), 1e-5)
        for a, b in zip(weights, others):
            self.assertLess(float((a - b).abs().max()), 1e-5)
        return len(count)

    def test_what_nobody_reads_is_not_put_together(self):
        self.assertEqual(self.both(nothing), 0)

    def test_what_is_read_is_what_it_was(self):
        for use in (accuracy, also_learns_from_them, keeps):
            for drop in (0.0, 0.3):
                with self.subTest(use.__name__, drop=drop):
                    self.assertEqual(self.both(use, drop), 3)

    def test_weights_that_were_changed_by_hand(self):
        """Nobody said so before they changed: it is refused, not computed with other weights."""
        with mock.patch.object(accumulate, "LARGE", 1), remedies(*PIECES, of="no step"):
            model = Words()
            out = model(torch.randint(0, 50, (8, 6)))
            out["loss"].backward()
            for p in model.parameters():
                p.data.add_(p.grad, alpha=-50)
            with self.assertRaises(unread.Changed):
                out["logits"].argmax(-1)

    def test_a_name_that_is_never_used_again(self):
        """It is still there when the optimizer steps, and is not computed for that."""
        for drop in (0.0, 0.3):
            with mock.patch.object(accumulate, "LARGE", 1), remedies(*PIECES, of="no step"):
                model = Words(drop)
                optimizer = torch.optim.SGD(model.parameters(), 0.1)
                for _ in range(2):
                    out = model(torch.randint(0, 50, (8, 6)))
                    out["loss"].backward()
                    with mock.patch.object(unread.Source, "value") as value:
                        optimizer.step()
                    value.assert_not_called()

    def test_governed(self):
        """Calls are planned without results that nobody reads, and with those that are read."""
        for use in (nothing, accuracy):

            def steps(use=use):
                model, values = Words(), []
                optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
                for _ in range(6):
                    out = model(torch.randint(0, 50, (256, 20)))
                    loss = use(out, values)
                    del out
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    yield loss.item()
                    yield from values[-1:]

            plenty = Card()
            whole, _ = run_on(steps, plenty)
            for share, seed in ((0.65, 0), (0.45, 1), (0.45, 4)):
                with self.subTest(use.__name__, share=share, seed=seed):
                    with mock.patch.object(accumulate, "LARGE", 1), other_times(seed):
                        card = Card(int(share * plenty.most))
                        got, told = run_on(steps, card, ASKED)
                    self.assertLess(furthest(whole, got), 1e-4, told.text())
                    self.assertIn("micro-batches", told.text())


class Lines(unittest.TestCase):
    SCRIPT = """
def estimate():
    logits, loss = model(x)
    return loss
for i in range(9):
    logits, loss = model(x)
    loss.backward()
out = model(x)
out.loss.backward()
kept = model(x)
print(kept)
def step(batch):
    result = model(
        batch)
    return result["loss"], result.logits.argmax(-1)
first = model(x)[0]
_, seen = model(x)
show = lambda: seen
total = add(model(x))
total.backward()
"""

    def where(self, line):
        """Of the model's call that begins in a line."""
        for node in ast.walk(ast.parse(self.SCRIPT)):
            named = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "model"
            if named and node.lineno == line:
                return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset

    def test_what_a_line_lets_be_read(self):
        with mock.patch.object(unread.linecache, "getlines", return_value=[self.SCRIPT]):
            for line, path, expected in (
                (3, "0", False),
                (3, "1", True),
                (6, "0", False),
                (6, "1", True),
                (8, "logits", False),
                (8, "loss", True),
                (10, "logits", True),
                (13, "logits", True),
                (13, "hidden", False),
                (16, "0", True),
                (17, "0", False),
                (17, "1", True),
                (19, "logits", True),
            ):
                unread._may_be_read.cache_clear()
                seen = unread._may_be_read("f", self.where(line), path)
                self.assertIs(seen, expected, (line, path))


if __name__ == "__main__":
    unittest.main()
