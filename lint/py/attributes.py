"""What a layer's forward pass stores on the layer."""

import ast
from typing import Any, Set

from .flow import in_order
from .names import key, method, targets, walk


def made_in(f: Any) -> Set[str]:
    """The inputs of call() and what is made of them"""
    names = {a.arg for a in f.args.args[1:]} - {"training", "mask"}
    for s in in_order(f.body):
        if isinstance(s, ast.Assign):
            if names & {n.id for n in walk(s.value) if isinstance(n, ast.Name)}:
                if not any(
                    isinstance(n, ast.Attribute)
                    and n.attr in ("shape", "dtype", "numpy")
                    or isinstance(n, ast.Call)
                    and method(n) in ("shape", "rank", "int_shape")
                    for n in walk(s.value)
                ):
                    names |= {t.id for t in targets(s) if isinstance(t, ast.Name)}
    return names


def stored(s: Any) -> Any:
    """(attribute, value) of self.seen.append(value) and self.last = value"""
    if isinstance(s, ast.Expr) and isinstance(s.value, ast.Call) and s.value.args:
        call = s.value
        owner = key(call.func.value) if isinstance(call.func, ast.Attribute) else None
        if method(call) == "append" and owner and owner.startswith("self."):
            return owner, call.args[0]
    if isinstance(s, ast.Assign) and (key(s.targets[0]) or "").startswith("self."):
        value = s.value
        if (
            isinstance(value, ast.Name)
            or isinstance(value, ast.Call)
            and method(value)
            not in (
                "shape",
                "int_shape",
            )
        ):
            return key(s.targets[0]), value
    return None, None
