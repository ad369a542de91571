"""Accumulation that forgets.

severity: error
remedy: micro_batch

Accumulators that start at zero in every step accumulate nothing.

Instead: Create the accumulators once before the loop. Reset them only after apply_gradients().
"""

import ast
from typing import Any, Iterator, Set

from ..accumulation import counts, own_body
from ..findings import Finding, finding
from ..flow import in_order, scopes
from ..names import LOOPS, File, calls, key, method, walk
from ..tensorflow import uses


def accumulators(file: File) -> Iterator[Finding]:
    """Gradient accumulators made anew in every round"""
    if not uses(file):
        return
    for scope in scopes(file):
        for loop in [s for s in scope.statements if isinstance(s, LOOPS)]:
            applied = _applied_in_window(loop)
            if not applied:
                continue
            for s in own_body(loop.body):
                if (
                    isinstance(s, ast.Assign)
                    and key(s.targets[0]) in applied
                    and _zeros(file, s.value)
                ):
                    yield finding(
                        "accumulator-recreated",
                        s,
                        "`%s` is set to zeros at every step, the optimizer applies it once in several: all but the last micro-batch are thrown away"
                        % key(s.targets[0]),
                    )


def _applied_in_window(loop: Any) -> Set[str]:
    """Variables that apply_gradients uses under a modulo condition in this loop."""
    used: Set[Any] = set()
    for s in own_body(loop.body):
        if isinstance(s, ast.If) and counts(s.test):
            for inner in in_order(s.body):
                for call in calls(inner):
                    if method(call) == "apply_gradients":
                        used.update(n.id for n in walk(call) if isinstance(n, ast.Name))
    return used


def _zeros(file: File, value: ast.expr) -> bool:
    return any(
        isinstance(n, ast.Call) and method(n) in ("zeros_like", "zeros") for n in walk(value)
    ) and not isinstance(value, ast.BinOp)


CHECKS = (accumulators,)
