"""Garbage collector switched off.

severity: warning

Python frees cycles only when its collector runs. Models, trainers and exceptions are often
parts of cycles.

Instead: Leave the collector on, or call `gc.collect()` once in a while (every epoch, every
1,000 steps).
"""

import ast
from typing import Any, Iterator

from ..findings import Finding, finding
from ..flow import scopes
from ..names import constant


def collector(file: Any) -> Iterator[Finding]:
    """gc.disable() or gc.set_threshold(0), and no collect() in a file that trains"""
    off = None
    for n in file.nodes:
        if not isinstance(n, ast.Call):
            continue
        name = file.callee(n) or ""
        if name in ("gc.enable", "gc.collect"):
            return
        nothing = name == "gc.set_threshold" and n.args and constant(n.args[0]) == 0
        if name == "gc.disable" or nothing:
            off = off or n
    if off is not None and any(scope.trains for scope in scopes(file)):
        yield finding(
            "collector-off",
            off,
            "the garbage collector is switched off and nothing calls collect(): objects that refer "
            "to each other, and the tensors they hold, are never freed",
        )


CHECKS = (collector,)
