"""Optimizers pile up.

severity: warning

An optimizer keeps its state for every parameter: two moments, 8 bytes a parameter for Adam.
Kept in a list, the state of all of them stays on the card.

Instead: Keep only the current optimizer, or one number of each (`opt.param_groups[0]['lr']`).
"""

import ast
from typing import Any, Iterator

from ..devices import called_while_training, copies_model, put, trains_by_call
from ..evidence import missing_key
from ..findings import Finding, finding
from ..flow import Scope, resets, scopes
from ..keeping import cleared_in
from ..names import File, key, method, targets, walk


def optimizers_kept(file: File) -> Iterator[Finding]:
    """self.optimizers.append(Adam(...)) in a loop or a method that one calls"""
    if "torch" not in file.modules:
        return
    for scope in scopes(file):
        function = scope.function
        in_loop = function is not None and called_while_training(file, function)
        for s in scope.statements:
            value, container = put(s)
            place = file.places[s]
            trains = any(scope.has_backward(x) or trains_by_call(x) for x in place.loops)
            if value is None or not container:
                continue
            if in_loop and not place.loops and not trains:
                if container.split(".")[0] != "self" or cleared_in(file.tree, container):
                    continue
                if copies_model(file, scope, value):
                    continue
            elif not trains or resets(place.loops[-1], container, scope):
                continue
            if _is_optimizer(file, scope, value):
                yield finding(
                    "optimizers-kept",
                    s,
                    "every round makes an optimizer and keeps it in `%s`: its moments, twice the "
                    "weights for Adam, stay on the card" % container,
                )


def _is_optimizer(file: File, scope: Scope, value: ast.expr) -> bool:
    if isinstance(value, (ast.Tuple, ast.List)):
        return any(_is_optimizer(file, scope, e) for e in value.elts)
    if isinstance(value, ast.Call):
        name = file.callee(value) or ""
        return name.startswith("torch.optim.") and "lr_scheduler" not in name
    return key(value) is not None and any(
        isinstance(s, ast.Assign)
        and isinstance(s.value, ast.Call)
        and any(key(t) == key(value) for t in targets(s))
        and _is_optimizer(file, scope, s.value)
        for s in scope.statements
    )


def _made_when_missing(file: Any, line: int) -> bool:
    """if task not in optimizers: optimizers[task] = Adam(...)"""
    return any(missing_key(file, s) for s in file.statements if s.lineno == line)


def _all_step(file: Any, line: int) -> bool:
    """for optimizer in optimizers.values(): optimizer.step(): none of them is kept for nothing"""
    names, around = set(), file.tree
    for s in file.statements:
        if s.lineno == line and s in file.places:
            around = file.places[s].function or file.tree
        if s.lineno == line and isinstance(s, ast.Assign):
            names |= {key(t.value) for t in s.targets if isinstance(t, ast.Subscript)}
        elif s.lineno == line and isinstance(s, ast.Expr) and isinstance(s.value, ast.Call):
            if isinstance(s.value.func, ast.Attribute):
                names.add(key(s.value.func.value))
    return any(
        isinstance(loop, ast.For)
        and bool((names - {None}) & {key(n) for n in walk(loop.iter)})
        and any(isinstance(n, ast.Call) and method(n) == "step" for n in walk(loop))
        for loop in walk(around)
    )


CHECKS = (optimizers_kept,)
HINTS = (
    _all_step,
    _made_when_missing,
)
