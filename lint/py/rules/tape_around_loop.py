"""One tape around the whole loop.

severity: warning

A GradientTape records every operation inside its block and keeps what their gradients need
until the block ends.

Instead: Open the tape inside the loop, around one step's forward pass.
"""

import ast
from typing import Any, Iterator

from ..findings import finding
from ..flow import in_order
from ..names import LOOPS, File, key, method, walk
from ..tensorflow import uses


def tape_around_loop(file: File) -> Iterator[Any]:
    """with tf.GradientTape() as tape: for x in data: ... tape.gradient(...)"""
    if not uses(file):
        return
    for s in file.statements:
        if not isinstance(s, ast.With):
            continue
        for item in s.items:
            name = key(item.optional_vars) if item.optional_vars is not None else None
            made = item.context_expr
            if not name or not isinstance(made, ast.Call) or method(made) != "GradientTape":
                continue
            for loop in [x for x in in_order(s.body) if isinstance(x, LOOPS)]:
                if any(
                    isinstance(n, ast.Call)
                    and method(n) == "gradient"
                    and isinstance(n.func, ast.Attribute)
                    and key(n.func.value) == name
                    for n in walk(loop)
                ) and any(
                    isinstance(n, ast.Call) and method(n) in ("apply_gradients", "minimize")
                    for n in walk(loop)
                ):
                    yield finding(
                        "tape-around-loop",
                        s,
                        "one tape stands around the whole loop: it records the activations of every "
                        "step and frees none until the block ends",
                    )
                    break


CHECKS = (tape_around_loop,)
