"""Persistent workers of every round.

severity: warning
remedy: dataloader_workers

persistent_workers=True keeps the processes, their copies of the dataset and their batches as
long as the loader lives.

Instead: Make the loader once before the loop (set_epoch on its sampler), or leave out
persistent_workers.
"""

import ast
from typing import Any, Iterator

from ..findings import Finding, finding
from ..growth import long_loop
from ..names import constant, keyword, method, own


def workers(file: Any) -> Iterator[Finding]:
    """DataLoader(..., persistent_workers=True) in every epoch"""
    for s in file.statements:
        if long_loop(file, s) is None:
            continue
        for n in own(s):
            if (
                isinstance(n, ast.Call)
                and method(n) == "DataLoader"
                and constant(keyword(n, "persistent_workers")) is True
            ):
                yield finding(
                    "workers-in-loop",
                    s,
                    "every round of the loop starts a set of persistent workers, and those of "
                    "earlier rounds live as long as anything refers to their loader",
                )


CHECKS = (workers,)
