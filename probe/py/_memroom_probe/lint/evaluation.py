"""Evaluation that builds graphs nobody uses."""

import ast

from . import rules
from .flow import calls_module, in_order, scopes
from .names import LOOPS, constant, key, method, own


def check(file):
    if "torch" not in file.modules or _grad_off_for_good(file):
        return
    for scope in scopes(file):
        if scope.function is not None and (
            _called_without_grad(file, scope.function.name)
            or scope.function.name.endswith(("_step", "forward"))
        ):
            continue
        if _differentiates(scope):
            continue
        yield from _in_scope(file, scope)


def _grad_off_for_good(file):
    """torch.set_grad_enabled(False) as a statement, anywhere."""
    for s in file.statements:
        if (
            isinstance(s, ast.Expr)
            and isinstance(s.value, ast.Call)
            and (file.callee(s.value) or "").endswith("set_grad_enabled")
        ):
            if s.value.args and constant(s.value.args[0]) is False:
                return True
    return False


def _called_without_grad(file, name):
    """Is the function called under no_grad somewhere in this file?"""
    for s in file.statements:
        if file.places[s].no_grad and any(
            isinstance(n, ast.Call) and method(n) == name for n in own(s)
        ):
            return True
    return False


def _differentiates(scope):
    if scope.backwards:
        return True
    for s in scope.statements:
        for node in own(s):
            if isinstance(node, ast.Call) and (
                (scope.file.callee(node) or "").endswith("autograd.grad")
                or method(node) in ("requires_grad_", "enable_grad")
            ):
                return True
    return False


def _in_scope(file, scope):
    evaluated = set()
    for s in scope.statements:
        for call in [n for n in own(s) if isinstance(n, ast.Call)]:
            name = key(call.func.value) if isinstance(call.func, ast.Attribute) else None
            if name and method(call) == "eval" and not call.args:
                evaluated.add(name)
            elif name and method(call) == "train":
                training = not call.args or constant(call.args[0]) is not False
                evaluated.discard(name) if training else evaluated.add(name)
        if not isinstance(s, LOOPS) or not evaluated or file.places[s].no_grad:
            continue
        hit = _forward_with_grad(file, scope, s, evaluated)
        if hit is not None:
            yield hit


def _forward_with_grad(file, scope, loop, evaluated):
    for s in in_order(loop.body):
        if file.places[s].no_grad:
            continue
        for node in own(s):
            name = calls_module(node, scope)
            if name in evaluated and node.args + node.keywords:
                return rules.finding(
                    "eval-without-no-grad",
                    s,
                    "`%s` is in eval mode but its forward pass still builds the graph: each batch holds its activations for nothing"
                    % name,
                    loop=loop.lineno,
                )
    return None
