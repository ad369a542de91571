"""The scratch of reductions, by the same file as package tape's test of its own rules."""

import json
import os
import unittest

from _memroom_probe.rehearse import reduction

VECTORS = os.path.join(
    os.path.dirname(os.path.abspath(__file__)), "..", "..", "tape", "testdata", "reductions.jsonl"
)


class Reductions(unittest.TestCase):
    def test_vectors(self):
        checked = 0
        with open(VECTORS, encoding="utf-8") as lines:
            for line in lines:
                c = json.loads(line)
                got = reduction.scratch(c["shape"], c["strides"], c["dims"])
                self.assertEqual(list(got), c["scratch"], c)
                checked += 1
        self.assertGreater(checked, 200)


if __name__ == "__main__":
    unittest.main()
