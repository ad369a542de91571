"""Full gradients on every rank.

severity: warning

FSDP shards gradients when it reduces them. While the sync is off, every rank holds the
gradients of the whole model: 4 bytes a parameter in fp32.

Instead: Reduce at every micro-batch: leave out `no_sync()`, or call
`set_requires_gradient_sync(True)`. It costs communication and saves the full gradients.
"""

import ast
from typing import Iterator

from ..findings import Finding, finding
from ..names import File, constant, key, method, own


def unsynced_gradients(file: File) -> Iterator[Finding]:
    """FSDP with no_sync or set_requires_gradient_sync(False)"""
    sharded = any(
        isinstance(n, ast.Call)
        and (file.callee(n) or "").split(".")[-1]
        in ("FullyShardedDataParallel", "FSDP", "fully_shard")
        for n in file.nodes
    )
    if not sharded:
        return
    for s in file.statements:
        if not file.places[s].loops:
            continue
        for node in own(s):
            if not isinstance(node, ast.Call):
                continue
            own_way = isinstance(node.func, ast.Attribute) and key(node.func.value) == "self"
            if own_way:
                continue  # a library's own no_sync
            if method(node) == "no_sync" or (
                method(node) == "set_requires_gradient_sync"
                and node.args
                and constant(node.args[0]) is not True
            ):
                yield finding(
                    "fsdp-unsynced-gradients",
                    node,
                    "without gradient sync each rank keeps the full, unsharded gradients of the "
                    "model until the next sync",
                )


CHECKS = (unsynced_gradients,)
