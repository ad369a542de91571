"""Tensors that are kept together with their graph."""

import ast
import re
from dataclasses import replace
from typing import Any, Iterator, List, Set

from .calls import called_in_loop, resolve, scope_of
from .evidence import few_rounds, higher_order, perhaps_number
from .findings import Finding, after, around, finding
from .flow import (
    GRAPH,
    RESULT,
    WEIGHT,
    Kept,
    Scope,
    bounded_containers,
    in_order,
    is_model_name,
    module_classes,
    reads,
    resets,
    root,
    scopes,
    variables,
)
from .names import FUNCTIONS, File, calls, key, method, own, pairs, targets, walk, walk_here

# Functions that a training loop somewhere else calls once a batch.
_STEP = re.compile(r"^_?(training_step|train_step|train_batch|train_on_batch|optimize_parameters)$")


def training_loop(place: Any, scope: Scope) -> Any:
    """The innermost loop around a statement in which gradients are computed; else None."""
    for loop in reversed(place.loops if place else ()):
        if scope.has_backward(loop) and not few_rounds(loop, scope.file):
            return loop
    return None


def source(node: Any) -> str:
    """The code of an expression where it is short and the interpreter can print it."""
    text = ast.unparse(node) if hasattr(ast, "unparse") else key(node) or "it"
    return text if len(text) <= 40 else text[:37] + "..."


def detached(node: Any) -> List[List[Any]]:
    """Edits that put .detach() behind an expression; none where it is no single tensor."""
    if isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
        return [after(node, ".detach()")]
    if isinstance(node, ast.BinOp):
        return around(node, "(", ").detach()")
    return []


def outlives(scope: Scope, loop: Any, container: str) -> bool:
    """Is the container older than an iteration of the loop, and not part of the loss?"""
    parts = re.split(r"[.\[]", container)
    if parts[0] in scope.file.aliases:
        return False  # what a module of somebody else does with it is not known
    holders = {container[: sum(map(len, parts[: i + 1])) + i] for i in range(len(parts))}
    return not any(
        # a list that hangs on the model is not what the loss is made from
        h in scope.feeds
        and not (h != container and is_model_name(h))
        or h in bounded_containers(scope.file)
        or resets(loop, h, scope)
        for h in holders - {"self", "cls"}
    )


def differentiated_here(scope: Scope, loop: Any, statement: ast.stmt, value: Any) -> bool:
    """loss.backward() in this loop, then losses.append(loss): what is kept has a graph for sure,
    unless the name stands for something else by then.
    """
    names = {key(n) for n in walk_here(value) if isinstance(n, ast.Name) and _loads(n)}
    inside = list(in_order(loop.body)) if loop is not None else scope.statements
    for s, v in scope.differentiated:
        if s not in inside:
            continue
        between = range(min(s.lineno, statement.lineno), max(s.lineno, statement.lineno) + 1)
        for name in _summands(inside, root(v)) & names:
            if not _takes_number(value, name) and not any(
                x.lineno in between
                and x is not statement
                and any(key(t) == name for t in targets(x))
                for x in inside
            ):
                return True
    return False


def _summands(inside: List[ast.stmt], loss: Any) -> Set[str]:
    """loss, and a and b of loss = a + 0.1 * b: each of them has a graph"""
    found = {loss} if loss else set()
    for x in inside:
        if not isinstance(x, ast.Assign) or not any(key(t) == loss for t in targets(x)):
            continue
        todo = [x.value]
        while todo:
            e = todo.pop()
            if isinstance(e, ast.BinOp) and isinstance(e.op, (ast.Add, ast.Sub)):
                todo += [e.left, e.right]
            elif isinstance(e, ast.Name) and e is not x.value:
                found.add(e.id)
    return found


def _takes_number(value: ast.expr, name: str) -> bool:
    """loss.item(), float(loss), loss["n"]: not the tensor itself"""
    for n in walk_here(value):
        if isinstance(n, ast.Call):
            inner = [key(x) for x in walk_here(n) if isinstance(x, ast.Name)]
            if name in inner and method(n) in ("item", "float", "detach", "int", "cpu", "numpy"):
                return True
        if isinstance(n, ast.Subscript) and root(n) == name:
            return True
    return False


