"""Accumulation without scaling.

severity: warning
remedy: micro_batch

Gradients add up over micro-batches, so their sum grows with the number of micro-batches. The
large batch would have used their mean.

Instead: Divide: `(loss / accumulation_steps).backward()`.
"""

import ast
import re
from typing import Any, Iterator

from ..accumulation import Window, own_body, windows
from ..findings import Finding, finding
from ..flow import backward_values, in_order, innermost
from ..names import File, Loop, constant, key, method, own, walk
from ..reasons import without_torch


def unscaled(file: File) -> Iterator[Finding]:
    for _, loop, window in windows(file):
        yield from _unscaled(file, loop, window)


def _unscaled(file: File, loop: Loop, window: Window) -> Iterator[Finding]:
    if any(isinstance(n, ast.Call) and constant(_reduction(n)) == "sum" for n in file.nodes):
        return
    for s in own_body(loop.body):
        for value in backward_values(s):
            name = key(value)
            if not name or _scaled(loop, s, name) or _divides_by_steps(file):
                continue
            yield finding(
                "accumulation-unscaled",
                s,
                "`%s` is not divided by the number of accumulated micro-batches: gradients are that many times too large"
                % name,
                hint=_of_another(window),
            )


_STEPS = re.compile(r"accum|micro", re.I)


_OTHER_WINDOWS = re.compile(r"print|log|disp|report|freq|interval|save|eval|show", re.I)


def _of_another(window: Window) -> bool:
    """`if i % print_freq == 0: optimizer.step()`: what is meant by it only its author knows."""
    return any(
        _OTHER_WINDOWS.search(key(n) or "")
        for n in walk(window.condition.test)
        if isinstance(n, (ast.Name, ast.Attribute))
    )


def _divides_by_steps(file: File) -> bool:
    """term = criterion(out, y) / self.accumulation_steps, wherever: its author knows of it"""
    return any(
        isinstance(n, ast.BinOp)
        and isinstance(n.op, ast.Div)
        and _STEPS.search(key(innermost(n.right)) or "")
        or isinstance(n, ast.AugAssign)
        and isinstance(n.op, ast.Div)
        and _STEPS.search(key(n.value) or "")
        for n in file.nodes
    )


def _reduction(call: ast.Call) -> Any:
    return next((k.value for k in call.keywords if k.arg == "reduction"), None)


def _scaled(loop: Loop, backward: ast.stmt, name: str) -> bool:
    """Is the loss divided (or multiplied by a weight) before or in backward?"""
    for s in own_body(loop.body):
        for node in own(s):
            if (
                isinstance(node, ast.BinOp)
                and isinstance(node.op, (ast.Div, ast.Mult))
                and name in (key(innermost(node.left)), key(node.right))
            ):
                return True
            # a helper that is given the loss may scale it: accelerator.backward,
            # amp.scale_loss(loss, optimizer)
            if isinstance(node, ast.Call) and method(node) in ("scale_loss", "accumulate"):
                return True
            if isinstance(node, ast.Call) and method(node) == "backward" and node.args:
                return True  # accelerator, fabric and deepspeed divide by themselves
        if (
            isinstance(s, ast.AugAssign)
            and key(s.target) == name
            and isinstance(s.op, (ast.Div, ast.Mult))
        ):
            return True
        if isinstance(s, ast.If):
            for inner in in_order(s.body):
                if (
                    isinstance(inner, ast.Assign)
                    and any(key(t) == name for t in inner.targets)
                    and isinstance(inner.value, ast.BinOp)
                ):
                    return True
                if isinstance(inner, ast.AugAssign) and key(inner.target) == name:
                    return True
        if (
            isinstance(s, ast.Assign)
            and any(key(t) == name for t in s.targets)
            and _divides(s.value)
        ):
            return True
    return False


def _divides(value: ast.expr) -> bool:
    return any(
        isinstance(n, ast.BinOp) and isinstance(n.op, (ast.Div, ast.Mult)) for n in walk(value)
    )


CHECKS = (unscaled,)
HINTS = (without_torch,)
