"""Gradients kept as zeros.

severity: warning
remedy: set_to_none

One more copy of the weights stays allocated through the forward pass, where the peak is.

Instead: Use `zero_grad(set_to_none=True)`, the default since PyTorch 2.0. It changes results
where a parameter gets no gradient in some steps: with zeros, momentum and weight decay still
move it. Code that reads `p.grad` must expect None.
"""

import ast
from typing import Any, Iterator

from ..findings import finding
from ..names import File, constant, keyword, method


def zeroed_gradients(file: File) -> Iterator[Any]:
    """zero_grad(set_to_none=False)"""
    for node in file.nodes:
        if isinstance(node, ast.Call) and method(node) == "zero_grad":
            value = keyword(node, "set_to_none")
            if value is None and node.args:
                value = node.args[0]
            if constant(value) is False:
                yield finding(
                    "gradients-kept-as-zeros",
                    node,
                    "gradients are filled with zeros instead of freed: they stay allocated through the forward pass",
                    [
                        [
                            value.lineno,
                            value.col_offset,
                            value.end_lineno,
                            value.end_col_offset,
                            "True",
                        ]
                    ],
                )


CHECKS = (zeroed_gradients,)
