"""Compiled anew in every round.

severity: warning

Each call compiles a program for a new model object. The cache of compiled code keeps the
programs, their constants and, with CUDA graphs, their memory pools.

Instead: Compile once before the loop. Where a new model is needed in every round, call
`torch.compiler.reset()` (`torch._dynamo.reset()`) at its end, or load new weights into the
compiled one.
"""

import ast
import re
from typing import Any, Iterator

from ..findings import Finding, finding
from ..growth import long_loop
from ..names import key, own, walk
from ..reasons import measured


def programs(file: Any) -> Iterator[Finding]:
    """torch.compile(model) in every round"""
    for s in file.statements:
        loop = long_loop(file, s)
        if loop is None:
            continue
        for n in own(s):
            if isinstance(n, ast.Call) and (file.callee(n) or "") in (
                "torch.compile",
                "torch.jit.trace",
                "torch.jit.script",
            ):
                yield finding(
                    "compiled-in-loop",
                    s,
                    "every round of the loop compiles a program of its own (`%s`), and the cache "
                    "of compiled code keeps it" % key(n.func),
                    hint=_of_folds(loop),
                )


_FOLDS = re.compile(r"(^|_)(fold|split|seed|repeat)s?($|_)|kfold", re.I)


def _of_folds(loop: Any) -> bool:
    """for fold, (train, val) in enumerate(splits): a handful"""
    head = [loop.target, loop.iter] if isinstance(loop, ast.For) else []
    return any(
        _FOLDS.search((key(n) or "").split(".")[-1])
        for part in head
        for n in walk(part)
        if isinstance(n, (ast.Name, ast.Attribute))
    )


CHECKS = (programs,)
HINTS = (measured,)
