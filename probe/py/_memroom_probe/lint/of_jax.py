"""JAX."""

import ast
import re
from typing import Iterator

from . import rules
from .flow import in_order, scopes
from .names import FUNCTIONS, key, method, own, targets

_COMPILES = ("jax.jit", "jax.pmap", "flax.nnx.jit", "equinox.filter_jit")


def compiled_in_loop(file) -> Iterator[dict]:
    """step = jax.jit(...) in every round: each is traced and compiled anew"""
    if not {"jax", "flax", "equinox"} & file.modules:
        return
    for scope in scopes(file):
        for s in scope.statements:
            loops = file.places[s].loops
            if not loops:
                continue
            if isinstance(s, FUNCTIONS):
                made = any(
                    (file.dotted(d.func if isinstance(d, ast.Call) else d) or "") in _COMPILES
                    for d in s.decorator_list
                )
                name = s.name
            elif isinstance(s, ast.Assign) and isinstance(s.value, ast.Call):
                made = (file.callee(s.value) or "") in _COMPILES
                name = key(s.targets[0]) or ""
            else:
                continue
            if any(loops[-1] in file.places[i].loops for i in file.places[s].ifs):
                continue  # only in some rounds
            if made and _called_with_steps(loops[-1], name) and not _depends(s, loops[-1]):
                yield rules.finding(
                    "jit-in-loop",
                    s,
                    "every round of the loop makes a new compiled function: it is traced and "
                    "compiled again, and the program of each round takes memory of its own",
                )


def _called_with_steps(loop, name: str) -> bool:
    """Is it called in the same loop, once a round?"""
    return any(
        isinstance(n, ast.Call) and key(n.func) == name for s in in_order(loop.body) for n in own(s)
    ) and not any(
        isinstance(n, ast.Call) and method(n) in ("block_until_ready", "timeit", "perf_counter")
        for s in in_order(loop.body)
        for n in own(s)
    )


_STEPS = re.compile(r"^_?(i|it|iteration|step|epoch|global_step|n_?iter)$", re.I)


def _counters(loop) -> set:
    """The number of the round: for step, batch in enumerate(loader), for step in range(n)"""
    over = getattr(loop, "iter", None)
    if not isinstance(over, ast.Call):
        return set()
    goal = loop.target
    if method(over) == "enumerate" and isinstance(goal, ast.Tuple):
        goal = goal.elts[0]
    elif method(over) not in ("range", "trange"):
        return set()
    return {goal.id} if isinstance(goal, ast.Name) and _STEPS.match(goal.id) else set()


def _depends(s: ast.stmt, loop) -> bool:
    """for model in models: what is compiled belongs to this round"""
    names = {key(t) for t in targets(loop)} | {
        key(t) for x in in_order(loop.body) if x is not s for t in targets(x)
    }
    names -= _counters(loop)
    what = ast.walk(s.value) if isinstance(s, ast.Assign) else ast.walk(s)
    return any(isinstance(n, ast.Name) and n.id in names for n in what)
