"""Gradient accumulation done wrong."""

import ast
from typing import Any, Iterator, List, Optional, Tuple

from .flow import Scope, backward_values, in_order, scopes
from .names import LOOPS, File, Loop, key, method, once, own, targets, walk


@once
def windows(file: File) -> List[Tuple[Scope, Loop, "Window"]]:
    """(function's scope, loop, its window) of every loop that accumulates gradients."""
    return [
        (scope, loop, window)
        for scope in scopes(file)
        for loop in scope.statements
        if isinstance(loop, LOOPS)
        for window in [_window(file, loop)]
        if window
    ]


class Window:
    """An optimizer step taken once in several iterations: `if (i + 1) % n == 0: optimizer.step()`."""

    def __init__(self, condition: ast.If, step: ast.Call) -> None:
        self.condition, self.step = condition, step


def own_body(body: List[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a loop's own body: through with and try, not into ifs and inner loops."""
    for s in body:
        yield s
        if isinstance(s, (ast.With, ast.AsyncWith, ast.Try)):
            yield from own_body(s.body)


def _window(file: File, loop: Any) -> Optional[Window]:
    own_statements = list(own_body(loop.body))
    if not any(True for s in own_statements for _ in backward_values(s)):
        return None
    for s in own_statements:
        if not isinstance(s, ast.If) or not (counts(s.test) or _counted(s.test, loop)):
            continue
        inside = list(in_order(s.body))
        steps = [call for inner in inside for call in _steps(inner)]
        if not steps or any(True for inner in inside for _ in backward_values(inner)):
            continue
        # Another optimizer that steps outside: not a window but turns, as a GAN's generator and
        # critic take them.
        if any(True for other in in_order(loop.body) if other not in inside for _ in _steps(other)):
            continue
        return Window(s, steps[0])
    return None


def _steps(statement: ast.stmt) -> Iterator[ast.Call]:
    for node in own(statement):
        if (
            isinstance(node, ast.Call)
            and method(node) == "step"
            and isinstance(node.func, ast.Attribute)
        ):
            owner = (key(node.func.value) or "").lower()
            if "sched" in owner or "scaler" in owner and not node.args:
                continue
            if "optim" in owner or owner in (
                "opt",
                "self.opt",
                "scaler",
                "self.scaler",
                "sgd",
                "adam",
            ):
                yield node


def counts(test: ast.expr) -> bool:
    """A modulo compared with something: (i + 1) % n == 0, not i % n."""
    return any(isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mod) for n in walk(test))


def _counted(test: ast.expr, loop: Any) -> bool:
    """at = (at + 1) % n; if at == 0"""
    names = {key(n) for n in walk(test) if isinstance(n, (ast.Name, ast.Attribute))}
    return isinstance(test, ast.Compare) and any(
        isinstance(s, ast.Assign)
        and names & {key(t) for t in targets(s)} - {None}
        and (counts(s.value) or isinstance(s.value, ast.Call) and method(s.value) == "divmod")
        for s in own_body(loop.body)
    )
