"""Old state kept while the new one is made.

severity: hint

Inputs of a compiled step live until it has returned. Parameters and optimizer state exist twice at
its end.

Instead: `jax.jit(step, donate_argnums=(0, 1))`: the outputs take the place of the inputs. Do not
use the old ones afterwards.
"""

import ast
import re
from typing import Any, Iterator

from ..findings import Finding, finding
from ..names import FUNCTIONS, key, keyword, method, targets, walk
from ..of_jax import COMPILES, is_jit

_STATE = re.compile(r"^(params|opt_state|state|train_state|variables|model|optimizer)$")


def not_donated(file: Any) -> Iterator[Finding]:
    """params, opt_state = step(params, opt_state, batch): the old ones live until the new are made"""
    if "jax" not in file.modules:
        return
    functions = {f.name: f for f in file.nodes if isinstance(f, FUNCTIONS)}
    for n in file.nodes:
        call, function = None, None
        if isinstance(n, FUNCTIONS):
            made = [d for d in n.decorator_list if is_jit(file, d)]
            if made:
                call, function = made[0], n
        elif isinstance(n, ast.Call) and (file.callee(n) or "") in COMPILES and n.args:
            call, function = n, functions.get(key(n.args[0]) or "")
        if (
            function is None
            or isinstance(call, ast.Call)
            and (
                keyword(call, "donate_argnums") is not None
                or keyword(call, "donate_argnames") is not None
                or any(k.arg is None for k in call.keywords)
            )
        ):
            continue
        given = [a.arg for a in function.args.args if _STATE.match(a.arg)]
        updates = any(
            isinstance(x, ast.Call) and method(x) in ("apply_gradients", "apply_updates")
            for x in walk(function)
        )
        called = {function.name} | {  # fast = jax.jit(step)
            (key(t) or "").split(".")[-1]
            for s in file.statements
            if isinstance(s, ast.Assign) and s.value is call
            for t in targets(s)
        }
        replaced = any(
            isinstance(s, ast.Assign)
            and isinstance(s.value, ast.Call)
            and method(s.value) in called
            and {key(t) for t in targets(s)} & {key(a) for a in s.value.args} - {None}
            for s in file.statements
        )
        if given and updates and replaced:
            where = [a.arg for a in function.args.args]
            numbers = tuple(where.index(g) for g in given)
            yield finding(
                "jit-without-donation",
                function,
                "`%s` returns new `%s` while the old one still lies on the device: "
                "`jax.jit(..., donate_argnums=%s)` writes over it"
                % (function.name, given[0], numbers if len(numbers) > 1 else numbers[0]),
                hint=True,
            )


CHECKS = (not_donated,)
