"""Compiled anew in every round.

severity: warning

jax.jit remembers compiled programs by the function object. A new one in every round is never
found again.

Instead: Call jax.jit once before the loop and use its result in the loop.
"""

import ast
from typing import Any, Iterator

from ..findings import Finding, finding
from ..flow import in_order, scopes
from ..names import FUNCTIONS, File, key, method, own, targets, walk
from ..of_jax import COMPILES, _counters


def compiled_in_loop(file: File) -> Iterator[Finding]:
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
                    (file.dotted(d.func if isinstance(d, ast.Call) else d) or "") in COMPILES
                    for d in s.decorator_list
                )
                name = s.name
            elif isinstance(s, ast.Assign) and isinstance(s.value, ast.Call):
                made = (file.callee(s.value) or "") in COMPILES
                name = key(s.targets[0]) or ""
            else:
                continue
            if any(loops[-1] in file.places[i].loops for i in file.places[s].ifs):
                continue  # only in some rounds
            if made and _called_with_steps(loops[-1], name) and not _depends(s, loops[-1]):
                yield finding(
                    "jit-in-loop",
                    s,
                    "every round of the loop makes a new compiled function: it is traced and "
                    "compiled again, and the program of each round takes memory of its own",
                )


def _called_with_steps(loop: Any, name: str) -> bool:
    """Is it called in the same loop, once a round?"""
    return any(
        isinstance(n, ast.Call) and key(n.func) == name for s in in_order(loop.body) for n in own(s)
    ) and not any(
        isinstance(n, ast.Call) and method(n) in ("block_until_ready", "timeit", "perf_counter")
        for s in in_order(loop.body)
        for n in own(s)
    )


def _depends(s: ast.stmt, loop: Any) -> bool:
    """for model in models: what is compiled belongs to this round"""
    names = {key(t) for t in targets(loop)} | {
        key(t) for x in in_order(loop.body) if x is not s for t in targets(x)
    }
    names -= _counters(loop)
    what = walk(s.value) if isinstance(s, ast.Assign) else walk(s)
    return any(isinstance(n, ast.Name) and n.id in names for n in what)


CHECKS = (compiled_in_loop,)
