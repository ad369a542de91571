"""One CUDA graph for each input shape.

severity: info

Every new input shape is captured as a CUDA graph with a private memory pool that nothing else
can use. Batches padded to their longest sample have many shapes.

Instead: Pad to a few fixed lengths (pad_to_multiple_of=64, padding="max_length"), or use
mode="default".
"""

import ast
import re
from typing import Iterator

from .. import evidence
from ..findings import Finding, finding
from ..names import File, constant, key, keyword, own


def _behind_a_switch(file: File, call: ast.Call) -> bool:
    s = next((s for s in file.statements if call in set(own(s))), None)
    return s is not None and evidence.under_a_switch(file, s)


def graphs_per_shape(file: File) -> Iterator[Finding]:
    """torch.compile(mode="reduce-overhead")"""
    for call in file.nodes:
        if not isinstance(call, ast.Call) or (file.callee(call) or "") != "torch.compile":
            continue
        if call.args and re.search(r"optim|step", key(call.args[0]) or "", re.I):
            continue  # what it is given has one shape
        if constant(keyword(call, "mode")) in ("reduce-overhead", "max-autotune"):
            yield finding(
                "cuda-graph-per-shape",
                call,
                'mode="%s" records a CUDA graph for every new input shape, and each keeps its own '
                "memory pool" % constant(keyword(call, "mode")),
                hint=not evidence.pads_to_longest(file) or _behind_a_switch(file, call),
            )


CHECKS = (graphs_per_shape,)
