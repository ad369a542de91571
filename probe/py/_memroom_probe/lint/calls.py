"""What the functions of this file do with what they are given: return it, keep it, differentiate
it. Calls of functions from elsewhere are unknown and taken as harmless.
"""

import ast
import re
from typing import Callable, Dict, FrozenSet, Iterator, List, Optional, Tuple

from .flow import (
    CARD,
    GRAPH,
    NOTHING,
    PARAMETER,
    Scope,
    parameters,
    scopes,
)
from .names import FUNCTIONS, key, method, own, pairs


def resolve(scope: Scope, call: ast.Call):
    """The function of this file that a call reaches, or None."""
    file = scope.file
    func = call.func
    if isinstance(func, ast.Name):
        name = file.class_of(func.id)
        if name is not None:  # meter(loss)
            return file.method_of(name, "__call__")
        return file.plain_functions.get(func.id)
    if not isinstance(func, ast.Attribute):
        return None
    owner = key(func.value)
    if owner in ("self", "cls") and scope.klass is not None:
        return file.method_of(scope.klass.name, func.attr)
    name = file.class_of(owner) if owner else None
    if name is None and isinstance(func.value, ast.Subscript):
        name = file.element_class_of(key(func.value.value))
    if name is None and owner and "[" in owner:
        name = file.element_class_of(owner[: owner.rindex("[")])
    if name is None and owner:
        name = _handed_class(scope, owner)
    if name is None:
        name = _only_meter(scope, call, owner)
    return file.method_of(name, func.attr) if name else None


def _handed_class(scope: Scope, owner: str) -> Optional[str]:
    """The class of this file that a parameter, or an attribute set from one of __init__'s, is made
    from, as the calls in this file hand it in: History in Runner(model, History()).
    """
    file = scope.file
    if owner.startswith("self.") and scope.klass is not None:
        function, called = file.method_of(scope.klass.name, "__init__"), scope.klass.name
        if function is None:
            return None
        owner = next(
            (
                key(value) or ""
                for s in ast.walk(function)
                if isinstance(s, ast.Assign)
                for target, value in pairs(s)
                if key(target) == owner
            ),
            "",
        )
    else:
        function, called = scope.function, getattr(scope.function, "name", "")
    if function is None or owner not in parameters(function):
        return None
    for node in file.nodes:
        if isinstance(node, ast.Call) and method(node) == called:
            argument = bind(node, function).get(owner)
            if isinstance(argument, ast.Call) and key(argument.func) in file.classes:
                return key(argument.func)
            name = file.class_of(key(argument)) if argument is not None else None
            if name is not None:
                return name
    return None


_METERS = re.compile(r"meter|metric|track|avg|average|hist|stat|log|record|running|monitor", re.I)
# Methods that dicts, sets, bars and the like have too.
_EVERYBODYS = frozenset("append add extend get pop items values keys copy close write".split())


def _only_meter(scope: Scope, call: ast.Call, owner: Optional[str]) -> Optional[str]:
    """The class of a meter that came in through a parameter: the only one of this file that has
    such a method, where the variable is called like one.
    """
    file, name = scope.file, call.func.attr
    receiver = owner or key(getattr(call.func.value, "value", None)) or ""
    if name in _EVERYBODYS or not _METERS.search(receiver) or file.made_from(receiver):
        return None
    first = receiver.split(".")[0].split("[")[0]
    if first in file.aliases or first in ("self", "cls") and "." not in receiver:
        return None
    having = [c for (c, m) in file.methods if m == name]
    if len(having) != 1 or not call.args:
        return None
    # dict.update takes one argument, a meter mostly a value and a count
    takes = parameters(file.methods[(having[0], name)])
    return having[0] if len(call.args) <= len(takes) and takes else None


def bind(call: ast.Call, function) -> Dict[str, ast.AST]:
    """Parameter -> argument."""
    names = parameters(function)
    rest = function.args.kwarg.arg if function.args.kwarg else None
    bound = dict(
        zip(
            [n for n in names if n != rest],
            [a for a in call.args if not isinstance(a, ast.Starred)],
        )
    )
    more = [k.value for k in call.keywords if k.arg and k.arg not in names]
    for k in call.keywords:
        if k.arg in names:
            bound[k.arg] = k.value
    if rest and more:  # record(loss=loss, lr=lr) for record(**values)
        bound[rest] = more[0] if len(more) == 1 else _together(more)
    return bound


def _together(values: List[ast.AST]) -> ast.AST:
    return ast.copy_location(ast.Tuple(elts=values, ctx=ast.Load()), values[0])


def scope_of(file, function) -> Scope:
    scopes(file)
    return file._scope_of[function]


