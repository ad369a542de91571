"""The lines of code that do what `run --fit` does: memroom.fit and the decorator that accelerate's
users know.
"""

import os
import sys
import unittest

from test_governor import classify, deep, points

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))
import memroom  # noqa: E402
from _memroom_probe.fit.calls import outermost  # noqa: E402


class Decorator(unittest.TestCase):
    def test_same_calls_as_accelerate(self):
        """Both decorators around the same function: the same sizes tried, the same result."""
        from accelerate.utils import find_executable_batch_size as theirs

        tries = {}
        for name, decorator in (("ours", memroom.find_executable_batch_size), ("theirs", theirs)):
            seen = tries[name] = []

            @decorator(
                starting_batch_size=64,
                reduce_batch_size_fn=None if name == "ours" else lambda: seen[-1] // 2,
            )
            def train(batch_size, factor):
                seen.append(batch_size)
                if batch_size * factor > 40:
                    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
                return batch_size

            self.assertEqual(train(2), 16)
            with self.assertRaisesRegex(RuntimeError, "No executable batch size found"):
                train(1000)
            with self.assertRaises(TypeError):
                train(1, 2)
        self.assertEqual(tries["ours"], tries["theirs"])

    def test_other_errors_pass(self):
        @memroom.find_executable_batch_size(starting_batch_size=4)
        def train(batch_size):
            raise ValueError("not about memory")

        with self.assertRaisesRegex(ValueError, "not about memory"):
            train()


class Fit(unittest.TestCase):
    def test_in_place_for_the_call_only(self):
        seen = []

        def train(model):
            seen.append(outermost.in_use())
            classify(model, points()[0]).backward()
            return model

        model = deep()
        self.assertIs(memroom.fit(train, model), model)
        self.assertEqual((seen, outermost.in_use()), ([True], False))
        self.assertTrue(all(p.grad is not None for p in model.parameters()))


if __name__ == "__main__":
    unittest.main()
