"""Gradients of filters by Fourier transforms: their size, and where they may be."""

from __future__ import annotations

import importlib.util
import os
import tempfile
import types
import unittest
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _memroom_probe.rehearse import cudnn

# As measured on an H200, but for the last: a filter that takes none in a batch of 256.
KNOWN = """\
128 64 16 16 64 64 3 3 1 1 1 1 1 1 1 fp32 - 0 0 150994944
64 128 28 28 32 128 3 3 1 1 1 1 1 1 1 fp32 - 0 0 95551488
256 64 32 32 64 64 3 3 1 1 1 1 1 1 1 fp32 - 0 0 136430080
"""


@unittest.skipIf(importlib.util.find_spec("torch") is None, "needs torch")
class Transforms(unittest.TestCase):
    def asked(
        self,
        samples: int,
        channels: int,
        side: int,
        out: int,
        kernel: int = 3,
        padding: int = 1,
        stride: int = 1,
        groups: int = 1,
    ) -> int:
        import torch
        from _memroom_probe.rehearse.convolution import Measured

        x = (samples, channels, side, side)
        result = (side + 2 * padding - kernel) // stride + 1
        filter = (
            *(out, channels // groups, kernel, kernel, stride, stride, padding, padding),
            *(1, 1, groups, "fp32", "-"),
        )
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "workspaces")
            with open(path, "w") as file:
                file.write(KNOWN)
            card = {"workspaces": path, "workspaces_torch": torch.__version__}
            return Measured(card).transforms(x, (samples, out, result, result), filter)

    def test_sizes_as_on_the_card(self) -> None:
        self.assertEqual(self.asked(128, 64, 16, 64), 150994944)
        self.assertEqual(self.asked(64, 128, 28, 32), 95551488)
        # what GANs of batch 1024 and a ResNet of batch 2000 allocated above all else, within 0.3 %
        self.assertEqual(self.asked(1024, 128, 32, 64) >> 20, 6592)
        self.assertEqual(self.asked(2000, 16, 32, 16) >> 20, 2187)

    def test_none_where_none_was_seen(self) -> None:
        self.assertEqual(self.asked(1024, 64, 32, 64), 0)  # measured without at 256
        self.assertEqual(self.asked(32, 32, 16, 32), 0)
        self.assertEqual(self.asked(256, 256, 16, 256), 0)
        self.assertEqual(self.asked(256, 32, 112, 32), 0)
        self.assertEqual(self.asked(2000, 16, 32, 32), 0)  # more channels out than in
        for other in ({"stride": 2}, {"padding": 0}, {"groups": 4}, {"kernel": 7, "padding": 3}):
            self.assertEqual(self.asked(2000, 16, 32, 16, **other), 0)


@unittest.skipIf(importlib.util.find_spec("torch") is None, "needs torch")
class Sums(unittest.TestCase):
    """A filter's gradient takes beyond the proposal what another of as large a filter took."""

    def test_nearest_in_positions_and_no_other_algorithm(self) -> None:
        import torch
        from _memroom_probe.rehearse import convolution, cudnn

        def proposed(of: list[cudnn.Laid]) -> int:
            return 4 * sum(convolution.product(shape) for shape, _ in of) + 16

        sums = {1: 1 << 20, 8: 3 << 20, 64: 1 << 30}  # the last one is another algorithm's
        lines = [
            "%d 128 20 20 128 128 3 3 1 1 1 1 1 1 1 fp32 - 0 0 %d\n"
            % (n, proposed(self.laid(n, 128, 20)) + more)
            for n, more in sums.items()
        ]
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "workspaces")
            with open(path, "w") as file:
                file.writelines(lines)
            card = {"workspaces": path, "workspaces_torch": torch.__version__}
            recorder = types.SimpleNamespace(facts={})
            call = types.SimpleNamespace(stage=types.SimpleNamespace(recorder=recorder))
            made = convolution.Convolutions(types.SimpleNamespace(sms=132))
            made.table = convolution.Measured(card)
            asked, cudnn.asked = cudnn.asked, False
            try:
                for samples, more in ((2, 1 << 20), (12, 3 << 20), (60, 3 << 20)):
                    of = self.laid(samples, 128, 20)
                    ones = ([1, 1], [1, 1], [1, 1])
                    said = made.ask(call, "filter", torch.float32, of, False, *ones)[0]
                    self.assertEqual(said, proposed(of) + more, samples)
                narrower = self.laid(12, 64, 20)
                said = made.ask(call, "filter", torch.float32, narrower, False, *ones)[0]
                self.assertEqual(said, proposed(narrower))
            finally:
                cudnn.asked = asked

    def laid(self, samples: int, channels: int, side: int) -> list[cudnn.Laid]:
        from _memroom_probe.rehearse import convolution

        x, w = (samples, channels, side, side), (channels, channels, 3, 3)
        return convolution.forms(x, w, False, (1, 1), (1, 1), (1, 1))


if __name__ == "__main__":
    unittest.main()
