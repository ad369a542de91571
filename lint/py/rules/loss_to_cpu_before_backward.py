"""The belief that loss.cpu() moves backward.

severity: warning
remedy: activation_offload

Each operation's backward runs on the device of its forward. Copying the scalar loss to the CPU
frees nothing.

Instead: Leave the loss where it is. To save memory: a smaller micro-batch, activation
checkpointing, or offloading of activations.
"""

import ast
import re
from typing import Any, Dict, Iterator

from ..calls import resolve
from ..findings import Finding, finding
from ..flow import Scope, backward_values, in_order, innermost, scopes, variables
from ..names import File, constant, key, keyword, method, own, targets


def loss_to_cpu(file: File) -> Iterator[Finding]:
    """loss.cpu().backward(), in the belief that backward then runs on the CPU"""
    for scope in scopes(file):
        moved: Dict[Any, Any] = {}
        for s in scope.statements:
            if isinstance(s, ast.Assign) and len(s.targets) == 1 and key(s.targets[0]):
                name = key(s.targets[0])
                if _to_cpu(file, s.value) or _scalar_to_cpu(file, scope, s.value, name):
                    moved[name] = s
                elif key(s.value) in moved or _arithmetic_on(s.value, moved):
                    moved[name] = moved[next(iter(variables(s.value) & set(moved)))]
                elif _returns_on_cpu(file, scope, s.value):
                    moved[name] = _returns_on_cpu(file, scope, s.value)
                else:
                    moved.pop(name, None)
            for value in backward_values(s):
                hit = moved.get(key(value) or "")
                if hit is None and not any(_to_cpu(file, n) for n in own(s) if n is not value):
                    continue
                yield finding(
                    "loss-to-cpu-before-backward",
                    hit or s,
                    "moving the loss to the CPU moves one number: backward still runs where the "
                    "forward pass ran, with all its memory",
                )


def _returns_on_cpu(file: File, scope: Any, call: Any) -> Any:
    """return criterion(out, y).cpu(), or of a name that was moved: in a function of this file that
    is called here
    """
    function = resolve(scope, call) if isinstance(call, ast.Call) else None
    if function is None:
        return None
    moved: Dict[Any, Any] = {}
    for s in in_order(function.body):
        if isinstance(s, ast.Assign) and _to_cpu(file, s.value):
            moved.update((key(t), s) for t in targets(s))
        elif isinstance(s, ast.Return) and _to_cpu(file, s.value):
            return s
        elif isinstance(s, ast.Return) and key(s.value) in moved:
            return moved[key(s.value)]
    return None


def _arithmetic_on(value: ast.expr, names: Dict[Any, Any]) -> bool:
    return isinstance(value, ast.BinOp) and bool(variables(value) & set(names))


def _to_cpu(file: File, node: Any) -> bool:
    """x.cpu(), x.to("cpu"), x.to(torch.device("cpu")), x.to(device="cpu"): of one tensor, not of
    a model's outputs that a loss is computed from.
    """
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    owner = node.func.value
    return (_is_loss(owner) or _one_number(owner)) and _on_cpu(file, node)


def _on_cpu(file: File, node: ast.expr) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr == "cpu":
        return True
    if node.func.attr != "to":
        return False
    where = node.args[0] if node.args else keyword(node, "device")
    if isinstance(where, ast.Call) and (file.callee(where) or "").endswith("device"):
        where = where.args[0] if where.args else None
    return constant(where) == "cpu" or (key(where) or "").lower() in ("cpu", "cpu_device")


def _scalar_to_cpu(file: File, scope: Scope, node: ast.expr, name: str) -> bool:
    """loss = measure(out, y).cpu(), whatever it is called, and loss.backward(): what has a backward
    without arguments is one number
    """
    return _on_cpu(file, node) and any(
        isinstance(call, ast.Call)
        and method(call) == "backward"
        and not call.args
        and isinstance(call.func, ast.Attribute)
        and key(call.func.value) == name
        for s, _ in scope.differentiated
        for call in own(s)
    )


def _one_number(node: ast.expr) -> bool:
    """x.mean(), x.sum(): what is left of a batch before it is differentiated"""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("mean", "sum")
        and not node.args
        and not node.keywords
    )


def _is_loss(node: ast.expr) -> bool:
    node = innermost(node)
    name = key(node) or (method(node) if isinstance(node, ast.Call) else "")
    return bool(
        re.search(r"loss|criterion|cost|objective|error|cross_entropy|kl_div", name or "", re.I)
    )


CHECKS = (loss_to_cpu,)
