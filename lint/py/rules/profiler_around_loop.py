"""Profiler around the whole training.

severity: warning

The profiler keeps every event until it is stopped: thousands for each step, in host memory.

Instead: Profile a few steps: schedule=torch.profiler.schedule(wait=1, warmup=1, active=3), and
call `profiler.step()`.
"""

import ast
from typing import Iterator

from .. import evidence
from ..findings import Finding, finding
from ..flow import in_order, scopes
from ..names import LOOPS, File, constant, keyword, method, walk
from ..reasons import measured


def profiler(file: File) -> Iterator[Finding]:
    """with torch.profiler.profile(): the whole training loop"""
    for scope in scopes(file):
        for s in scope.statements:
            if not isinstance(s, (ast.With, ast.AsyncWith)):
                continue
            for item in s.items:
                call = item.context_expr
                name = (file.callee(call) or "") if isinstance(call, ast.Call) else ""
                if name not in (
                    "torch.profiler.profile",
                    "torch.autograd.profiler.profile",
                ):
                    continue
                if keyword(call, "schedule") is not None:
                    continue
                if constant(keyword(call, "enabled")) is False or getattr(call, "args", None):
                    continue
                for inner in in_order(s.body):
                    if (
                        isinstance(inner, LOOPS)
                        and scope.has_backward(inner)
                        and not _breaks(inner)
                        and evidence.rounds_around(file, inner.body[0], [inner]) > evidence.FEW
                    ):
                        yield finding(
                            "profiler-around-loop",
                            s,
                            "the profiler records the whole loop: its events of every step stay in "
                            "host memory until the block ends",
                        )
                        break


def _breaks(loop: ast.stmt) -> bool:
    """A loop that ends after a few steps."""
    if (
        isinstance(loop, ast.For)
        and isinstance(loop.iter, ast.Call)
        and method(loop.iter) == "range"
    ):
        count = constant(loop.iter.args[-1]) if loop.iter.args else None
        if isinstance(count, int) and count <= 100:
            return True
    return any(isinstance(n, ast.Break) for n in walk(loop))


CHECKS = (profiler,)
HINTS = (measured,)
