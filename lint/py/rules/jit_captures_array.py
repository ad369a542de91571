"""Array compiled into the program.

severity: info

A compiled function holds what it takes from outside as a constant: in the program and on the
device, again for each shape it is compiled for.

Instead: Pass the array as an argument of the compiled function.
"""

import ast
from typing import Any, Iterator, List, Set

from ..findings import Finding, finding
from ..flow import in_order
from ..names import FUNCTIONS, key, targets, walk, walk_here
from ..of_jax import COMPILES, compiled_names, is_jit

READS = (
    "numpy.load",
    "numpy.loadtxt",
    "numpy.genfromtxt",
    "numpy.fromfile",
    "pandas.read_csv",
    "pandas.read_parquet",
)


def _laid_on(file: Any, value: Any) -> List[Any]:
    """jnp.asarray(raw), jax.device_put(raw): what lies on the device as a whole"""
    if isinstance(value, ast.Call) and (file.callee(value) or "") in (
        "jax.numpy.asarray",
        "jax.numpy.array",
        "jax.device_put",
    ):
        return value.args
    return []


def captured_data(file: Any) -> Iterator[Finding]:
    """data = jnp.asarray(np.load(path)); @jax.jit def step(i): data[i]"""
    if "jax" not in file.modules:
        return
    arrays: Set[Any] = set()
    for s in file.statements:
        if not isinstance(s, ast.Assign) or file.places[s].function is not None:
            continue
        parts = list(walk_here(s.value)) if isinstance(s.value, ast.Call) else []
        read = any(isinstance(c, ast.Call) and (file.callee(c) or "") in READS for c in parts)
        if read or any(key(a) in arrays for a in _laid_on(file, s.value)):
            arrays |= {key(t) for t in s.targets} - {None}
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
