"""Cache that keeps tensors.

severity: error
remedy: detach

A cache holds every result it has seen, on the card and, in grad mode, together with the graph
and its activations.

Instead: Compute it under `torch.no_grad()`, return `x.detach().cpu()`, and bound the cache
(`lru_cache(maxsize=256)`).
"""

import ast
import re
from typing import Any, Iterator

from ..findings import Finding, finding
from ..flow import CARD, GRAPH, Kept, Scope, bounded_containers, scopes
from ..keeping import cleared_in, detached, module_containers, source
from ..names import FUNCTIONS, File, key, walk, walk_here
from ..reasons import volatile, without_torch


def kept_by_cache(file: File) -> Iterator[Finding]:
    """@lru_cache on a function that returns what a model made; a dict that remembers it"""
    if "torch" not in file.modules:
        return
    for scope in scopes(file):
        function = scope.function
        if function is None:
            continue
        cache = next(filter(None, (_cache(file, d) for d in function.decorator_list)), None)
        if cache is not None:
            if any(
                a.arg not in ("self", "cls") for a in walk(function.args) if isinstance(a, ast.arg)
            ):
                yield from _cached(scope, *cache)
            continue  # without arguments there is one result
        for kept in scope.trace.kept:
            if (
                kept.how == "store"
                and GRAPH in kept.origins
                and not scope.trains
                and _remembers(scope, kept)
                and kept.container not in bounded_containers(file)
                and not cleared_in(file.tree, kept.container)
            ):
                yield finding(
                    "cache-keeps-tensors",
                    kept.statement,
                    "`%s` is remembered in `%s` with its graph: every new entry keeps the "
                    "activations it was computed from" % (source(kept.value), kept.container),
                    detached(kept.value),
                )


def _cache(file: File, decorator: ast.expr) -> Any:
    """(decorator, bounded) of functools.lru_cache and functools.cache; else None."""
    call = decorator if isinstance(decorator, ast.Call) else None
    name = (file.dotted(call.func if call else decorator) or "").split(".")[-1]
    if name == "cache":
        return (decorator, False)
    if name != "lru_cache":
        return None
    size = next((k.value for k in call.keywords if k.arg == "maxsize"), None) if call else None
    if size is None and call is not None and call.args:
        size = call.args[0]
    unbounded = isinstance(size, ast.Constant) and size.value is None
    return (decorator, not unbounded)


_MAKES = re.compile(r"model|net|module|pipeline|processor|load|build|create|make|init", re.I)


def _cached(scope: Scope, decorator: Any, bounded: bool) -> Iterator[Finding]:
    name = scope.function.name if scope.function is not None else ""
    if _MAKES.search(name):
        return  # a cache of models: there are few, and they are meant to stay
    held = scope.trace.returned
    if GRAPH in held:
        yield finding(
            "cache-keeps-tensors",
            decorator,
            "the cache of `%s` keeps every result with its graph and activations" % name,
        )
    elif CARD in held and not bounded:
        yield finding(
            "cache-keeps-tensors",
            decorator,
            "the cache of `%s` has no bound and keeps every result on the card" % name,
        )


def _remembers(scope: Scope, kept: Kept) -> bool:
    """if key not in cache: cache[key] = ..., in a container that outlives the function"""
    first = re.split(r"[.\[]", kept.container)[0]
    if first not in ("self", "cls") and kept.container not in module_containers(scope.file):
        return False
    return any(
        isinstance(i, ast.If)
        and any(
            isinstance(c, ast.Compare)
            and any(isinstance(o, (ast.In, ast.NotIn)) for o in c.ops)
            and any(key(n) == kept.container for n in c.comparators)
            for c in walk_here(i.test)
        )
        for i in scope.file.places[kept.statement].ifs
    )


_SCHEDULE = re.compile(r"schedul|(^|_)(alphas?|betas?|sigmas?|gammas?|lr)(_|$)", re.I)


def _of_schedule(file: Any, line: int) -> bool:
    """class NoiseSchedule: @lru_cache def beta(self, t): a number for each step, no activations"""
    return any(
        _SCHEDULE.search(n.name)
        for n in file.nodes
        if isinstance(n, FUNCTIONS + (ast.ClassDef,))
        and min([n.lineno, *(d.lineno for d in n.decorator_list)]) <= line <= (n.end_lineno or 0)
    )


CHECKS = (kept_by_cache,)
HINTS = (
    without_torch,
    volatile,
    _of_schedule,
)
