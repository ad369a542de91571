"""Accumulator that is never reset.

severity: error
remedy: micro_batch

Gradients are added to what is there. Applied and not cleared, each update contains all earlier
ones: no larger in bytes, but not the training that was meant.

Instead: Behind apply_gradients(), in the same `if`: `for a in accumulators:
a.assign(tf.zeros_like(a))`, or set the list to zeros again.
"""

import ast
import re
from typing import Any, Iterator

from ..accumulation import counts, own_body
from ..findings import Finding, finding
from ..flow import in_order, scopes
from ..names import LOOPS, calls, key, method, own, targets, walk, walk_here
from ..tensorflow import uses


def accumulators_kept(file: Any) -> Iterator[Finding]:
    """Gradients added up over a window, applied, and never set back to zero"""
    if not uses(file):
        return
    for scope in scopes(file):
        for loop in [s for s in scope.statements if isinstance(s, LOOPS)]:
            for s in [x for x in own_body(loop.body) if isinstance(x, ast.If) and counts(x.test)]:
                given = [
                    n
                    for inner in in_order(s.body)
                    for call in calls(inner)
                    if method(call) == "apply_gradients"
                    for a in call.args
                    for n in walk(a)
                ]
                called = {key(n.func) for n in given if isinstance(n, ast.Call)}
                applied = {key(n) or "" for n in given} - called - {""}
                for name in sorted(applied):
                    adding = _adds_to(loop, name)
                    if adding is None or _set_back(file, loop, adding, name):
                        continue
                    yield finding(
                        "accumulator-never-reset",
                        adding,
                        "`%s` is applied once in several steps and never set back to zero: every "
                        "update repeats all gradients since the start" % name,
                    )


def _adds_to(loop: Any, name: str) -> Any:
    """The statement that adds to an accumulator: a.assign_add(g) for a in name, name = [a + g ...]"""
    for s in in_order(loop.body):
        if isinstance(s, ast.For) and any(key(n) == name for n in walk_here(s.iter)):
            if any(isinstance(n, ast.Call) and method(n) == "assign_add" for n in walk(s)):
                return s
        if isinstance(s, ast.Assign) and any(key(t) == name for t in targets(s)):
            adds = any(
                isinstance(n, ast.BinOp)
                and isinstance(n.op, ast.Add)
                or isinstance(n, ast.Call)
                and method(n) in ("add", "add_n")
                for n in walk(s.value)
            )
            if adds and any(key(n) == name for n in walk(s.value)):
                return s
        for n in own(s) if isinstance(s, ast.Expr) else ():
            if isinstance(n, ast.Call) and method(n) == "assign_add":
                held = n.func.value if isinstance(n.func, ast.Attribute) else None
                if isinstance(held, ast.Subscript) and key(held.value) == name:
                    return s
    return None


def _set_back(file: Any, loop: Any, adding: Any, name: str) -> bool:
    """Anything else that writes to it in the loop, or a function that is given it"""
    for s in in_order(loop.body):
        if s is adding or adding in walk(s) and not isinstance(s, ast.For):
            continue
        if any(key(t) == name or key(getattr(t, "value", t)) == name for t in targets(s)):
            if not isinstance(s, LOOPS):
                return True
        if isinstance(s, ast.For) and s is not adding:
            if any(key(n) == name for n in walk_here(s.iter)) and any(
                isinstance(n, ast.Call) and re.search(r"assign|reset|zero|clear", method(n))
                for n in walk(s)
            ):
                return True
        for call in calls(s):
            if method(call) in ("apply_gradients", "zip", "add", "add_n", "assign_add", "len"):
                continue
            around = [a for a in call.args] + [k.value for k in call.keywords]
            owner = call.func.value if isinstance(call.func, ast.Attribute) else None
            if any(key(n) == name for a in around for n in walk(a)) and s is not adding:
                if not any(n is adding for n in walk(s)):
                    return True
            if owner is not None and any(key(n) == name for n in walk(owner)):
                return True
    return False


CHECKS = (accumulators_kept,)
