"""Frameworks that no remedy reaches. JAX itself is not needed: what counts is that somebody imports
a package of that name, and whether torch is there already.
"""

import os
import subprocess
import sys
import tempfile
import unittest

PROBE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "py")
PROGRAM = """
import sys
from _memroom_probe import fit
fit.install([{"id": "micro_batch"}], lambda kind, text, **f: print(kind, f["id"], text))
import %s
"""


class Jax(unittest.TestCase):
    def said(self, imported):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("jax", "torch"):
                os.mkdir(os.path.join(folder, name))
                with open(os.path.join(folder, name, "__init__.py"), "w") as f:
                    f.write("__version__ = '1.0'")
            done = subprocess.run(
                [sys.executable, "-c", PROGRAM % imported],
                env=dict(os.environ, PYTHONPATH=os.pathsep.join((PROBE, folder))),
                capture_output=True,
                text=True,
                check=True,
            )
        return done.stdout

    def test_told_once_with_what_helps(self):
        said = self.said("jax, jax")
        self.assertEqual(said.count("declined framework"), 1, said)
        for words in ("jax.checkpoint", "donate_argnums", "XLA_PYTHON_CLIENT_PREALLOCATE"):
            self.assertIn(words, said)

    def test_beside_torch_nothing_is_said(self):
        self.assertNotIn("framework", self.said("torch, jax"))


if __name__ == "__main__":
    unittest.main()
