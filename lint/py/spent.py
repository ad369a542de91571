"""Losses that are kept after backward() went through them.

backward() frees the activations that the graph of a loss has saved. Whoever keeps the loss then
keeps its number and the nodes of the graph: some hundred bytes of host memory for each operation.
In a list that gets one a batch they add up; one an epoch costs nothing that anybody would notice.
"""

import ast
import re
from typing import Any, Dict, List, Set

from .findings import Finding
from .flow import scopes
from .names import File, constant, key, once, targets, walk, walk_here
from .passes import each_batch

_KEEPS = frozenset("graph-kept-in-list graph-kept-here loss-graph-accumulated".split())
_NUMBER = re.compile(r"loss|cost|err(or)?(_|$)|objective|nll|kld|elbo|penalty", re.I)
FREED = "; backward() frees its activations, the nodes of every iteration's graph stay"
STAYS = ": the graph of every iteration stays in memory"


def left(file: Any, used: bool) -> str:
    """What stays of something that is kept with its graph. used: a backward pass went through it"""
    return FREED if used and not _retains(file.nodes) else STAYS


def correct(file: Any, found: List[Finding]) -> None:
    """Says of a kept loss what stays of it, and makes it a hint where few are kept."""
    for f in found:
        if f.rule in _KEEPS and _is_spent(file, f.line):
            f.message = f.message.split(": ")[0] + FREED
            if f.rule == "graph-kept-in-list" and not each_batch(file, f.line):
                f.hint = True


def _is_spent(file: Any, line: int) -> bool:
    """losses.append(loss), where loss.backward() stands in the same function"""
    for s in file.statements:
        if s.lineno != line:
            continue
        names = _kept(s)
        if names and names <= _differentiated(file, file.places[s].function):
            return True
    return False


def _kept(s: ast.stmt) -> Set[str]:
    """loss of losses.append(loss), total += loss / n, total = total + loss"""
    if isinstance(s, ast.Expr) and isinstance(s.value, ast.Call):
        given: List[Any] = [*s.value.args, *(k.value for k in s.value.keywords)]
    elif isinstance(s, (ast.Assign, ast.AugAssign)):
        given = [s.value]
    else:
        return set()
    if any(isinstance(n, ast.Call) for a in given for n in walk_here(a)):
        return set()  # what is made of it has a graph of its own
    own = {key(t) for t in targets(s)}
    inside = {n.value for a in given for n in walk_here(a) if isinstance(n, ast.Attribute)}
    names = {
        key(n) or ""
        for a in given
        for n in walk_here(a)
        if isinstance(n, (ast.Name, ast.Attribute)) and n not in inside
    }
    return {n for n in names - own if _NUMBER.search(n.split(".")[-1])}


def _differentiated(file: Any, function: Any) -> Set[str]:
    """Names that backward() is called on here, or that are part of what it is called on"""
    return _by_function(file).get(function, set())


@once
def _by_function(file: File) -> Dict[Any, Set[str]]:
    return {scope.function: _of_scope(scope) for scope in scopes(file)}


def _of_scope(scope: Any) -> Set[str]:
    around = scope.function if scope.function is not None else scope.file.tree
    return set() if _retains(walk(around)) else {k for k in scope.feeds if k}


def _retains(nodes: List[Any]) -> bool:
    """loss.backward(retain_graph=True): nothing is freed"""
    return any(
        isinstance(n, ast.keyword)
        and n.arg in ("retain_graph", "create_graph")
        and constant(n.value, True)
        for n in nodes
    )
