"""Tensors that are kept together with their graph."""

import ast

from . import proof, rules
from .flow import Walk, carries, in_order, resets, scopes, variables
from .names import FUNCTIONS, calls, key, method, own, targets

GROWING = ("append", "extend", "add", "appendleft", "insert")


def innermost_training_loop(place, scope):
    """The loop directly around a statement, if gradients are computed in it; else None."""
    if not place or not place.loops or place.no_grad:
        return None
    loop = place.loops[-1]
    return loop if scope.has_backward(loop) else None


def source(node):
    """The code of an expression where it is short and the interpreter can print it."""
    text = ast.unparse(node) if hasattr(ast, "unparse") else key(node) or "it"
    return text if len(text) <= 40 else text[:37] + "..."


def detached(node):
    """Edits that put .detach() behind an expression."""
    if isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
        return [rules.after(node, ".detach()")]
    return rules.around(node, "(", ").detach()")


def summed_loss(file):
    """total += loss"""
    for scope in scopes(file):
        if scope.backwards:
            yield from _summed_in(scope)


def _summed_in(scope):
    found = []

    def see(s, env):
        name, value = _sum_of(s)
        if not name or not carries(value, env, scope) or name in scope.feeds:
            return
        loop = innermost_training_loop(scope.file.places.get(s), scope)
        if loop is None or resets(loop, name, scope):
            return
        found.append(
            rules.finding(
                "loss-graph-accumulated",
                s,
                "`%s` is summed into `%s` with its graph: every iteration's activations stay alive until `%s` is gone"
                % (source(value), name, name),
                detached(value),
                safe=proof.detach_changes_nothing(scope, loop, s, value),
            )
        )

    Walk(scope, see).run()
    yield from found


def _sum_of(s):
    """(variable, added expression) of total += x and total = total + x."""
    if isinstance(s, ast.AugAssign) and isinstance(s.op, ast.Add):
        return key(s.target), s.value
    if (
        isinstance(s, ast.Assign)
        and len(s.targets) == 1
        and isinstance(s.value, ast.BinOp)
        and isinstance(s.value.op, ast.Add)
    ):
        name = key(s.targets[0])
        if name and key(s.value.left) == name:
            return name, s.value.right
        if name and key(s.value.right) == name:
            return name, s.value.left
    return None, None


def kept_outputs(file):
    """losses.append(loss), outputs.append(model(x)) in a training loop"""
    for scope in scopes(file):
        if scope.backwards:
            yield from _kept_in(scope)


def _kept_in(scope):
    found = []

    def see(s, env):
        for call in (
            [n for n in own(s) if isinstance(n, ast.Call)] if isinstance(s, ast.Expr) else ()
        ):
            if (
                method(call) not in GROWING
                or not isinstance(call.func, ast.Attribute)
                or not call.args
            ):
                continue
            name, value = key(call.func.value), call.args[-1]
            loop = innermost_training_loop(scope.file.places.get(s), scope)
            if loop is None or not name or not carries(value, env, scope):
                continue
            if name in scope.feeds or resets(loop, name, scope) or _used_for_loss(scope, name):
                continue
            found.append(
                rules.finding(
                    "graph-kept-in-list",
                    s,
                    "`%s` is kept in `%s` with its graph: memory grows by one iteration's activations each time"
                    % (source(value), name),
                    detached(value),
                )
            )

    Walk(scope, see).run()
    yield from found


def _used_for_loss(scope, name):
    return any(name in variables(v) for _, v in scope.backwards)


def kept_by_hook(file):
    """A hook that appends what it is shown"""
    hooks = set()
    for node in ast.walk(file.tree):
        if (
            isinstance(node, ast.Call)
            and method(node).startswith("register_")
            and method(node).endswith("hook")
            and node.args
        ):
            name = key(node.args[0])
            if name:
                hooks.add(name.split(".")[-1])
    if not hooks:
        return
    cleared = {
        key(c.func.value)
        for c in ast.walk(file.tree)
        if isinstance(c, ast.Call)
        and isinstance(c.func, ast.Attribute)
        and c.func.attr in ("clear", "pop", "popleft")
    }
    for function in [
        n for n in ast.walk(file.tree) if isinstance(n, FUNCTIONS) and n.name in hooks
    ]:
        shown = {a.arg for a in function.args.args[-2:]} - {"self", "module"}
        yield from _hook_body(file, function, shown, cleared)