def _emptied_inside(file: File, kept: Kept) -> bool:
    """policy.put(x) into self.data, which another method uses up and begins anew."""
    call = getattr(kept.inner, "value", None)
    held = (
        key(call.func.value) if isinstance(call, ast.Call) and hasattr(call.func, "value") else None
    )
    return kept.how == "call" and held is not None and cleared_in(file.tree, held)


def kept_outputs(file: File) -> Iterator[Finding]:
    """losses.append(loss), meter.update(loss), cache[i] = model(x) in a training loop"""
    if not file.uses_torch:
        return
    for scope in scopes(file):
        for kept in scope.trace.kept:
            if GRAPH not in kept.origins or kept.how == "sum" or perhaps_number(kept.statement):
                continue
            loop = training_loop(file.places.get(kept.statement), scope)
            if loop is None or _emptied_inside(file, kept):
                continue
            weights = kept.how == "chain" and WEIGHT in kept.origins
            if weights and higher_order(loop):
                continue
            if (
                weights
                and kept.container not in scope.feeds
                or outlives(scope, loop, kept.container)
            ):
                sure = weights or differentiated_here(scope, loop, kept.statement, kept.value)
                yield _kept(kept, sure)
                yield from _kept_here(kept, sure)
        yield from _kept_by_steps(file, scope)
        yield from _kept_of_generator(file, scope)
        yield from _kept_for_losses(file, scope)
        yield from _kept_between_methods(file, scope)
        yield from _kept_by_decorator(file, scope)
        yield from _averaged_weights(file, scope)


def _kept_for_losses(file: File, scope: Scope) -> Iterator[Finding]:
    """A buffer that the loss is made from, whose graphs are retained and that nothing empties: each
    backward pass goes through all earlier ones.
    """
    for kept in scope.trace.kept:
        if GRAPH not in kept.origins or kept.how not in ("append", "call", "meter"):
            continue
        loop = _retaining_loop(file.places.get(kept.statement), scope)
        if loop is None or kept.container in bounded_containers(file):
            continue
        holder = re.split(r"[.\[]", kept.container)[0]
        if resets(loop, kept.container, scope) or resets(loop, holder, scope):
            continue
        if "." in kept.container and cleared_in(file.tree, kept.container):
            continue
        if kept.how == "call" and _class_clears(file, holder):
            continue
        if _begun_in(loop, holder) or not _fed(scope, kept.container, holder):
            continue
        yield _kept(kept, proven=True)


def _kept_between_methods(file: File, scope: Scope) -> Iterator[Finding]:
    """self.log_probs.append(...) in one method, a loss made of all of them in another, and nothing
    ever empties the list: every update goes through all earlier ones.
    """
    if scope.klass is None or scope.trains:
        return
    for kept in scope.trace.kept:
        if (
            GRAPH not in kept.origins
            or kept.how != "append"
            or not kept.container.startswith("self.")
            or kept.container in bounded_containers(file)
            or cleared_in(file.tree, kept.container)
            or _begun_again(file, scope.klass)
        ):
            continue
        if any(
            other.klass is scope.klass and kept.container in other.feeds for other in scopes(file)
        ):
            yield _kept(kept, proven=True)


def _begun_again(file: File, c: ast.ClassDef) -> bool:
    """self.__init__(), or an object of this class made in a loop: it begins with empty lists"""
    return any(
        isinstance(n, ast.Call) and (method(n) == "__init__" and key(n.func) == "self.__init__")
        for n in walk(c)
    ) or any(
        isinstance(n, ast.Call) and key(n.func) == c.name
        for s in file.statements
        if file.places[s].loops or file.places[s].function is not None
        for n in own(s)
    )


