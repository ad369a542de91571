"""Cache emptied at every step.

severity: warning
remedy: expandable_segments

The cache is what makes the next step's allocations free. Emptying it does not lower what the
step needs.

Instead: Remove it from the loop. If reserved memory is far above allocated, use
PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.
"""

import ast
import re
from typing import Any, Iterator

from .. import evidence
from ..accumulation import own_body
from ..findings import finding
from ..flow import backward_values, scopes
from ..names import File, calls, method, walk
from ..reasons import measured


def empty_cache(file: File) -> Iterator[Any]:
    """torch.cuda.empty_cache() at every step"""
    for scope in scopes(file):
        for s in scope.statements:
            place = file.places.get(s)
            if not place or not place.loops or place.handler or not isinstance(s, ast.Expr):
                continue
            for call in calls(s):
                name = file.callee(call) or ""
                if not name.endswith("cuda.empty_cache"):
                    continue
                loop = place.loops[-1]
                guarded = [i for i in place.ifs if loop in file.places[i].loops]
                # once an epoch (after an inner loop over batches) is nobody's bottleneck
                if scope.has_backward(loop) and not guarded and _direct_backward(loop):
                    yield finding(
                        "empty-cache-in-loop",
                        s,
                        "the cache is emptied at every step: the next step asks the driver for the same memory again, slowly, and the peak is the same",
                        hint=_measures_memory(file, loop)
                        or evidence.few_rounds(loop, file)
                        or evidence.rounds_around(file, s) <= evidence.FEW,
                    )


_READINGS = re.compile(
    r"^(reset_(max|peak)_memory_\w+|memory_stats|max_memory_(allocated|reserved))$"
)


def _measures_memory(file: File, loop: Any) -> bool:
    """torch.cuda.reset_peak_memory_stats() in the same loop: the peak of each step is wanted"""
    return any(isinstance(n, ast.Call) and _READINGS.match(method(n) or "") for n in walk(loop))


def _direct_backward(loop: Any) -> bool:
    return any(True for s in own_body(loop.body) for _ in backward_values(s))


CHECKS = (empty_cache,)
HINTS = (measured,)
