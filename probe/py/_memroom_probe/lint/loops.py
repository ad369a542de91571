"""Calls that do harm inside a training loop."""

import ast

from . import rules
from .flow import backward_values, in_order, scopes
from .names import calls, constant, key, keyword, method, own


def retain_graph(file):
    """loss.backward(retain_graph=True) where nothing needs the graph again"""
    for scope in scopes(file):
        for s in scope.statements:
            place = file.places.get(s)
            if not place or not place.loops:
                continue
            for call in [n for n in own(s) if isinstance(n, ast.Call)]:
                if (
                    method(call) != "backward"
                    or constant(keyword(call, "retain_graph")) is not True
                ):
                    continue
                if (
                    _uses_of_gradients(place.loops[-1]) == 1
                    and constant(keyword(call, "create_graph")) is not True
                ):
                    yield rules.finding(
                        "retain-graph-in-loop",
                        s,
                        "the graph is kept after backward and nothing in the loop differentiates it again: it lives on beside the next one",
                    )


def _uses_of_gradients(loop):
    count = 0
    for s in in_order(loop.body):
        for node in own(s):
            if isinstance(node, ast.Call) and (
                method(node) in ("backward", "manual_backward")
                or (key(node.func) or "").endswith("autograd.grad")
            ):
                count += 1
    return count


def empty_cache(file):
    """torch.cuda.empty_cache() at every step"""
    for scope in scopes(file):
        for s in scope.statements:
            place = file.places.get(s)
            if not place or not place.loops or place.handler or not isinstance(s, ast.Expr):
                continue
            for call in calls(s):
                name = file.callee(call) or ""
                if not name.endswith("cuda.empty_cache"):
                    continue
                loop = place.loops[-1]
                guarded = [i for i in place.ifs if loop in file.places[i].loops]
                # once an epoch (after an inner loop over batches) is nobody's bottleneck
                if scope.has_backward(loop) and not guarded and _direct_backward(loop):
                    yield rules.finding(
                        "empty-cache-in-loop",
                        s,
                        "the cache is emptied at every step: the next step asks the driver for the same memory again, slowly, and the peak is the same",
                    )


def _direct_backward(loop):
    from .accumulation import _direct

    return any(True for s in _direct(loop.body) for _ in backward_values(s))


def loss_to_cpu(file):
    """loss.cpu().backward(), in the belief that backward then runs on the CPU"""
    for scope in scopes(file):
        moved = {}
        for s in scope.statements:
            if (
                isinstance(s, ast.Assign)
                and _to_cpu(s.value)
                and key(s.targets[0])
                and key(s.targets[0]) == key(s.value.func.value)
            ):
                moved[key(s.targets[0])] = s
            for node in own(s):
                if (
                    isinstance(node, ast.Call)
                    and method(node) == "backward"
                    and isinstance(node.func, ast.Attribute)
                ):
                    receiver = node.func.value
                    if _to_cpu(receiver) or key(receiver) in moved:
                        yield rules.finding(
                            "loss-to-cpu-before-backward",
                            moved.get(key(receiver), s),
                            "moving the loss to the CPU moves one number: backward still runs where the forward pass ran, with all its memory",
                        )


def _to_cpu(node):
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    return (
        node.func.attr == "cpu"
        or node.func.attr == "to"
        and bool(node.args)
        and constant(node.args[0]) == "cpu"
    )


def zeroed_gradients(file):
    """zero_grad(set_to_none=False)"""
    for node in file.nodes:
        if isinstance(node, ast.Call) and method(node) == "zero_grad":
            value = keyword(node, "set_to_none")
            if value is None and node.args:
                value = node.args[0]
            if constant(value) is False:
                yield rules.finding(
                    "gradients-kept-as-zeros",
                    node,
                    "gradients are filled with zeros instead of freed: they stay allocated through the forward pass",
                    [
                        [
                            value.lineno,
                            value.col_offset,
                            value.end_lineno,
                            value.end_col_offset,
                            "True",
                        ]
                    ],
                )


def gradcheck(file):
    """gradcheck in a training loop"""
    for scope in scopes(file):
        for s in scope.statements:
            place = file.places.get(s)
            if place and place.loops and scope.has_backward(place.loops[-1]):
                for node in own(s):
                    if isinstance(node, ast.Call) and method(node) in (
                        "gradcheck",
                        "gradgradcheck",
                    ):
                        yield rules.finding(
                            "gradcheck-is-no-profiler",
                            s,
                            "gradcheck compares gradients with finite differences in double precision: it measures no memory and needs a lot of it",
                        )