def _kept_by_decorator(file: File, scope: Scope) -> Iterator[Finding]:
    """@recorded on a training step, where the wrapper keeps what the step gives back"""
    function = scope.function
    place = file.places.get(function) if function is not None else None
    if place is None or place.function is None:
        return
    local = locals_of(function)
    for kept in scope.trace.kept:
        names = [o[len(RESULT) :] for o in kept.origins if o.startswith(RESULT)]
        if not names or kept.container in local or _emptied(place.function, kept.container):
            continue
        for f in _decorated_with(file, place.function):
            inner = scope_of(file, f)
            if GRAPH in inner.trace.returned and (inner.trains or called_in_loop(file, f)):
                yield _kept(kept)
                break


def _emptied(tree: Any, container: str) -> bool:
    """x.clear(), x.pop(), del x[...]: not the statement that first makes it"""
    return any(
        isinstance(n, ast.Call)
        and isinstance(n.func, ast.Attribute)
        and n.func.attr in ("clear", "pop", "popleft", "popitem")
        and key(n.func.value) == container
        or isinstance(n, ast.Delete)
        and any(key(getattr(t, "value", t)) == container for t in n.targets)
        for n in walk(tree)
    )


def _decorated_with(file: File, decorator: Any) -> List[ast.AST]:
    return [
        f
        for f in file.functions.values()
        for d in f.decorator_list
        if key(d.func if isinstance(d, ast.Call) else d) == decorator.name
    ]


def _kept_of_generator(file: File, scope: Scope) -> Iterator[Finding]:
    """list(steps(model)) and [x for x in steps(model)], where steps trains and yields its losses"""
    for s in scope.statements:
        for call in [n for n in own(s) if isinstance(n, ast.Call)]:
            generator, what = _gathered(scope, call)
            if generator is None:
                continue
            inner = scope_of(file, generator)
            if GRAPH in inner.trace.yielded and inner.trains:
                yielded = next(
                    x for x in in_order(generator.body) for n in own(x) if isinstance(n, ast.Yield)
                )
                yield finding(
                    "graph-kept-in-list",
                    yielded,
                    "`%s` yields a value with its graph, and `%s` keeps all of them (line %d)"
                    % (generator.name, what, s.lineno),
                    proven=True,
                )


def _gathered(scope: Scope, call: ast.Call) -> Any:
    """(generator, container) of list(f(...)), sorted(f(...)), kept.extend(f(...)); else None."""
    if method(call) not in ("list", "tuple", "sorted", "deque", "extend") or len(call.args) != 1:
        return None, ""
    of = call.args[0]
    if isinstance(of, (ast.GeneratorExp, ast.ListComp)) and key(of.elt) in {
        key(g.target) for g in of.generators
    }:
        of = of.generators[0].iter
    function = resolve(scope, of) if isinstance(of, ast.Call) else None
    if function is None or not any(isinstance(n, ast.Yield) for n in walk_here(function)):
        return None, ""
    return function, source(call)


def _retaining_loop(place: Any, scope: Scope) -> Any:
    """The outermost loop around a statement with a backward pass that retains its graph."""
    for loop in place.loops if place else ():
        for call in (c for s in in_order(loop.body) for c in calls(s)):
            if method(call) == "backward" and any(
                k.arg == "retain_graph" and getattr(k.value, "value", None) is True
                for k in call.keywords
            ):
                return loop
    return None


def _class_clears(file: File, holder: str) -> bool:
    """Does a method of the holder's class empty or begin anew what it keeps?"""
    name = file.class_of(holder)
    found = file.classes.get(name) if name else None
    if found is None:
        return True  # what its methods do is not known
    return any(
        cleared_in(method_, "self." + n.attr)
        for method_ in found.body
        if isinstance(method_, FUNCTIONS) and method_.name != "__init__"
        for n in walk(method_)
        if isinstance(n, ast.Attribute) and key(n.value) == "self"
    )


def _begun_in(loop: ast.For, name: str) -> bool:
    return any(key(t) == name for s in in_order(loop.body) for t in targets(s))


def _fed(scope: Scope, container: str, holder: str) -> bool:
    return container in scope.feeds or holder in scope.feeds


