"""Modules whose samples come to depend on each other by chance: are they found, whatever is drawn?

The seeds are fixed, so the counts below do not change from run to run.
"""

import unittest

import torch
from _memroom_probe.fit.batch import tryout
from _memroom_probe.fit.batch.inputs import Cannot, Inputs

SEEDS = range(24)


class Chancy(torch.nn.Module):
    """Mixes its samples, skips its layer or adds noise, each with a probability of its own."""

    def __init__(self, mixes=0.0, skips=0.0, noise=0.0):
        super().__init__()
        self.mixes, self.skips, self.noise = mixes, skips, noise
        self.layer = torch.nn.Linear(6, 6)

    def forward(self, x):
        y = self.layer(x)
        if not self.training:
            return y
        if self.skips and float(torch.rand(())) < self.skips:
            y = x
        if self.mixes and float(torch.rand(())) < self.mixes:
            y = 0.6 * y + 0.4 * y[torch.randperm(len(y))]
        return y + self.noise * torch.randn_like(y) if self.noise else y


def refused(**chances):
    """In how many of the seeds the module is not cut."""
    count = 0
    for seed in SEEDS:
        torch.manual_seed(seed)
        module = Chancy(**chances)
        try:
            tryout.try_out(module, module.forward, Inputs((torch.randn(8, 6),), {}))
        except Cannot as why:
            if "at random" not in str(why):
                raise
            count += 1
    return count


class ChanceTest(unittest.TestCase):
    def test_a_module_that_mixes_every_time_is_refused(self):
        self.assertEqual(refused(mixes=1.0), len(SEEDS))
        self.assertEqual(refused(mixes=1.0, noise=0.1), len(SEEDS))

    def test_one_that_mixes_every_other_time_is_nearly_always_refused(self):
        # Chance hides it in each look with one half and a little.
        self.assertGreaterEqual(refused(mixes=0.5, noise=0.1), 20)
        self.assertGreaterEqual(refused(mixes=0.5), 20)

    def test_chance_that_leaves_samples_apart_is_accepted(self):
        self.assertEqual(refused(noise=0.1), 0)
        self.assertEqual(refused(skips=0.5), 0)
        self.assertEqual(refused(skips=0.5, noise=0.1), 0)


if __name__ == "__main__":
    unittest.main()
