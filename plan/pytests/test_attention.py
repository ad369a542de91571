"""The workspace of the memory-efficient attention kernel, by the same file as package tape's test
of its own rules.
"""

import importlib.util
import json
import os
import unittest

VECTORS = os.path.join(
    os.path.dirname(os.path.abspath(__file__)),
    "..",
    "..",
    "tape",
    "testdata",
    "efficient_attention.jsonl",
)


@unittest.skipIf(importlib.util.find_spec("torch") is None, "needs torch")
class Efficient(unittest.TestCase):
    def test_vectors(self):
        from _memroom_probe.rehearse import attention

        checked = 0
        with open(VECTORS, encoding="utf-8") as lines:
            for line in lines:
                c = json.loads(line)
                b, heads, s, t, d = c["shape"]
                got = attention.efficient_workspace(c["half"], c["large"], b * heads, s, t, d)
                self.assertEqual(got, c["bytes"], c)
                checked += 1
        self.assertGreater(checked, 200)

    def test_vectors_of_fused_kernels(self):
        from _memroom_probe.rehearse import attention

        checked = 0
        with open(os.path.join(os.path.dirname(VECTORS), "fused_attention.jsonl")) as lines:
            for line in lines:
                c = json.loads(line)
                b, heads, s, t, d = c["shape"]
                if c["kernel"] == "flash":
                    got = list(attention.flash_workspace(b * heads, s, d))
                else:
                    got = [attention.cudnn_workspace(b * heads, s, t, d, c["grouped"])]
                self.assertEqual(got, c["bytes"], c)
                checked += 1
        self.assertGreater(checked, 300)


if __name__ == "__main__":
    unittest.main()