def _averaged_weights(file: File, scope: Scope) -> Iterator[Finding]:
    """class EMA: def update(self, model): an average of weights that grows a graph at each call"""
    for kept in scope.trace.kept:
        if kept.how != "chain" or not {GRAPH, WEIGHT} <= kept.origins:
            continue
        place = file.places[kept.statement]
        if training_loop(place, scope) is None and place.loops:
            if not higher_order(place.loops[-1]):
                yield _kept(kept, proven=True)


def _kept(kept: Kept, proven: bool = False) -> Finding:
    """`proven`: by the form alone, whether the abstract run agrees or not."""
    through = kept.inner.lineno if kept.inner is not None else None
    return replace(_told(kept), proven=proven, through=through)


def _told(kept: Kept) -> Finding:
    what = source(kept.value)
    if kept.how == "sum":
        return finding(
            "loss-graph-accumulated",
            kept.statement,
            "`%s` is summed into `%s` with its graph: the graph of every call is kept until `%s` is gone"
            % (what, kept.container, kept.container),
            detached(kept.value),
        )
    if kept.how == "call":
        message = "`%s` goes into `%s` with its graph (it %s): the graph of every iteration is kept"
        return finding(
            "graph-kept-in-list", kept.statement, message % (what, kept.container, kept.through)
        )
    if kept.how == "meter":
        return finding(
            "meter-may-keep-graph",
            kept.statement,
            "`%s` goes into `%s` with its graph: most meters add up what they are given as it is"
            % (what, kept.container),
            detached(kept.value),
        )
    if kept.how == "chain":
        return finding(
            "graph-kept-in-list",
            kept.statement,
            "`%s` is made from its own last value and keeps the graph: each iteration's graph holds all earlier ones"
            % kept.container,
        )
    return finding(
        "graph-kept-in-list",
        kept.statement,
        "`%s` is kept in `%s` with its graph: the graph of every iteration stays in memory"
        % (what, kept.container),
        detached(kept.value),
    )


def _kept_here(kept: Kept, proven: bool = False) -> Iterator[Finding]:
    """The other end of a finding at a call: the line that keeps what it is given."""
    if kept.how == "call" and kept.inner is not None:
        yield finding(
            "graph-kept-here",
            kept.inner,
            "this keeps what line %d hands over with its graph" % kept.statement.lineno,
            proven=proven,
            through=kept.statement.lineno,
        )


def _kept_by_steps(file: File, scope: Scope) -> Iterator[Finding]:
    """A function that is called once a batch and keeps its loss outside itself."""
    function = scope.function
    if function is None or not scope.trains:
        return
    if not _STEP.match(function.name) and not called_in_loop(file, function):
        return
    if scope.klass is not None and scope.klass.name in module_classes(file):
        return  # kept_by_module says it
    declared = {
        name
        for n in walk_here(function)
        if isinstance(n, (ast.Global, ast.Nonlocal))
        for name in n.names
    }
    local = {
        n.id for n in walk_here(function) if isinstance(n, ast.Name) and not _loads(n)
    } - declared
    for kept in scope.trace.kept:
        first = re.split(r"[.\[]", kept.container)[0]
        outside = first in ("self", "cls") or first not in local and not _is_parameter(scope, first)
        if (
            GRAPH in kept.origins
            and outside
            and first not in file.aliases
            and not any(scope.has_backward(loop) for loop in file.places[kept.statement].loops)
            and kept.container not in scope.feeds
            and kept.container not in bounded_containers(file)
            and not cleared_in(file.tree, kept.container)
            and not feeds_any_loss(file, kept.container)
        ):
            yield _kept(kept)


def _loads(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Load)


def _is_parameter(scope: Scope, name: str) -> bool:
    given = walk(scope.function.args) if scope.function is not None else []
    return any(a.arg == name for a in given if isinstance(a, ast.arg))


def feeds_any_loss(file: File, container: str) -> bool:
    last = container.split(".")[-1]
    return any(
        f.split(".")[-1] == last and ("." in f) == ("." in container)
        for scope in scopes(file)
        for f in scope.feeds
    )


