"""Scheduler ahead of the optimizer.

severity: warning
remedy: micro_batch

With accumulation an optimizer step is several micro-steps. The schedule counts optimizer steps.

Instead: Move `scheduler.step()` behind `optimizer.step()`, inside the same `if`.
"""

import ast
import re
from typing import Any, Iterator, List

from ..accumulation import Window, own_body, windows
from ..findings import Finding, finding
from ..flow import in_order
from ..names import File, Loop, calls, key, method, targets, walk


def scheduler(file: File) -> Iterator[Finding]:
    for _, loop, window in windows(file):
        yield from _scheduler(file, loop, window)


def _scheduler(file: File, loop: Loop, window: Window) -> Iterator[Finding]:
    inside = set(in_order(window.condition.body))
    for s in own_body(loop.body):
        if s in inside or not isinstance(s, ast.Expr):
            continue
        for call in calls(s):
            if (
                method(call) == "step"
                and isinstance(call.func, ast.Attribute)
                and "sched" in (key(call.func.value) or "").lower()
            ):
                name = key(call.func.value) or ""
                if _counts_batches(file, name):
                    continue
                yield finding(
                    "scheduler-each-micro-step",
                    s,
                    "the scheduler steps at every micro-step, the optimizer once in several: a "
                    "schedule that counts optimizer steps runs ahead",
                    hint=name.startswith("self.") and not _made(file, name),
                )


def _made(file: File, name: str) -> List[Any]:
    """The statements that set a scheduler."""
    return [
        s
        for s in file.statements
        if isinstance(s, ast.Assign) and any(key(t) == name for t in targets(s))
    ]


def _counts_batches(file: File, name: str) -> bool:
    """OneCycleLR(optimizer, total_steps=epochs * len(loader)): as long as there are batches"""
    made = [s.value for s in _made(file, name) if isinstance(s.value, ast.Call)]
    given = [a for c in made for a in [*c.args, *(k.value for k in c.keywords)]]
    words = {key(n) for a in given for n in walk(a) if isinstance(n, (ast.Name, ast.Attribute))}
    for s in file.statements:  # total = epochs * len(loader)
        if isinstance(s, ast.Assign) and any(key(t) in words for t in targets(s)):
            given.append(s.value)
    asked = [n for a in given for n in walk(a)]
    return any(isinstance(n, ast.Call) and key(n.func) == "len" for n in asked) and not any(
        re.search(r"accum|accu_|micro|grad", key(n) or "", re.I)
        for n in asked
        if isinstance(n, (ast.Name, ast.Attribute))
    )


CHECKS = (scheduler,)
