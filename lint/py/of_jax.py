"""JAX."""

import ast
import re
from typing import Any, Set

from .names import FUNCTIONS, key, method

COMPILES = ("jax.jit", "jax.pmap", "flax.nnx.jit", "equinox.filter_jit")


_STEPS = re.compile(r"^_?(i|it|iteration|step|epoch|global_step|n_?iter)$", re.I)


def _counters(loop: Any) -> Set[Any]:
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


def is_jit(file: Any, node: Any) -> bool:
    """jax.jit, jax.jit(donate_argnums=0), partial(jax.jit, ...)"""
    if not isinstance(node, ast.Call):
        return (file.dotted(node) or "") in COMPILES
    if (file.callee(node) or "").split(".")[-1] == "partial":
        return bool(node.args) and (file.dotted(node.args[0]) or "") in COMPILES
    return (file.callee(node) or "") in COMPILES


def compiled_names(file: Any) -> Set[str]:
    """Names of compiled functions: @jax.jit def step, step = jax.jit(f)"""
    names = set()
    for n in file.nodes:
        if isinstance(n, FUNCTIONS) and any(is_jit(file, d) for d in n.decorator_list):
            names.add(n.name)
        elif isinstance(n, ast.Assign) and isinstance(n.value, ast.Call):
            if (file.callee(n.value) or "") in COMPILES:
                names |= {key(t) or "" for t in n.targets}
    return names - {""}
