"""What a card gives up beyond the allocator, and the scratch that cuDNN takes for given shapes.

Usage: run.py SHAPES.json, where SHAPES holds "convolutions" and "recurrent" (lists, as `memroom
calibrate --list` prints them) and "seconds" (no shape is begun after that). Writes one JSON line a
thing: first the stages, after each of which it holds still until a line comes on standard input, so
that the caller can read the driver; then a line a shape; "end" last.

Stages: "context" (one tiny tensor), "kernels" (fp32 training of linear layers and attention: cuBLAS
and plain kernels), "cudnn" (half-precision attention, convolution and an LSTM on top). The caller
subtracts what the allocator reserved from what the driver says is used. Memory for the allocator is
small and left alone between stages.
"""

import json
import sys
import time
from typing import Any, Dict

ENOUGH = 4 << 30  # of cache: shapes come in all sizes, and the card may not be ours alone


def say(line: Dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


def hold(line: Dict[str, Any]) -> None:
    """Says which stage is reached and holds still until told to go on."""
    say(line)
    if not sys.stdin.readline():
        sys.exit(0)


def main(path: str) -> None:
    with open(path) as f:
        wanted = json.load(f)
    try:
        import torch
    except Exception as problem:
        say({"error": "import torch: %s" % problem})
        return
    if not torch.cuda.is_available():
        say({"error": "torch sees no CUDA device (see `memroom doctor`)"})
        return
    from scratch import Scratch
    from training import stages

    for line in stages(torch):
        hold(line)
    torch.cuda.empty_cache()
    scratch = Scratch(torch, "cuda")
    until = time.monotonic() + wanted.get("seconds", 60)
    left = 0
    for kind, measure in (("recurrent", scratch.recurrent), ("convolutions", scratch.convolution)):
        for i, shape in enumerate(wanted.get(kind) or []):
            if time.monotonic() > until:
                left += 1
                continue
            try:
                say({kind: i, "bytes": measure(shape)})
            except (
                Exception
            ) as problem:  # a shape that this card or this version cannot run is one shape less
                say(
                    {
                        kind: i,
                        "failed": "%s: %s"
                        % (type(problem).__name__, str(problem).split("\n")[0][:200]),
                    }
                )
                torch.cuda.empty_cache()
            if torch.cuda.memory_reserved() > ENOUGH:
                torch.cuda.empty_cache()
    say({"end": True, "left": left})


if __name__ == "__main__":
    main(sys.argv[1])
