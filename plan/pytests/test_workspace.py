"""The workspace of cuBLAS in a rehearsal: the card's, or what the environment asks for."""

import os
import unittest
from unittest import mock

from _memroom_probe.rehearse.workspace import blas_workspace

KIB, USUAL = 1024, 32 << 20


class Workspace(unittest.TestCase):
    def asked(self, value: str) -> int:
        with mock.patch.dict(os.environ, {"CUBLAS_WORKSPACE_CONFIG": value}):
            return blas_workspace(USUAL)

    def test_the_environment_decides(self) -> None:
        self.assertEqual(self.asked(":4096:8"), 4096 * 8 * KIB)
        self.assertEqual(self.asked(":16:8"), 16 * 8 * KIB)
        self.assertEqual(self.asked(":4096:2:16:8"), (4096 * 2 + 16 * 8) * KIB)
        self.assertEqual(self.asked(":0:0"), 0)

    def test_otherwise_the_card(self) -> None:
        with mock.patch.dict(os.environ):
            os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
            self.assertEqual(blas_workspace(USUAL), USUAL)
        self.assertEqual(self.asked("4096"), USUAL)


if __name__ == "__main__":
    unittest.main()
