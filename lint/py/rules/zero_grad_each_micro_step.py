"""Accumulation that forgets.

severity: error
remedy: micro_batch

Zeroing at every micro-step leaves only the last micro-batch's gradients: the memory of the
small batch, but not the result of the large one.

Instead: Call `zero_grad()` directly after `optimizer.step()`, inside the same `if`.
"""

import ast
from typing import Iterator

from ..accumulation import Window, own_body, windows
from ..findings import Finding, finding
from ..flow import in_order
from ..names import File, Loop, calls, method, targets, walk
from ..reasons import without_torch


def zeroed(file: File) -> Iterator[Finding]:
    for _, loop, window in windows(file):
        yield from _zeroed(loop, window)


def _saves_gradients(loop: Loop) -> bool:
    """buffer = [b + p.grad for b, p in zip(buffer, weights)]: what is zeroed was added up before"""
    return any(
        isinstance(s, (ast.Assign, ast.AugAssign))
        and not any(isinstance(t, ast.Attribute) and t.attr == "grad" for t in targets(s))
        and any(isinstance(n, ast.Attribute) and n.attr == "grad" for n in walk(s.value))
        for s in in_order(loop.body)
    )


def _zeroed(loop: Loop, window: Window) -> Iterator[Finding]:
    if _saves_gradients(loop):
        return
    inside = set(in_order(window.condition.body))
    for s in own_body(loop.body):
        if s in inside or not isinstance(s, ast.Expr):
            continue
        for call in calls(s):
            if method(call) == "zero_grad":
                yield finding(
                    "zero-grad-each-micro-step",
                    s,
                    "gradients are zeroed at every micro-step, the optimizer steps once in several: all but the last micro-batch are thrown away",
                )


CHECKS = (zeroed,)
HINTS = (without_torch,)