def returned_by(
    scope: Scope, call: ast.Call, origins: Callable[[ast.AST], FrozenSet[str]]
) -> Optional[FrozenSet[str]]:
    """What the result of a call of our own function holds; None if it is not our own."""
    function = resolve(scope, call)
    if function is None or function is scope.function:
        return None
    if any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in ast.walk(function)):
        return NOTHING
    returned = scope_of(scope.file, function).trace.returned
    held = returned & {GRAPH, CARD}
    bound = bind(call, function)
    for name, argument in bound.items():
        if PARAMETER + name in returned:
            held |= origins(argument)
    return held


def parts_returned_by(
    scope: Scope, call: ast.Call, origins: Callable[[ast.AST], FrozenSet[str]]
) -> Optional[List[FrozenSet[str]]]:
    """What each part of a returned tuple holds; None where that is not known."""
    function = resolve(scope, call)
    if function is None or function is scope.function:
        return None
    parts = scope_of(scope.file, function).trace.parts
    if not parts:
        return None
    bound = bind(call, function)
    found = []
    for part in parts:
        held = part & {GRAPH, CARD}
        for name, argument in bound.items():
            if PARAMETER + name in part:
                held |= origins(argument)
        found.append(held)
    return found


def kept_by_helper(scope: Scope, call: ast.Call) -> Iterator[Tuple[str, ast.AST, str]]:
    """(container, argument, what happens) for each argument that the called function keeps."""
    function = resolve(scope, call)
    if function is None or function is scope.function:
        return
    inner = scope_of(scope.file, function)
    bound = bind(call, function)
    for kept in inner.trace.kept:
        for name, argument in bound.items():
            if PARAMETER + name not in kept.origins or kept.container in _locals(function):
                continue
            if key(argument) in scope.modules:
                continue  # a model: what is made of it there is judged there
            container = _seen_from(call, kept.container, bound)
            if container:
                where = "%s, line %d" % (_verb(kept.how), kept.statement.lineno)
                yield container, argument, where


def _verb(how: str) -> str:
    return {"sum": "adds it up", "append": "keeps it", "store": "keeps it"}.get(how, "keeps it")


def _locals(function) -> List[str]:
    """Variables that end with the call. Names that are only stored into by subscript are not
    among them.
    """
    outside = {
        n for s in ast.walk(function) if isinstance(s, (ast.Global, ast.Nonlocal)) for n in s.names
    }
    return [
        n.id
        for n in ast.walk(function)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and n.id not in outside
    ]


def _seen_from(call: ast.Call, container: str, bound: Dict[str, ast.AST]) -> Optional[str]:
    """The container as the caller knows it: meter for self.sum in meter.update(loss)."""
    first = container.split(".")[0].split("[")[0]
    if first in ("self", "cls"):
        if not isinstance(call.func, ast.Attribute):
            return key(call.func)
        owner = key(call.func.value)
        if owner in ("self", "cls"):
            return container
        return owner or key(getattr(call.func.value, "value", None))
    if first in bound:
        return key(bound[first])
    return container


def differentiated_by_helpers(scope: Scope) -> Iterator[Tuple[ast.stmt, ast.AST]]:
    """(statement, argument) where a function of this file calls backward on what it is given, and
    (statement, result) where it differentiates something of its own.
    """
    for s in scope.statements:
        for node in own(s):
            if not isinstance(node, ast.Call):
                continue
            function = resolve(scope, node)
            if function is None or function is scope.function:
                continue
            inner = scope_of(scope.file, function)
            names = set()
            for _, value in inner.differentiated:
                names.update(_base_names(value))
            if not names and not inner.differentiated:
                continue
            hit = False
            for name, argument in bind(node, function).items():
                if name in names:
                    hit = True
                    yield s, argument
            if not hit:
                yield s, ast.copy_location(ast.Constant(value=None), node)


def _base_names(value) -> List[str]:
    k = key(value)
    return [k] if k else []


def grad_is_off(scope: Scope) -> bool:
    """Is the whole function called under no_grad in this file, or one that frameworks call so?"""
    if scope.function is None:
        return False
    file = scope.file
    if file.places[scope.body[0]].no_grad:
        return True
    if scope.klass is not None and scope.function.name in (
        "validation_step",
        "test_step",
        "predict_step",
        "validation_epoch_end",
        "on_validation_epoch_end",
        "test_epoch_end",
        "on_test_epoch_end",
    ):
        return True
    return called_without_grad(file, scope.function.name)


def called_without_grad(file, name: str) -> bool:
    """Is the function called under no_grad somewhere in this file?"""
    if not hasattr(file, "_without_grad"):
        file._without_grad = {
            method(n)
            for s in file.statements
            if file.places[s].no_grad and not isinstance(s, FUNCTIONS)
            for n in own(s)
            if isinstance(n, ast.Call)
        }
    return name in file._without_grad


def called_in_loop(file, function) -> bool:
    """Does this file call the function again and again?"""
    if not hasattr(file, "_in_loops"):
        file._in_loops = {
            method(n)
            for s in file.statements
            if file.places[s].loops
            for n in own(s)
            if isinstance(n, ast.Call)
        }
    return function.name in file._in_loops