def _hook_body(file, function, shown, cleared):
    for s in in_order(function.body):
        for call in calls(s) if isinstance(s, ast.Expr) else ():
            if (
                method(call) not in ("append", "extend")
                or not isinstance(call.func, ast.Attribute)
                or not call.args
            ):
                continue
            value, name = call.args[0], key(call.func.value)
            if key(value) in shown and name not in cleared and not _declared_in(function, name):
                yield rules.finding(
                    "hook-keeps-tensors",
                    s,
                    "the hook keeps `%s` in `%s` at every forward pass, graph included"
                    % (source(value), name or "a list"),
                    detached(value),
                )


def _declared_in(function, name):
    return any(key(t) == name for s in in_order(function.body) for t in targets(s))


def kept_by_module(file):
    """self.outputs.append(x) in forward or training_step"""
    for c in file.classes.values():
        if not any(
            (file.dotted(b) or "").split(".")[-1]
            in ("Module", "LightningModule", "PreTrainedModel")
            for b in c.bases
        ):
            continue
        for function in [
            f for f in c.body if isinstance(f, FUNCTIONS) and f.name in ("forward", "training_step")
        ]:
            if not file.places[function.body[0]].no_grad:
                yield from _module_keeps(file, c, function)


def _module_keeps(file, c, function):
    from .flow import Scope

    scope = Scope(file, function.body, function)
    made = {
        k
        for s in scope.statements
        if isinstance(s, ast.Assign) and _makes_tensor(s.value)
        for k in map(key, targets(s))
        if k
    }
    found = []
    for s in scope.statements:
        for call in calls(s) if isinstance(s, ast.Expr) else ():
            if (
                method(call) != "append"
                or not isinstance(call.func, ast.Attribute)
                or not call.args
            ):
                continue
            name = key(call.func.value) or ""
            if not name.startswith("self.") or not carries(call.args[0], made, scope):
                continue
            if function.name == "forward" and _cleared_in_class(c, name):
                continue
            found.append(
                rules.finding(
                    "module-keeps-tensors",
                    s,
                    "`%s` is kept in `%s` by every call of %s, graph included"
                    % (source(call.args[0]), name, function.name),
                    detached(call.args[0]),
                )
            )
    return found


def _makes_tensor(value):
    """A call of a layer or of the module itself: self.conv(x), self(x), F.relu(x)."""
    if not isinstance(value, ast.Call):
        return False
    name = key(value.func) or ""
    return (
        name == "self"
        or name.startswith("self.")
        and name.count(".") == 1
        and not name.split(".")[1].startswith(("get", "log", "_"))
        or name.startswith("F.")
    )


def _cleared_in_class(c, name):
    for node in ast.walk(c):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("clear", "pop")
            and key(node.func.value) == name
        ):
            return True
        if isinstance(node, FUNCTIONS) and node.name != "__init__":
            if any(
                key(t) == name
                for s in in_order(node.body)
                if isinstance(s, ast.Assign)
                for t in targets(s)
            ):
                return True
    return False


def hidden_state(file):
    """out, hidden = model(x, hidden) without detach"""
    for scope in scopes(file):
        if not scope.backwards:
            continue
        for s in scope.statements:
            if not isinstance(s, ast.Assign) or not isinstance(s.value, ast.Call):
                continue
            loop = innermost_training_loop(file.places.get(s), scope)
            goals = [key(t) for t in targets(s)]
            if loop is None or len(goals) < 2 or key(s.value.func) not in scope.modules:
                continue
            passed = {k for a in s.value.args for k in [key(a)] if k} | {
                key(k.value) for k in s.value.keywords if key(k.value)
            }
            for name in [g for g in goals[1:] if g and g in passed]:
                if not _cut(loop, name, s):
                    yield rules.finding(
                        "hidden-state-not-detached",
                        s,
                        "`%s` goes from one iteration into the next with its graph: backward reaches back to the first batch"
                        % name,
                    )


def _cut(loop, name, origin):
    """Is the state detached or made anew anywhere in the loop?"""
    for s in in_order(loop.body):
        if s is origin:
            continue
        if any(key(t) == name for t in targets(s)):
            return True
        for call in calls(s) if isinstance(s, ast.Expr) else ():
            if method(call) in ("detach_", "repackage_hidden", "detach") and name in variables(
                call
            ):
                return True
    return any(
        method(c) in ("detach", "repackage_hidden") and name in variables(c)
        for c in calls(origin.value)
    )
