"""What the functions of this file do with what they are given: return it, keep it, differentiate
it. Calls of functions from elsewhere are unknown and taken as harmless.
"""

import ast
import re
from typing import Any, Callable, Dict, FrozenSet, Iterator, List, Optional, Set, Tuple

from .flow import (
    CARD,
    GRAPH,
    GROWING,
    LARGE_WINDOW,
    NOTHING,
    PARAMETER,
    Scope,
    bounded_containers,
    parameters,
    scopes_of_functions,
)
from .names import (
    FUNCTIONS,
    LOOPS,
    File,
    Function,
    key,
    method,
    once,
    own,
    pairs,
    targets,
    text,
    walk,
    walk_here,
)


def unwrapped(scope: Scope, call: ast.Call) -> ast.Call:
    """The call as it would stand without a short name: losses.append(x) for add(x) after
    add = losses.append, keep(store, x) for record(x) after record = partial(keep, store).
    """
    if not isinstance(call.func, ast.Name):
        return call
    made = short_names(scope).get(call.func.id)
    if made is None:
        return call
    if isinstance(made, ast.Attribute):
        new = ast.Call(func=made, args=call.args, keywords=call.keywords)
    elif isinstance(made, ast.Call):
        new = ast.Call(
            func=made.args[0],
            args=made.args[1:] + call.args,
            keywords=made.keywords + call.keywords,
        )
    else:
        return call
    return ast.copy_location(new, call)


def short_names(scope: Scope) -> Dict[str, ast.AST]:
    """Variables of this scope or of the file that stand for one bound method or one partial."""
    return _short_names(scope.file)


@once
def _short_names(file: File) -> Dict[str, ast.AST]:
    short: Dict[str, ast.AST] = {}
    many: Set[str] = set()
    for node in file.nodes:
        if not isinstance(node, ast.Assign):
            continue
        for target, value in pairs(node):
            if not isinstance(target, ast.Name):
                continue
            grows = isinstance(value, ast.Attribute) and value.attr in GROWING
            part = (
                isinstance(value, ast.Call)
                and method(value) == "partial"
                and bool(value.args)
                and key(value.args[0]) in file.plain_functions
            )
            if target.id in short or target.id in many or not (grows or part):
                many.add(target.id)
                short.pop(target.id, None)
            else:
                short[target.id] = value
    return short


def generator_of(scope: Scope, node: ast.expr) -> Optional[Function]:
    """The generator function of this file that an expression calls, or None."""
    if not isinstance(node, ast.Call):
        return None
    if method(node) in ("enumerate", "tqdm", "iter") and node.args:
        return generator_of(scope, node.args[0])
    function = resolve(scope, node)
    if function is None or function is scope.function:
        return None
    yields = any(isinstance(n, ast.Yield) for n in walk_here(function))
    return function if yields else None


def resolve(scope: Scope, call: ast.Call) -> Optional[Function]:
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
    if name is None and owner:
        name = _class_of_element(scope, call, owner)
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
                for s in walk(function)
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
    for node in _calls_by_name(file).get(called, ()):
        argument = bind(node, function).get(owner)
        if isinstance(argument, ast.Call) and key(argument.func) in file.classes:
            return text(argument.func)
        name = file.class_of(key(argument)) if argument is not None else None
        if name is not None:
            return name
    return None


@once
def _calls_by_name(file: File) -> Dict[str, List[ast.Call]]:
    found: Dict[str, List[ast.Call]] = {}
    for node in file.nodes:
        if isinstance(node, ast.Call):
            found.setdefault(method(node), []).append(node)
    return found


@once
def _iterated(scope: Scope) -> Dict[str, List[ast.expr]]:
    """What the loops of a function go through, by the name of their variable."""
    found: Dict[str, List[ast.expr]] = {}
    for s in scope.statements:
        if isinstance(s, LOOPS) and not isinstance(s, ast.While):
            for name in {key(t) for t in targets(s)}:
                found.setdefault(name or "", []).append(s.iter)
    return found


