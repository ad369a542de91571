"""Cards: what lands on which, and what parallel training keeps there."""

import ast
import functools
import re
from typing import Any, Optional, Set, Tuple

from .flow import Scope, in_order, is_model_name, scopes
from .names import (
    LOOPS,
    File,
    Function,
    constant,
    key,
    keyword,
    method,
    once,
    own,
    targets,
    walk_here,
)

# checkpoints


def loaded_to(call: ast.Call) -> Optional[str]:
    """ "card", "" where nothing is said, None where it is not the card."""
    where = keyword(call, "map_location") or (call.args[1] if len(call.args) > 1 else None)
    if where is None:
        return ""
    said = constant(where)
    if isinstance(said, str):
        return "card" if said.startswith("cuda") else None
    if isinstance(where, (ast.Lambda, ast.Dict)):
        return None
    if isinstance(where, ast.Call):
        first = constant(where.args[0]) if where.args else None
        return "card" if isinstance(first, str) and first.startswith("cuda") else None
    k = (key(where) or "").lower()
    return "card" if re.search(r"device|cuda|gpu|loc$", k) else None


def restores(scope: Scope, name: str) -> bool:
    """Is a model restored from it?"""
    derived = {name}
    for s in scope.statements:
        if isinstance(s, ast.Assign) and any(
            isinstance(n, ast.Name) and n.id in derived for n in walk_here(s.value)
        ):
            derived.update(k for k in map(key, targets(s)) if k)
    return any(
        isinstance(n, ast.Call)
        and method(n) == "load_state_dict"
        and any(isinstance(m, ast.Name) and m.id in derived for a in n.args for m in walk_here(a))
        for s in scope.statements
        for n in own(s)
    )


# copies of the model


def called_while_training(file: File, function: Function) -> bool:
    """Is it called in a loop of this file that trains, or by a function that is?"""
    return function.name in _while_training(file)


@once
def _while_training(file: File) -> Set[str]:
    names = {
        method(n)
        for scope in scopes(file)
        for loop in scope.statements
        if isinstance(loop, LOOPS) and (scope.has_backward(loop) or trains_by_call(loop))
        for s in in_order(loop.body)
        for n in own(s)
        if isinstance(n, ast.Call)
    }
    called = {
        method(n)
        for scope in scopes(file)
        if scope.function is not None and scope.function.name in names
        for s in scope.statements
        if not file.places[s].loops
        for n in own(s)
        if isinstance(n, ast.Call)
    }
    return names | called


def put(s: ast.stmt) -> Tuple[Optional[ast.expr], Optional[str]]:
    """(value, container) of kept.append(v), kept.append((i, v)) and kept[k] = v"""
    value, container = None, None
    if isinstance(s, ast.Expr) and isinstance(s.value, ast.Call) and s.value.args:
        if method(s.value) == "append" and isinstance(s.value.func, ast.Attribute):
            value, container = s.value.args[0], key(s.value.func.value)
    elif isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Subscript):
        if key(s.targets[0]) is None:
            value, container = s.value, key(s.targets[0].value)
    return value, container


@functools.lru_cache(maxsize=64)  # rules ask it for every statement of a loop
def trains_by_call(loop: Any) -> bool:
    """train_one_epoch(model), trainer.fit(...), model.train_step(...) in the loop"""
    return any(
        isinstance(n, ast.Call)
        and re.search(r"^_?(train|fit|run_epoch)(_|$)", method(n))
        and n.args
        for s in in_order(loop.body)
        for n in own(s)
    )


def _copies_state(node: ast.expr) -> bool:
    """{k: v.clone() for k, v in model.state_dict().items()}, [p.clone() for p in
    model.parameters()], not v.cpu()
    """
    if not isinstance(node, (ast.DictComp, ast.ListComp)):
        return False
    made = node.value if isinstance(node, ast.DictComp) else node.elt
    over = {
        method(c) for g in node.generators for c in walk_here(g.iter) if isinstance(c, ast.Call)
    }
    methods = {method(c) for c in walk_here(made) if isinstance(c, ast.Call)}
    return bool(
        over & {"state_dict", "parameters", "named_parameters"}
        and "clone" in methods
        and not methods & {"cpu", "to", "numpy", "norm", "item", "mean", "sum"}
    )


def copies_model(file: File, scope: Scope, node: Any) -> bool:
    if isinstance(node, (ast.Tuple, ast.List)):
        return any(copies_model(file, scope, e) for e in node.elts)
    if isinstance(node, ast.Name):  # state = {k: v.clone() ...}; saved.append((step, state))
        made = [
            s.value
            for s in scope.statements
            if isinstance(s, ast.Assign) and any(key(t) == node.id for t in targets(s))
        ]
        return len(made) == 1 and (
            not isinstance(made[0], ast.Name) and copies_model(file, scope, made[0])
        )
    if _copies_state(node):
        return True
    if not isinstance(node, ast.Call) or (file.callee(node) or "") not in (
        "copy.deepcopy",
        "deepcopy",
    ):
        return False
    what = node.args[0] if node.args else None
    if isinstance(what, ast.Call) and method(what) == "state_dict":
        return True
    name = key(what) or "" if what is not None else ""
    return bool(name) and (name in scope.modules or is_model_name(name) and file.uses_torch)


# exceptions and figures
