"""A static argument that changes.

severity: warning

A static argument is part of the program: jax.jit compiles one for each of its values and keeps
them all.

Instead: Leave it out of static_argnames and static_argnums, and pass it as an array.
"""

import ast
from typing import Any, Dict, Iterator, Set

from ..findings import Finding, finding
from ..flow import in_order
from ..names import FUNCTIONS, File, key, own, targets, walk
from ..of_jax import COMPILES, _counters


def static_argument_changes(file: File) -> Iterator[Finding]:
    """@partial(jax.jit, static_argnames=("epsilon",)), called with another epsilon in each round"""
    if not {"jax", "flax", "equinox"} & file.modules:
        return
    compiled = {}  # name: (where it is compiled, parameters, static ones)
    for s in file.statements:
        if isinstance(s, FUNCTIONS):
            for d in s.decorator_list:
                if _compiles(file, d):
                    compiled[s.name] = (d, [a.arg for a in s.args.args], _static(d))
        elif isinstance(s, ast.Assign) and _compiles(file, s.value) and key(s.targets[0]):
            made = getattr(s.value, "args", None)
            inner = file.functions.get(key(made[0]) or "") if made else None
            names = [a.arg for a in inner.args.args] if inner is not None else []
            compiled[key(s.targets[0])] = (s.value, names, _static(s.value))
    told = set()
    for s in file.statements:
        loops = file.places[s].loops
        for n in own(s) if loops else ():
            if not isinstance(n, ast.Call):
                continue
            found = compiled.get(key(n.func) or "")
            if found is None or key(n.func) in told:
                continue
            where, names, static = found
            given: Dict[Any, ast.expr] = dict(zip(names, n.args))
            given.update({i: a for i, a in enumerate(n.args)})
            given.update({k.arg: k.value for k in n.keywords if k.arg})
            changing = [a for k, a in given.items() if k in static and _changes(a, loops[-1])]
            if changing:
                told.add(key(n.func))
                yield finding(
                    "jit-static-changes",
                    where,
                    "`%s` is a static argument and changes in every round (line %d): each value "
                    "is compiled anew, and all programs stay in the cache"
                    % (key(changing[0]) or "it", n.lineno),
                )


def _compiles(file: File, node: ast.expr) -> bool:
    """jax.jit(f, static_...), partial(jax.jit, static_...)"""
    if not isinstance(node, ast.Call) or not _static(node):
        return False
    if (file.callee(node) or "").split(".")[-1] == "partial":
        return bool(node.args) and (file.dotted(node.args[0]) or "") in COMPILES
    return (file.callee(node) or "") in COMPILES


def _static(call: Any) -> Set[Any]:
    """The names and positions that static_argnames and static_argnums give."""
    return {
        n.value
        for k in call.keywords
        if k.arg in ("static_argnames", "static_argnums")
        for n in walk(k.value)
        if isinstance(n, ast.Constant)
    }


def _changes(value: ast.expr, loop: Any) -> bool:
    """Is it reckoned from the number of the round?"""
    counters = _counters(loop)
    for s in in_order(loop.body):
        if isinstance(s, ast.Assign) and not isinstance(s.value, (ast.Compare, ast.BoolOp)):
            if any(isinstance(n, ast.Name) and n.id in counters for n in walk(s.value)):
                if not any(
                    isinstance(n, (ast.Compare, ast.Mod, ast.FloorDiv)) for n in walk(s.value)
                ):
                    counters |= {t.id for t in targets(s) if isinstance(t, ast.Name)}
    if any(isinstance(n, (ast.Compare, ast.Mod, ast.FloorDiv)) for n in walk(value)):
        return False  # a few values only
    return any(isinstance(n, ast.Name) and n.id in counters for n in walk(value))


CHECKS = (static_argument_changes,)
