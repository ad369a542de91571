"""Micro-batches summed before one backward.

severity: warning
remedy: micro_batch

Accumulation saves memory because each micro-batch's graph is freed by its own backward. A sum
of losses keeps them all: the memory of the large batch.

Instead: Call `(loss / accumulation_steps).backward()` in every micro-step, and
`optimizer.step()` once in several.
"""

import ast
from typing import Any

from ..evidence import adapts
from ..names import FUNCTIONS
from ..reasons import _around, without_torch


def _adapting_class(file: Any, line: int) -> bool:
    """What such a learner sums up is taken by another method of its class."""
    return adapts(_around(file, line, FUNCTIONS + (ast.ClassDef,)))


HINTS = (
    without_torch,
    _adapting_class,
)
