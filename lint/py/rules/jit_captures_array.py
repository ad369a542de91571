"""Array compiled into the program.

severity: info

A compiled function holds what it takes from outside as a constant: in the program and on the
device, again for each shape it is compiled for.

Instead: Pass the array as an argument of the compiled function.
"""

import ast
from typing import Any, Iterator

from ..findings import Finding, finding
from ..flow import in_order
from ..names import FUNCTIONS, key, targets, walk, walk_here
from ..of_jax import COMPILES, compiled_names, is_jit


def captured_data(file: Any) -> Iterator[Finding]:
    """data = jnp.asarray(np.load(path)); @jax.jit def step(i): data[i]"""
    if "jax" not in file.modules:
        return
    arrays = {
        key(t)
        for s in file.statements
        if isinstance(s, ast.Assign) and file.places[s].function is None
        for t in s.targets
        if isinstance(s.value, ast.Call)
        and any(
            isinstance(c, ast.Call)
            and (file.callee(c) or "") in ("numpy.load", "numpy.loadtxt", "pandas.read_csv")
            for c in walk_here(s.value)
        )
    } - {None}
    compiled = compiled_names(file) | {
        key(n.args[0])  # fast = jax.jit(step)
        for n in file.nodes
        if isinstance(n, ast.Call) and (file.callee(n) or "") in COMPILES and n.args
    }
    for f in [f for f in file.nodes if isinstance(f, FUNCTIONS)]:
        made = any(is_jit(file, d) for d in f.decorator_list) or f.name in compiled
        own_names = {a.arg for a in f.args.args} | {
            key(t) for s in in_order(f.body) for t in targets(s)
        }
        for n in walk(f) if made else ():
            if isinstance(n, ast.Name) and n.id in arrays - own_names:
                yield finding(
                    "jit-captures-array",
                    n,
                    "`%s` takes `%s` from outside: the whole array becomes a constant of the "
                    "compiled program, one more copy for each compilation. Pass it as an argument"
                    % (f.name, n.id),
                )
                break


CHECKS = (captured_data,)