def cleared_in(tree: Any, container: str) -> bool:
    """Is it emptied or begun anew somewhere, outside __init__? By its last name, because another
    function may know it by another variable.
    """
    last = container.split(".")[-1]

    def is_it(node: Any) -> bool:
        k = key(node)
        return bool(k) and k.split(".")[-1] == last and ("." in k) == ("." in container)

    for node in walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("clear", "pop", "popleft", "popitem")
            and is_it(node.func.value)
        ):
            return True
        if isinstance(node, ast.Call) and _by_name(node, last):
            return True
        if isinstance(node, ast.Delete) and any(
            is_it(t) or is_it(getattr(t, "value", t)) for t in node.targets
        ):
            return True
        if isinstance(node, FUNCTIONS) and node.name != "__init__":
            for s in in_order(node.body):
                if not isinstance(s, (ast.Assign, ast.AnnAssign)) or s.value is None:
                    continue
                for t in targets(s):
                    if reads(t, s.value):
                        continue
                    if is_it(t) or isinstance(t, ast.Subscript) and is_it(t.value) and _whole(t):
                        return True
    return False


def _by_name(call: ast.Call, last: str) -> bool:
    """getattr(self, f"{phase}_outputs").clear(), setattr(self, phase + "_outputs", [])"""
    asked: ast.expr = call
    if isinstance(call.func, ast.Attribute) and call.func.attr in ("clear", "pop", "popleft"):
        asked = call.func.value
    elif key(call.func) != "setattr":
        return False
    if not isinstance(asked, ast.Call) or key(asked.func) not in ("getattr", "setattr"):
        return False
    parts = [
        n.value
        for a in asked.args[1:2]
        for n in walk(a)
        if isinstance(n, ast.Constant) and isinstance(n.value, str) and n.value
    ]
    return bool(parts) and all(p in last for p in parts)


def _whole(target: ast.Subscript) -> bool:
    return isinstance(target.slice, ast.Slice) and target.slice.lower is None


# hooks


def taken_off(file: File, s: Any) -> bool:
    """The class keeps the handles and removes them: it is there for some passes, and the list with
    it
    """
    place = file.places.get(s)
    klass = place.klass if place is not None else None
    return klass is not None and any(
        isinstance(n, ast.Call)
        and method(n) == "remove"
        and not n.args
        and isinstance(n.func, ast.Attribute)
        for n in walk(klass)
    )


def locals_of(function: Any) -> Set[str]:
    return {key(t) for s in in_order(function.body) for t in targets(s) if key(t)}


# caches


# modules


def module_containers(file: File) -> Set[str]:
    """Lists and dicts at the top of the file."""
    return {
        key(t)
        for s in file.tree.body
        if isinstance(s, ast.Assign)
        for t, value in pairs(s)
        if key(t)
        and isinstance(value, (ast.List, ast.Dict, ast.Call))
        and (not isinstance(value, ast.Call) or method(value) in ("dict", "list", "defaultdict"))
    }


def begun_outside(file: File, container: str, own_statement: Any) -> bool:
    """model.hidden = model.init_hidden(): a sequence begins where somebody sets it."""
    last = container.split(".")[-1]
    return any(
        isinstance(s, ast.Assign)
        and s is not own_statement
        and getattr(file.places[s].function, "name", "") != "__init__"
        and any((key(t) or "").split(".")[-1] == last and "." in (key(t) or "") for t in targets(s))
        for s in file.statements
    )


def cut_or_begun(file: File, container: str, own_statement: Any) -> bool:
    """Is the attribute detached, emptied or set anew anywhere else in the file?"""
    return (
        cleared_in(file.tree, container)
        or cut_anywhere(file, container)
        or begun_outside(file, container, own_statement)
    )


def cut_anywhere(file: File, container: str) -> bool:
    last = container.split(".")[-1]
    return any(
        isinstance(n, ast.Call)
        and method(n) in ("detach_", "detach", "repackage_hidden", "reset_state", "reset_hidden")
        and any(v.split(".")[-1] == last for v in variables(n))
        for n in file.nodes
    )


# callbacks of trainers
