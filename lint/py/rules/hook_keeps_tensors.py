"""Hook keeps what it sees.

severity: error
remedy: remove_hooks

The hook runs at every pass, so the list grows for ever, with the graph of every tensor in it.

Instead: Append `output.detach()`, empty the list after use, and remove the hook
(`handle.remove()`) when done.
"""

import ast
from typing import Any, Iterator, List, Tuple

from ..calls import called_in_loop, resolve, scope_of
from ..findings import Finding, finding
from ..flow import PARAMETER, Scope, calls_module, in_order, scopes, variables
from ..keeping import cleared_in, detached, locals_of, source, taken_off
from ..names import FUNCTIONS, File, Function, calls, key, method, own_calls, targets, walk
from ..reasons import without_torch


def kept_by_hook(file: File) -> Iterator[Finding]:
    """A hook that puts what it is shown into a list"""
    for scope in scopes(file):
        for s in scope.statements:
            for call in own_calls(s):
                name = method(call)
                if name.startswith("register_") and name.endswith("hook") and call.args:
                    hook = _hook(file, scope, call.args[0])
                    if hook is not None and not _removed(scope):
                        yield from _hook_keeps(file, hook, call, name)


def _removed(scope: Scope) -> bool:
    """handle.remove() in the same function: the hook is there for some passes only"""
    return any(
        method(c) == "remove" and not c.args and isinstance(c.func, ast.Attribute)
        for s in scope.statements
        for c in own_calls(s)
    )


def _hook(file: File, scope: Scope, node: ast.expr) -> Any:
    """The function that a hook argument stands for: a name, a method, a lambda, a factory's inner
    function, functools.partial of one.
    """
    if isinstance(node, ast.Lambda):
        return node
    if isinstance(node, ast.Name):
        return file.plain_functions.get(node.id)
    if isinstance(node, ast.Attribute) and key(node.value) == "self" and scope.klass is not None:
        return file.method_of(scope.klass.name, node.attr)
    if isinstance(node, ast.Call):
        if method(node) == "partial" and node.args:
            return _hook(file, scope, node.args[0])
        factory = resolve(scope, node)
        if factory is not None:
            for r in [n for n in in_order(factory.body) if isinstance(n, ast.Return)]:
                if isinstance(r.value, ast.Lambda):
                    return r.value
                for inner in walk(factory):
                    if isinstance(inner, FUNCTIONS) and inner.name == key(r.value):
                        return inner
    return None


def _is_handle(value: Any) -> bool:
    """output.register_hook(see): what takes the hook off again"""
    return isinstance(value, ast.Call) and method(value).startswith("register_")


def _hook_keeps(file: File, hook: Any, registration: ast.Call, kind: str) -> Iterator[Finding]:
    shown = [a.arg for a in hook.args.args if a.arg != "self"]
    shown = shown[1:] if kind != "register_hook" else shown  # the first is the module
    kept: List[Tuple[ast.AST, ast.AST, Any]]
    if isinstance(hook, ast.Lambda):
        kept = [
            (registration, c.args[-1], key(c.func.value))
            for c in walk(hook.body)
            if isinstance(c, ast.Call)
            and isinstance(c.func, ast.Attribute)
            and c.func.attr in ("append", "extend")
            and c.args
            and _holds_shown(c.args[-1], shown)
        ]
    else:
        kept = [
            (k.statement, k.value, k.container)
            for k in scope_of(file, hook).trace.kept
            if k.how == "append"
            and any(PARAMETER + name in k.origins for name in shown)
            and k.container not in locals_of(hook)
            and not _is_handle(k.value)
        ]
    for statement, value, container in kept:
        if (
            container
            and cleared_in(file.tree, container)
            and not _handed_out(file, hook, container)
        ):
            continue
        yield finding(
            "hook-keeps-tensors",
            statement,
            "the hook puts `%s` into `%s` at every pass, with its graph, and nothing empties it"
            % (source(value), container or "a list"),
            detached(value),
            hint=not _passes_often(file) or taken_off(file, statement),
        )


def _passes_often(file: File) -> bool:
    """May the model run more than once: in a loop, a function, a method, another file? A script
    that sends one picture through it keeps one output.
    """
    places = [
        file.places[s]
        for scope in scopes(file)
        if getattr(scope.function, "name", "") != "forward"
        for s in scope.statements
        if any(calls_module(c, scope) for c in calls(s))
    ]
    return not places or any(p.loops or p.function or p.klass for p in places)


def _handed_out(file: File, hook: Function, container: str) -> bool:
    """A list that the function around the hook makes once and returns, while the hook stays: it
    fills for as long as the file trains. Hooks that are removed, and lists that somebody empties,
    do not count.
    """
    around = next((p.function for p in [file.places.get(hook)] if p is not None), None)
    if around is None or "." in container or called_in_loop(file, around):
        return False
    if any(isinstance(n, ast.Call) and method(n) == "remove" for n in file.nodes):
        return False
    if any(
        calls_module(c, scope_of(file, around)) for s in in_order(around.body) for c in calls(s)
    ):
        return False  # it runs the model itself: once
    made = [s for s in in_order(around.body) if any(key(t) == container for t in targets(s))]
    returned = any(
        isinstance(s, ast.Return) and s.value is not None and container in variables(s.value)
        for s in in_order(around.body)
    )
    if len(made) != 1 or not returned or not any(scope.trains for scope in scopes(file)):
        return False
    names = {container} | {
        key(t)
        for n in file.nodes
        if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call)
        for t in n.targets
        if method(n.value) == around.name and key(t)
    }
    return not any(
        isinstance(n, ast.Call)
        and isinstance(n.func, ast.Attribute)
        and n.func.attr in ("clear", "pop", "popleft")
        and key(n.func.value) in names
        or isinstance(n, ast.Delete)
        and any(key(getattr(t, "value", t)) in names or key(t) in names for t in n.targets)
        for n in file.nodes
    )


def _holds_shown(value: ast.expr, shown: List[str]) -> bool:
    """o, o[0], (o, 1): not o.detach() and not o.mean().item()"""
    if isinstance(value, (ast.Subscript, ast.Starred)):
        return _holds_shown(value.value, shown)
    if isinstance(value, (ast.Tuple, ast.List)):
        return any(_holds_shown(e, shown) for e in value.elts)
    return key(value) in shown


def _own_slot(file: Any, line: int) -> bool:
    """def save_at(i): def hook(module, args, output): kept[i] = output: one place for each hook"""
    functions = [
        f for f in file.nodes if isinstance(f, FUNCTIONS) and f.lineno < line <= (f.end_lineno or 0)
    ]
    factory = min(functions, key=lambda f: f.lineno) if len(functions) > 1 else None
    if factory is None:
        return False
    given = {a.arg for a in factory.args.args}
    return any(
        isinstance(s, ast.Assign)
        and s.lineno == line
        and isinstance(t, ast.Subscript)
        and bool(given & {n.id for n in walk(t.slice) if isinstance(n, ast.Name)})
        for s in file.statements
        for t in getattr(s, "targets", ())
    )


CHECKS = (kept_by_hook,)
HINTS = (
    without_torch,
    _own_slot,
)