def _class_of_element(scope: Scope, call: ast.Call, owner: str) -> Optional[str]:
    """Recorder in `for cb in self.callbacks: cb.on_batch_end(loss)`, where a list of this file
    holds a Recorder and no other class has that method with another effect.
    """
    if not isinstance(call.func, ast.Attribute):
        return None
    file, attribute = scope.file, call.func.attr
    if "." in owner or "[" in owner:
        return None
    over = _iterated(scope).get(owner, ())
    if len(over) != 1 or not key(over[0]):
        return None
    name = file.element_class_of(key(over[0]))
    if name is not None and file.method_of(name, attribute) is not None:
        return name
    # what the constructor or the caller hands in: Loop([Recorder()])
    listed = {
        c
        for n in file.nodes
        if isinstance(n, (ast.List, ast.Tuple))
        for e in n.elts
        for c in [_made_class(file, e)]
        if c and file.method_of(c, attribute) is not None
    }
    return listed.pop() if len(listed) == 1 else None


def _made_class(file: File, node: ast.expr) -> Optional[str]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id if node.func.id in file.classes else None
    return file.class_of(key(node)) if key(node) else None


_METERS = re.compile(r"meter|metric|track|avg|average|hist|stat|log|record|running|monitor", re.I)
# Methods that dicts, sets, bars and the like have too.
_EVERYBODYS = frozenset("append add extend get pop items values keys copy close write".split())


def _only_meter(scope: Scope, call: ast.Call, owner: Optional[str]) -> Optional[str]:
    """The class of a meter that came in through a parameter: the only one of this file that has
    such a method, where the variable is called like one.
    """
    if not isinstance(call.func, ast.Attribute):
        return None
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


def bind(call: ast.Call, function: Any) -> Dict[str, ast.AST]:
    """Parameter -> argument."""
    names = parameters(function)
    rest = function.args.kwarg.arg if function.args.kwarg else None
    many = function.args.vararg.arg if function.args.vararg else None
    a = function.args
    plain = [x.arg for x in getattr(a, "posonlyargs", []) + a.args if x.arg not in ("self", "cls")]
    given = [x for x in call.args if not isinstance(x, ast.Starred)]
    bound = dict(zip(plain, given))
    if many and (given[len(plain) :] or len(given) < len(call.args)):
        # push(feature, action) for push(*args), push(*row) too
        more = given[len(plain) :] + [x.value for x in call.args if isinstance(x, ast.Starred)]
        bound[many] = more[0] if len(more) == 1 else _together(more)
    more = [k.value for k in call.keywords if k.arg and k.arg not in names]
    for k in call.keywords:
        if k.arg in names:
            bound[k.arg] = k.value
    if rest and more:  # record(loss=loss, lr=lr) for record(**values)
        bound[rest] = more[0] if len(more) == 1 else _together(more)
    return bound


def _together(values: List[ast.expr]) -> ast.AST:
    return ast.copy_location(ast.Tuple(elts=values, ctx=ast.Load()), values[0])


def scope_of(file: File, function: Any) -> Scope:
    return scopes_of_functions(file)[function]


def returned_by(
    scope: Scope, call: ast.Call, origins: Callable[[ast.AST], FrozenSet[str]]
) -> Optional[FrozenSet[str]]:
    """What the result of a call of our own function holds; None if it is not our own."""
    function = resolve(scope, call)
    if function is None or function is scope.function:
        return None
    if any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in walk(function)):
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


