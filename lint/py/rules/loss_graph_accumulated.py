"""Loss summed with its graph.

severity: error
remedy: detach

A loss tensor holds the graph that made it. backward() frees the activations it passes; the
graph itself, and the activations of every branch without a backward, stay as long as the sum.

Instead: Add a number: `total += loss.item()`. Or add `loss.detach()`, which does not wait for
the card.
"""

import ast
import re
from typing import Any, Iterator

from .. import proof
from ..findings import Finding, finding
from ..flow import COUNT, GRAPH, scopes
from ..keeping import detached, differentiated_here, kept_outputs, outlives, source, training_loop
from ..names import File, key, walk_here
from ..reasons import before_a_step, loss_of_small_problem, read_first, volatile, without_torch


def _how_many(value: Any) -> bool:
    """batch_size * world_size: numbers by their names"""
    leaves = [key(n) or "" for n in walk_here(value) if isinstance(n, (ast.Name, ast.Attribute))]
    return bool(leaves) and all(COUNT.search(k) or _SETTINGS.match(k) for k in leaves)


_SETTINGS = re.compile(r"(self\.|self$)?(args|cfg|config|opts?|hparams)?$")


def summed_loss(file: File) -> Iterator[Finding]:
    """total += loss"""
    if not file.uses_torch:
        return
    for scope in scopes(file):
        for kept in scope.trace.kept:
            if kept.how != "sum" or GRAPH not in kept.origins:
                continue
            loop = training_loop(file.places.get(kept.statement), scope)
            if loop is None or not outlives(scope, loop, kept.container):
                continue
            if _how_many(kept.value):
                continue
            yield finding(
                "loss-graph-accumulated",
                kept.statement,
                "`%s` is summed into `%s` with its graph: the graph of every iteration is kept until `%s` is gone"
                % (source(kept.value), kept.container, kept.container),
                detached(kept.value),
                safe=proof.detach_changes_nothing(scope, loop, kept.statement, kept.value),
                proven=differentiated_here(scope, loop, kept.statement, kept.value),
            )


CHECKS = (
    summed_loss,
    kept_outputs,
)
HINTS = (
    without_torch,
    volatile,
    before_a_step,
    read_first,
    loss_of_small_problem,
)
