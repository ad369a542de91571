"""What cuDNN takes for convolutions of all sizes, in lines of the table (docs/format/cards.md).

    python bench/guard/convolutions.py --rows ROWS [--seconds 60] [--seed 1]

Shapes are drawn: filters of usual sizes, channels and sides as people write them, batches from one
to hundreds. They run until the time is over. A shape that fails is left out.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from typing import Any, Iterator

HERE = os.path.dirname(os.path.abspath(__file__))
BATCHES = (1, 2, 4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 192, 256, 512, 1024)
CHANNELS = (8, 12, 16, 20, 24, 32, 40, 48, 64, 72, 80, 96, 112, 120, 128, 144, 160, 192, 224, 240)
CHANNELS += (256, 288, 320, 384, 448, 480, 512, 640, 768, 960, 1024, 1280, 1536, 2048)
SIDES = (1, 2, 4, 5, 6, 7, 8, 10, 12, 13, 14, 16, 17, 20, 24, 26, 28, 32, 35, 40, 48, 56, 60, 64)
SIDES += (72, 80, 96, 112, 128, 144, 160, 192, 224, 256, 320, 512)
# kernel, stride, padding, dilation, and how often
FORMS = {
    (3, 1, 1, 1): 40,
    (3, 2, 1, 1): 12,
    (1, 1, 0, 1): 20,
    (1, 2, 0, 1): 4,
    (5, 1, 2, 1): 5,
    (4, 2, 1, 1): 6,
    (7, 2, 3, 1): 3,
    (7, 1, 3, 1): 2,
    (2, 2, 0, 1): 4,
    (3, 1, 0, 1): 4,
    (3, 2, 0, 1): 2,
    (5, 2, 2, 1): 2,
    (3, 1, 2, 2): 4,
}
KINDS = {("fp32", "-"): 60, ("bf16", "-"): 20, ("fp32", "last"): 10, ("bf16", "last"): 10}
MOST_NUMBERS, MOST_WORK = 1 << 28, 3e11  # of image and result together; multiplications


def drawn(source: random.Random) -> Iterator[dict[str, Any]]:
    while True:
        (kernel, stride, pad, dilation), (dtype, layout) = (
            source.choices(list(of), list(of.values()))[0] for of in (FORMS, KINDS)
        )
        batch, side = source.choice(BATCHES), source.choice(SIDES)
        flat = source.random() < 0.1
        # mostly as many channels out as in, or twice or half
        into = 3 if source.random() < 0.05 else source.choice(CHANNELS)
        out = source.choice((into, into, 2 * into, into // 2, source.choice(CHANNELS)))
        out = source.choice(CHANNELS) if out < 8 else out
        height = 1 if flat else side
        width = side * source.choice((8, 16, 32)) if flat else side
        up = (width + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1
        down = 1 if flat else up
        taps = kernel if flat else kernel * kernel
        work = batch * out * down * up * into * taps
        numbers = batch * (into * height * width + out * down * up)
        if up < 1 or flat and layout == "last" or numbers > MOST_NUMBERS or work > MOST_WORK:
            continue
        yield {
            "x": [batch, into, height, width],
            "w": [out, into, 1 if flat else kernel, kernel],
            "stride": [1 if flat else stride, stride],
            "pad": [0 if flat else pad, pad],
            "dilation": [1 if flat else dilation, dilation],
            "groups": 1,
            "dtype": dtype,
            "channels_last": layout == "last",
        }


def line(c: dict[str, Any], sizes: dict[str, int]) -> str:
    layout = "last" if c["channels_last"] else "-"
    numbers = [*c["x"], *c["w"], *c["stride"], *c["pad"], *c["dilation"], c["groups"]]
    words = [c["dtype"], layout, sizes["forward"], sizes["input_grad"], sizes["weight_grad"]]
    return " ".join(map(str, numbers + words)) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", required=True)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    sys.path.insert(0, os.path.join(HERE, os.pardir, os.pardir, "plan", "calibrate"))
    import torch
    from scratch import Scratch  # type: ignore[import-not-found]

    scratch, end = Scratch(torch, "cuda"), time.monotonic() + asked.seconds
    count = 0
    with open(asked.rows, "a") as rows:
        for shape in drawn(random.Random(asked.seed)):
            if time.monotonic() > end:
                break
            try:
                rows.write(line(shape, scratch.convolution(shape)))
                count += 1
            except RuntimeError:  # this card or this release cannot run it
                pass
            if torch.cuda.memory_reserved() > 8 << 30:
                torch.cuda.empty_cache()
    print("%d convolutions" % count)


if __name__ == "__main__":
    main()
