"""Last partial window.

severity: hint
remedy: micro_batch

Batches left over at the end of an epoch are never applied, or are mixed into the next epoch's
first window.

Instead: Step as well when `i + 1 == len(loader)`, or after the loop.
"""

import ast
from typing import Iterator, List

from ..accumulation import Window, _steps, windows
from ..findings import Finding, finding
from ..flow import Scope, in_order
from ..names import File, Loop, method, walk


def last(file: File) -> Iterator[Finding]:
    for scope, loop, window in windows(file):
        yield from _last(scope, loop, window)


def _last(scope: Scope, loop: Loop, window: Window) -> Iterator[Finding]:
    """A loop with an end whose last window may be partial, and nothing that steps for it."""
    if not isinstance(loop, ast.For) or any(
        isinstance(n, ast.BoolOp) and isinstance(n.op, ast.Or) for n in walk(window.condition.test)
    ):
        return
    names = {n.id for n in walk(window.condition.test) if isinstance(n, ast.Name)}
    if (
        not any(isinstance(n, ast.Call) and method(n) == "enumerate" for n in walk(loop.iter))
        or "enumerate" in names
    ):
        return
    for body in _blocks(scope.body):
        if loop in body:
            later = body[body.index(loop) + 1 :] + loop.orelse
            if any(True for s in in_order(later) for _ in _steps(s)):
                return
    yield finding(
        "last-window-dropped",
        window.condition,
        "when the number of batches is not a multiple of the window, the last gradients are dropped or leak into the next epoch",
    )


def _blocks(body: List[ast.stmt]) -> Iterator[List[ast.stmt]]:
    yield body
    for s in body:
        for field in ("body", "orelse", "finalbody"):
            inner = getattr(s, field, None)
            if (
                isinstance(inner, list)
                and inner
                and not isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            ):
                yield from _blocks(inner)
        for h in getattr(s, "handlers", []):
            yield from _blocks(h.body)


CHECKS = (last,)
