"""Layer keeps what passes through it.

severity: warning

A tensor in an attribute outlives its step. A list of them grows with every call.

Instead: Return the tensor as an output, or keep a number (`tf.reduce_mean(y)` in a Keras metric).
"""

import ast
from typing import Any, Iterator

from ..attributes import made_in, stored
from ..findings import Finding, finding
from ..flow import in_order
from ..names import FUNCTIONS, key, method, targets, walk
from ..tensorflow import uses


def layers_keep(file: Any) -> Iterator[Finding]:
    """self.seen.append(y) or self.last = y in a layer's call()"""
    if not uses(file):
        return
    for c in file.classes.values():
        if not any((file.dotted(b) or "").split(".")[-1] in ("Layer", "Model") for b in c.bases):
            continue
        for f in [f for f in c.body if isinstance(f, FUNCTIONS) and f.name == "call"]:
            made = made_in(f)
            for s in in_order(f.body):
                name, kept = stored(s)
                if not name or not made & {n.id for n in walk(kept) if isinstance(n, ast.Name)}:
                    continue
                grows = isinstance(s, ast.Expr)
                if grows and _emptied(c, name):
                    continue
                yield finding(
                    "layer-keeps-tensors",
                    s,
                    "`%s` keeps %s of `%s` after its step has ended"
                    % (name, "the tensor of every call" if grows else "the last tensor", c.name),
                    hint=not grows or not _eager(file),
                )


def _emptied(c: Any, name: str) -> bool:
    return any(
        isinstance(n, ast.Call)
        and method(n) in ("clear", "pop")
        and isinstance(n.func, ast.Attribute)
        and key(n.func.value) == name
        or isinstance(n, ast.Assign)
        and any(key(t) == name for t in targets(n))  # kept, self.kept = self.kept, []
        and not _in_init(c, n)
        for n in walk(c)
    )


def _in_init(c: Any, node: ast.AST) -> bool:
    return any(
        isinstance(f, FUNCTIONS)
        and f.name in ("__init__", "build")
        and any(n is node for n in walk(f))
        for f in c.body
    )


def _eager(file: Any) -> bool:
    """Is call() run step by step? A graph holds one symbol, whatever is appended to a list."""
    switched = any(
        isinstance(n, ast.keyword)
        and n.arg == "run_eagerly"
        and getattr(n.value, "value", None) is True
        or isinstance(n, ast.Call)
        and method(n) == "run_functions_eagerly"
        for n in file.nodes
    )
    tape = any(isinstance(n, ast.Call) and method(n) == "GradientTape" for n in file.nodes)
    traced = any(
        isinstance(n, ast.Attribute) and n.attr == "function" and key(n) == "tf.function"
        for n in file.nodes
    )
    return switched or tape and not traced


CHECKS = (layers_keep,)