def kept_by_helper(scope: Scope, call: ast.Call) -> Iterator[Tuple[str, ast.AST, str, ast.stmt]]:
    """(container, argument, what happens, where) for each argument that the called function
    keeps.
    """
    function = resolve(scope, call)
    if function is None or function is scope.function:
        return
    inner = scope_of(scope.file, function)
    bound = bind(call, function)
    for kept in inner.trace.kept:
        for name, argument in bound.items():
            if PARAMETER + name not in kept.origins or kept.container in _locals(function):
                continue
            if kept.container in bounded_containers(scope.file) and not _capacity(
                scope, function, kept.container
            ):
                continue
            if key(argument) in scope.modules:
                continue  # a model: what is made of it there is judged there
            container = _seen_from(call, kept.container, bound)
            container = _iterated_by(scope, call, container) or container
            if container:
                where = "%s, line %d" % (_verb(kept.how), kept.statement.lineno)
                yield container, argument, where, kept.statement


def _capacity(scope: Scope, function: Function, container: str) -> bool:
    """self.data = deque(maxlen=capacity), where this file asks for a large capacity"""
    file = scope.file
    klass = file.places[function].klass if function in file.places else None
    if klass is None:
        return False
    sizes = [
        k.value
        for n in walk(klass)
        if isinstance(n, ast.Assign) and any(key(t) == container for t in n.targets)
        for c in walk(n.value)
        if isinstance(c, ast.Call)
        for k in c.keywords
        if k.arg == "maxlen"
    ]
    begin = file.method_of(klass.name, "__init__")
    for size in sizes:
        for n in file.nodes:
            if begin is None or not isinstance(n, ast.Call) or key(n.func) != klass.name:
                continue
            asked = bind(n, begin).get(key(size) or "")
            if isinstance(asked, ast.Constant) and isinstance(asked.value, int):
                return asked.value >= LARGE_WINDOW
    return False


def _iterated_by(scope: Scope, call: ast.Call, container: Optional[str]) -> Optional[str]:
    """self.callbacks for cb in `for cb in self.callbacks: cb.on_end(loss)`: the list's objects
    outlive the round of the loop that names them.
    """
    if not isinstance(call.func, ast.Attribute) or key(call.func.value) != container:
        return None
    over = [
        s.iter
        for s in scope.statements
        if isinstance(s, (ast.For, ast.AsyncFor)) and any(key(t) == container for t in targets(s))
    ]
    return key(over[0]) if len(over) == 1 else None


def _verb(how: str) -> str:
    return {"sum": "adds it up", "append": "keeps it", "store": "keeps it"}.get(how, "keeps it")


def _locals(function: Function) -> List[str]:
    """Variables that end with the call. Names that are only stored into by subscript are not
    among them.
    """
    outside = {
        n for s in walk(function) if isinstance(s, (ast.Global, ast.Nonlocal)) for n in s.names
    }
    return [
        n.id
        for n in walk(function)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and n.id not in outside
    ]


def _seen_from(call: ast.Call, container: str, bound: Dict[str, ast.AST]) -> Optional[str]:
    """The container as the caller knows it: meter for self.sum in meter.update(loss)."""
    first = container.split(".")[0].split("[")[0]
    if first in ("self", "cls"):
        if not isinstance(call.func, ast.Attribute):
            return text(call.func)
        owner = key(call.func.value)
        if owner in ("self", "cls"):
            return container
        return owner or text(getattr(call.func.value, "value", None))
    if first in bound:
        return text(bound[first])
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


def _base_names(value: ast.expr) -> List[str]:
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


def called_without_grad(file: File, name: str) -> bool:
    """Is the function called under no_grad somewhere in this file?"""
    return name in _without_grad(file)


@once
def _without_grad(file: File) -> Set[str]:
    return {
        method(n)
        for s in file.statements
        if file.places[s].no_grad and not isinstance(s, FUNCTIONS)
        for n in own(s)
        if isinstance(n, ast.Call)
    }


def called_in_loop(file: File, function: Any) -> bool:
    """Does this file call the function again and again?"""
    return function.name in _in_loops(file)


@once
def _in_loops(file: File) -> Set[str]:
    return {
        method(n)
        for s in file.statements
        if file.places[s].loops
        for n in own(s)
        if isinstance(n, ast.Call)
    }
