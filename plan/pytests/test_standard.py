"""The standard step: which way of calling a model is taken."""

import os
import tempfile
import unittest

try:
    import torch
except ImportError:
    torch = None

from _memroom_probe.standard import losses

SPEC = {"precision": "fp32", "autocast": "", "load_in": "", "shard": "", "loss": ""}


class Batch:
    device = "cpu"


class OnHost:
    """A model that stays where it is: there is no card here."""

    def to(self, device):
        return self


@unittest.skipIf(torch is None, "needs torch")
class Ways(unittest.TestCase):
    def setUp(self):
        from _memroom_probe.standard import loop

        self.loop = loop
        self.marks = tempfile.mkdtemp()

    def trials(self):
        return len(os.listdir(self.marks))

    def way(self, crashes):
        """A way whose process dies without a word in its first trials."""

        def call():
            trial = self.trials()
            open(os.path.join(self.marks, str(trial)), "w").close()
            if trial < crashes:
                os._exit(9)
            return torch.ones(1, requires_grad=True).sum()

        return losses.Way(call, "faithful")

    def chosen(self, crashes):
        ways = [
            self.way(crashes),
            losses.Way(lambda: torch.ones(1, requires_grad=True).sum(), "weak"),
        ]
        return self.loop.first_that_works(ways, OnHost(), Batch(), SPEC, torch).says

    def test_a_crash_by_chance_does_not_choose_a_weaker_way(self):
        self.assertEqual(self.chosen(1), "faithful")
        self.assertEqual(self.trials(), 2)

    def test_a_way_that_always_crashes_is_left(self):
        self.assertEqual(self.chosen(100), "weak")
        self.assertEqual(self.trials(), self.loop.TRIES)


if __name__ == "__main__":
    unittest.main()
