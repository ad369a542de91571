"""Tensors that are kept together with their graph."""

import ast
import re
from typing import Iterator, List, Optional, Set, Tuple

from . import proof, rules
from .calls import called_in_loop, resolve, scope_of
from .evidence import SMALL, few_rounds, higher_order, perhaps_number
from .flow import (
    CARD,
    COUNT,
    GRAPH,
    PARAMETER,
    RESULT,
    WEIGHT,
    Kept,
    Scope,
    bounded_containers,
    calls_module,
    in_order,
    is_model_name,
    module_classes,
    reads,
    resets,
    root,
    scopes,
    variables,
)
from .names import FUNCTIONS, calls, key, method, own, own_calls, pairs, targets, walk, walk_here

# Functions that a training loop somewhere else calls once a batch.
_STEP = re.compile(r"^_?(training_step|train_step|train_batch|train_on_batch|optimize_parameters)$")


def training_loop(place, scope: Scope):
    """The innermost loop around a statement in which gradients are computed; else None."""
    for loop in reversed(place.loops if place else ()):
        if scope.has_backward(loop) and not few_rounds(loop, scope.file):
            return loop
    return None


def source(node) -> str:
    """The code of an expression where it is short and the interpreter can print it."""
    text = ast.unparse(node) if hasattr(ast, "unparse") else key(node) or "it"
    return text if len(text) <= 40 else text[:37] + "..."


def detached(node) -> List[list]:
    """Edits that put .detach() behind an expression; none where it is no single tensor."""
    if isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
        return [rules.after(node, ".detach()")]
    if isinstance(node, ast.BinOp):
        return rules.around(node, "(", ").detach()")
    return []


def _outlives(scope: Scope, loop, container: str) -> bool:
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


def _differentiated_here(scope: Scope, loop, statement: ast.stmt, value) -> bool:
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


def _summands(inside: List[ast.stmt], loss) -> Set[str]:
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


def _takes_number(value, name: str) -> bool:
    """loss.item(), float(loss), loss["n"]: not the tensor itself"""
    for n in walk_here(value):
        if isinstance(n, ast.Call):
            inner = [key(x) for x in walk_here(n) if isinstance(x, ast.Name)]
            if name in inner and method(n) in ("item", "float", "detach", "int", "cpu", "numpy"):
                return True
        if isinstance(n, ast.Subscript) and root(n) == name:
            return True
    return False


def _how_many(value) -> bool:
    """batch_size * world_size: numbers by their names"""
    leaves = [key(n) or "" for n in walk_here(value) if isinstance(n, (ast.Name, ast.Attribute))]
    return bool(leaves) and all(COUNT.search(k) or _SETTINGS.match(k) for k in leaves)


_SETTINGS = re.compile(r"(self\.|self$)?(args|cfg|config|opts?|hparams)?$")


def summed_loss(file) -> Iterator[dict]:
    """total += loss"""
    if not file.uses_torch:
        return
    for scope in scopes(file):
        for kept in scope.trace.kept:
            if kept.how != "sum" or GRAPH not in kept.origins:
                continue
            loop = training_loop(file.places.get(kept.statement), scope)
            if loop is None or not _outlives(scope, loop, kept.container):
                continue
            if _how_many(kept.value):
                continue
            yield rules.finding(
                "loss-graph-accumulated",
                kept.statement,
                "`%s` is summed into `%s` with its graph: the graph of every iteration is kept until `%s` is gone"
                % (source(kept.value), kept.container, kept.container),
                detached(kept.value),
                safe=proof.detach_changes_nothing(scope, loop, kept.statement, kept.value),
                proven=_differentiated_here(scope, loop, kept.statement, kept.value),
            )


def _emptied_inside(file, kept: Kept) -> bool:
    """policy.put(x) into self.data, which another method uses up and begins anew."""
    call = getattr(kept.inner, "value", None)
    held = (
        key(call.func.value) if isinstance(call, ast.Call) and hasattr(call.func, "value") else None
    )
    return kept.how == "call" and held is not None and cleared_in(file.tree, held)


def kept_outputs(file) -> Iterator[dict]:
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
                or _outlives(scope, loop, kept.container)
            ):
                sure = weights or _differentiated_here(scope, loop, kept.statement, kept.value)
                yield _kept(kept, sure)
                yield from _kept_here(kept, sure)
        yield from _kept_by_steps(file, scope)
        yield from _kept_of_generator(file, scope)
        yield from _kept_for_losses(file, scope)
        yield from _kept_between_methods(file, scope)
        yield from _kept_by_decorator(file, scope)
        yield from _averaged_weights(file, scope)


def _kept_for_losses(file, scope: Scope) -> Iterator[dict]:
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


def _kept_between_methods(file, scope: Scope) -> Iterator[dict]:
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


def _begun_again(file, c: ast.ClassDef) -> bool:
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


def _kept_by_decorator(file, scope: Scope) -> Iterator[dict]:
    """@recorded on a training step, where the wrapper keeps what the step gives back"""
    function = scope.function
    place = file.places.get(function) if function is not None else None
    if place is None or place.function is None:
        return
    local = _locals_of(function)
    for kept in scope.trace.kept:
        names = [o[len(RESULT) :] for o in kept.origins if o.startswith(RESULT)]
        if not names or kept.container in local or _emptied(place.function, kept.container):
            continue
        for f in _decorated_with(file, place.function):
            inner = scope_of(file, f)
            if GRAPH in inner.trace.returned and (inner.trains or called_in_loop(file, f)):
                yield _kept(kept)
                break


def _emptied(tree, container: str) -> bool:
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


def _decorated_with(file, decorator) -> List[ast.AST]:
    return [
        f
        for f in file.functions.values()
        for d in f.decorator_list
        if key(d.func if isinstance(d, ast.Call) else d) == decorator.name
    ]


def _kept_of_generator(file, scope: Scope) -> Iterator[dict]:
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
                yield rules.finding(
                    "graph-kept-in-list",
                    yielded,
                    "`%s` yields a value with its graph, and `%s` keeps all of them (line %d)"
                    % (generator.name, what, s.lineno),
                    proven=True,
                )


def _gathered(scope: Scope, call: ast.Call):
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


def _retaining_loop(place, scope: Scope):
    """The outermost loop around a statement with a backward pass that retains its graph."""
    for loop in place.loops if place else ():
        for call in (c for s in in_order(loop.body) for c in calls(s)):
            if method(call) == "backward" and any(
                k.arg == "retain_graph" and getattr(k.value, "value", None) is True
                for k in call.keywords
            ):
                return loop
    return None


def _class_clears(file, holder: str) -> bool:
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


def _begun_in(loop, name: str) -> bool:
    return any(key(t) == name for s in in_order(loop.body) for t in targets(s))


def _fed(scope: Scope, container: str, holder: str) -> bool:
    return container in scope.feeds or holder in scope.feeds


def _averaged_weights(file, scope: Scope) -> Iterator[dict]:
    """class EMA: def update(self, model): an average of weights that grows a graph at each call"""
    for kept in scope.trace.kept:
        if kept.how != "chain" or not {GRAPH, WEIGHT} <= kept.origins:
            continue
        place = file.places[kept.statement]
        if training_loop(place, scope) is None and place.loops:
            if not higher_order(place.loops[-1]):
                yield _kept(kept, proven=True)


def _kept(kept: Kept, proven: bool = False) -> dict:
    """`proven`: by the form alone, whether the abstract run agrees or not."""
    answer = _told(kept)
    through = kept.inner.lineno if kept.inner is not None else None
    answer.update(proven=proven, through=through)
    return answer


def _told(kept: Kept) -> dict:
    what = source(kept.value)
    if kept.how == "sum":
        return rules.finding(
            "loss-graph-accumulated",
            kept.statement,
            "`%s` is summed into `%s` with its graph: the graph of every call is kept until `%s` is gone"
            % (what, kept.container, kept.container),
            detached(kept.value),
        )
    if kept.how == "call":
        message = "`%s` goes into `%s` with its graph (it %s): the graph of every iteration is kept"
        return rules.finding(
            "graph-kept-in-list", kept.statement, message % (what, kept.container, kept.through)
        )
    if kept.how == "meter":
        return rules.finding(
            "meter-may-keep-graph",
            kept.statement,
            "`%s` goes into `%s` with its graph: most meters add up what they are given as it is"
            % (what, kept.container),
            detached(kept.value),
        )
    if kept.how == "chain":
        return rules.finding(
            "graph-kept-in-list",
            kept.statement,
            "`%s` is made from its own last value and keeps the graph: each iteration's graph holds all earlier ones"
            % kept.container,
        )
    return rules.finding(
        "graph-kept-in-list",
        kept.statement,
        "`%s` is kept in `%s` with its graph: the graph of every iteration stays in memory"
        % (what, kept.container),
        detached(kept.value),
    )


def _kept_here(kept: Kept, proven: bool = False) -> Iterator[dict]:
    """The other end of a finding at a call: the line that keeps what it is given."""
    if kept.how == "call" and kept.inner is not None:
        yield rules.finding(
            "graph-kept-here",
            kept.inner,
            "this keeps what line %d hands over with its graph" % kept.statement.lineno,
            proven=proven,
            through=kept.statement.lineno,
        )


def _kept_by_steps(file, scope: Scope) -> Iterator[dict]:
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
            and not _feeds_any_loss(file, kept.container)
        ):
            yield _kept(kept)


def _loads(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Load)


def _is_parameter(scope: Scope, name: str) -> bool:
    return any(a.arg == name for a in walk(scope.function.args) if isinstance(a, ast.arg))


def _feeds_any_loss(file, container: str) -> bool:
    last = container.split(".")[-1]
    return any(
        f.split(".")[-1] == last and ("." in f) == ("." in container)
        for scope in scopes(file)
        for f in scope.feeds
    )


def cleared_in(tree, container: str) -> bool:
    """Is it emptied or begun anew somewhere, outside __init__? By its last name, because another
    function may know it by another variable.
    """
    last = container.split(".")[-1]

    def is_it(node) -> bool:
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
    asked = call
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


def kept_by_hook(file) -> Iterator[dict]:
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


def _hook(file, scope: Scope, node):
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


def _is_handle(value) -> bool:
    """output.register_hook(see): what takes the hook off again"""
    return isinstance(value, ast.Call) and method(value).startswith("register_")


def _hook_keeps(file, hook, registration: ast.Call, kind: str) -> Iterator[dict]:
    shown = [a.arg for a in hook.args.args if a.arg != "self"]
    shown = shown[1:] if kind != "register_hook" else shown  # the first is the module
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
            and k.container not in _locals_of(hook)
            and not _is_handle(k.value)
        ]
    for statement, value, container in kept:
        if (
            container
            and cleared_in(file.tree, container)
            and not _handed_out(file, hook, container)
        ):
            continue
        yield rules.finding(
            "hook-keeps-tensors",
            statement,
            "the hook puts `%s` into `%s` at every pass, with its graph, and nothing empties it"
            % (source(value), container or "a list"),
            detached(value),
            hint=not _passes_often(file) or taken_off(file, statement),
        )


def taken_off(file, s) -> bool:
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


def _passes_often(file) -> bool:
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


def _handed_out(file, hook, container: str) -> bool:
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


def _holds_shown(value, shown: List[str]) -> bool:
    """o, o[0], (o, 1): not o.detach() and not o.mean().item()"""
    if isinstance(value, (ast.Subscript, ast.Starred)):
        return _holds_shown(value.value, shown)
    if isinstance(value, (ast.Tuple, ast.List)):
        return any(_holds_shown(e, shown) for e in value.elts)
    return key(value) in shown


def _locals_of(function) -> Set[str]:
    return {key(t) for s in in_order(function.body) for t in targets(s) if key(t)}


# caches


def kept_by_cache(file) -> Iterator[dict]:
    """@lru_cache on a function that returns what a model made; a dict that remembers it"""
    if "torch" not in file.modules:
        return
    for scope in scopes(file):
        function = scope.function
        if function is None:
            continue
        cache = next(filter(None, (_cache(file, d) for d in function.decorator_list)), None)
        if cache is not None:
            if any(
                a.arg not in ("self", "cls") for a in walk(function.args) if isinstance(a, ast.arg)
            ):
                yield from _cached(scope, *cache)
            continue  # without arguments there is one result
        for kept in scope.trace.kept:
            if (
                kept.how == "store"
                and GRAPH in kept.origins
                and not scope.trains
                and _remembers(scope, kept)
                and kept.container not in bounded_containers(file)
                and not cleared_in(file.tree, kept.container)
            ):
                yield rules.finding(
                    "cache-keeps-tensors",
                    kept.statement,
                    "`%s` is remembered in `%s` with its graph: every new entry keeps the "
                    "activations it was computed from" % (source(kept.value), kept.container),
                    detached(kept.value),
                )


def _cache(file, decorator):
    """(decorator, bounded) of functools.lru_cache and functools.cache; else None."""
    call = decorator if isinstance(decorator, ast.Call) else None
    name = (file.dotted(call.func if call else decorator) or "").split(".")[-1]
    if name == "cache":
        return (decorator, False)
    if name != "lru_cache":
        return None
    size = next((k.value for k in call.keywords if k.arg == "maxsize"), None) if call else None
    if size is None and call is not None and call.args:
        size = call.args[0]
    unbounded = isinstance(size, ast.Constant) and size.value is None
    return (decorator, not unbounded)


_MAKES = re.compile(r"model|net|module|pipeline|processor|load|build|create|make|init", re.I)


def _cached(scope: Scope, decorator, bounded: bool) -> Iterator[dict]:
    if _MAKES.search(scope.function.name):
        return  # a cache of models: there are few, and they are meant to stay
    held = scope.trace.returned
    if GRAPH in held:
        yield rules.finding(
            "cache-keeps-tensors",
            decorator,
            "the cache of `%s` keeps every result with its graph and activations"
            % scope.function.name,
        )
    elif CARD in held and not bounded:
        yield rules.finding(
            "cache-keeps-tensors",
            decorator,
            "the cache of `%s` has no bound and keeps every result on the card"
            % scope.function.name,
        )


def _remembers(scope: Scope, kept: Kept) -> bool:
    """if key not in cache: cache[key] = ..., in a container that outlives the function"""
    first = re.split(r"[.\[]", kept.container)[0]
    if first not in ("self", "cls") and kept.container not in _module_containers(scope.file):
        return False
    return any(
        isinstance(i, ast.If)
        and any(
            isinstance(c, ast.Compare)
            and any(isinstance(o, (ast.In, ast.NotIn)) for o in c.ops)
            and any(key(n) == kept.container for n in c.comparators)
            for c in walk_here(i.test)
        )
        for i in scope.file.places[kept.statement].ifs
    )


# modules


def kept_by_module(file) -> Iterator[dict]:
    """self.outputs.append(x) in forward, training_step or validation_step"""
    modules = module_classes(file)
    for name in modules:
        c = file.classes[name]
        for function in [f for f in c.body if isinstance(f, FUNCTIONS)]:
            if function.name in ("forward", "training_step"):
                yield from _module_keeps(file, c, function, GRAPH)
            elif function.name in ("validation_step", "test_step"):
                yield from _module_keeps(file, c, function, CARD)


def _module_keeps(file, c, function, origin: str) -> Iterator[dict]:
    scope = scope_of(file, function)
    for kept in scope.trace.kept:
        shared = kept.how in ("append", "store") and kept.container in _module_containers(file)
        if not kept.container.startswith("self.") and not shared:
            continue
        # What comes into forward has a graph too. Only where the module builds upon its own last
        # value is that sure to grow: running = 0.9 * running + 0.1 * x.mean()
        grows = kept.how == "chain" and any(
            o.startswith(PARAMETER) and not SMALL.search(o[len(PARAMETER) :]) for o in kept.origins
        )
        if origin not in kept.origins and not (grows and function.name == "forward"):
            continue
        if kept.how == "call" and "." not in kept.container or kept.container in scope.feeds:
            continue
        if kept.container in bounded_containers(file) or "metric" in kept.container.lower():
            continue
        # self.outputs["loss"] goes with self.outputs = {"loss": []}
        whole = kept.container.split("[")[0]
        cleared = cleared_in(file.tree, kept.container) or cleared_in(file.tree, whole)
        if cleared and not (origin == GRAPH and function.name == "training_step"):
            continue
        if _feeds_any_loss(file, kept.container) or _used_elsewhere_for_loss(c, kept.container):
            continue
        if origin == GRAPH:
            message = "`%s` is kept in `%s` by every call of %s, with its graph" % (
                source(kept.value),
                kept.container,
                function.name,
            )
        else:
            message = "`%s` is kept in `%s` by every call of %s and nothing empties it" % (
                source(kept.value),
                kept.container,
                function.name,
            )
        edits = detached(kept.value) if origin == GRAPH and kept.how != "call" else None
        yield rules.finding(
            "module-keeps-tensors", kept.statement, message, edits, proven=origin == CARD or grows
        )


def _module_containers(file) -> Set[str]:
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


def _used_elsewhere_for_loss(c: ast.ClassDef, container: str) -> bool:
    """A method named after a loss reads it: get_losses() sums what forward() gathered."""
    for f in c.body:
        if isinstance(f, FUNCTIONS) and re.search(r"loss|penalty|regulari", f.name):
            if any(key(n) == container for n in walk_here(f) if isinstance(n, ast.Attribute)):
                return True
    return False


def state_of_module(file) -> Iterator[dict]:
    """y, self.hidden = self.rnn(x, self.hidden) in forward, never cut"""
    for name in module_classes(file):
        for function in [f for f in file.classes[name].body if isinstance(f, FUNCTIONS)]:
            if function.name not in ("forward", "training_step"):
                continue
            scope = scope_of(file, function)
            for s in scope.statements:
                if not isinstance(s, ast.Assign) or not isinstance(s.value, ast.Call):
                    continue
                if file.places[s].no_grad or not calls_module(s.value, scope):
                    continue
                given = {key(a) for a in s.value.args} | {key(k.value) for k in s.value.keywords}
                for k in [key(t) for t in targets(s)]:
                    if not k or not k.startswith("self.") or k not in given:
                        continue
                    if cleared_in(file.tree, k) or _cut_anywhere(file, k):
                        continue
                    if _begun_outside(file, k, s):
                        continue
                    yield rules.finding(
                        "hidden-state-not-detached",
                        s,
                        "`%s` goes from one call of %s into the next with its graph: backward "
                        "reaches back to the first batch" % (k, function.name),
                        hint=not _trained_here(file),
                    )


def _trained_here(file) -> bool:
    """Is the module used in this file? The script that trains it may begin its state anew."""
    return any(
        isinstance(n, ast.Call)
        and method(n) in ("backward", "manual_backward", "fit")
        or isinstance(n, FUNCTIONS)
        and n.name == "training_step"
        for n in file.nodes
    )


def _begun_outside(file, container: str, own_statement) -> bool:
    """model.hidden = model.init_hidden(): a sequence begins where somebody sets it."""
    last = container.split(".")[-1]
    return any(
        isinstance(s, ast.Assign)
        and s is not own_statement
        and getattr(file.places[s].function, "name", "") != "__init__"
        and any((key(t) or "").split(".")[-1] == last and "." in (key(t) or "") for t in targets(s))
        for s in file.statements
    )


def cut_or_begun(file, container: str, own_statement) -> bool:
    """Is the attribute detached, emptied or set anew anywhere else in the file?"""
    return (
        cleared_in(file.tree, container)
        or _cut_anywhere(file, container)
        or _begun_outside(file, container, own_statement)
    )


def _cut_anywhere(file, container: str) -> bool:
    last = container.split(".")[-1]
    return any(
        isinstance(n, ast.Call)
        and method(n) in ("detach_", "detach", "repackage_hidden", "reset_state", "reset_hidden")
        and any(v.split(".")[-1] == last for v in variables(n))
        for n in file.nodes
    )


_WARMS = re.compile(r"warm|burn_?in|prime|prefill|catch_?up", re.I)
_PIECES = re.compile(r"chunk|piece|segment|window|past|history|context", re.I)


def state_brought_up(file) -> Iterator[dict]:
    """for piece in past.split(n): _, state = net(piece, state), with grad, outputs thrown away"""
    if "torch" not in file.modules:
        return
    for scope in scopes(file):
        for s in scope.statements:
            place = file.places[s]
            if not isinstance(s, ast.Assign) or not place.loops or place.no_grad:
                continue
            loop, goals = place.loops[-1], [key(t) for t in targets(s)]
            if len(goals) < 2 or goals[0] != "_" or not isinstance(loop, ast.For):
                continue
            if scope.has_backward(loop) or not calls_module(s.value, scope) or _off(scope):
                continue
            given = {key(a) for a in s.value.args} | {key(k.value) for k in s.value.keywords}
            state = next((g for g in goals[1:] if g and g in given), None)
            named = [key(n) or "" for n in walk_here(loop.iter)] + [
                method(c) for c in walk_here(loop.iter) if isinstance(c, ast.Call)
            ]
            past = any(_PIECES.search(n) or n in ("split", "chunk") for n in named)
            warms = scope.function is not None and bool(_WARMS.search(scope.function.name))
            if state is None or not (past or warms) or _cut(loop, state, s):
                continue
            if _cut_later(scope, loop, state):
                continue
            yield rules.finding(
                "hidden-state-not-detached",
                s,
                "the outputs are thrown away and `%s` is carried on with its graph: the "
                "activations of all pieces are held as long as it lives" % state,
            )


def _off(scope: Scope) -> bool:
    from .calls import grad_is_off

    return grad_is_off(scope)


def _cut_later(scope: Scope, loop, state: str) -> bool:
    """return state.detach() behind the loop still holds all pieces until then, but not after"""
    return any(
        method(c) in ("detach", "detach_") and state in variables(c)
        for s in scope.statements
        if s.lineno > loop.lineno
        for c in calls(s)
    )


def _detaches(loop: ast.For) -> bool:
    """for s in state: s.detach_()"""
    return any(
        method(c) == "detach_" and variables(c.func) & variables(loop.target)
        for s in in_order(loop.body)
        for c in calls(s)
    )


def _cut(loop, name, origin):
    """Is the state detached or made anew anywhere in the loop?"""
    for s in in_order(loop.body):
        if s is origin:
            continue
        if any(key(t) == name for t in targets(s)):
            return True
        if isinstance(s, ast.For) and name in variables(s.iter) and _detaches(s):
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


# callbacks of trainers


def kept_by_callback(file) -> Iterator[dict]:
    """class Keep(Callback): on_train_batch_end puts the step's outputs into a list"""
    for c in file.classes.values():
        if not any((file.dotted(b) or "").split(".")[-1].endswith("Callback") for b in c.bases):
            continue
        for function in [f for f in c.body if isinstance(f, FUNCTIONS)]:
            if not re.match(
                r"on_(train_|validation_|test_|predict_)?(batch|step)_end$", function.name
            ):
                continue
            scope = scope_of(file, function)
            for s in scope.statements if "train" in function.name else ():
                made = _kept_of_module(file, scope, s)
                if made is not None:
                    yield rules.finding(
                        "module-keeps-tensors",
                        s,
                        "`%s` is made by the module with its graph, and `%s` keeps it from batch to "
                        "batch" % made,
                        proven=True,
                    )
            for kept in scope.trace.kept:
                shown = {o[len(PARAMETER) :] for o in kept.origins if o.startswith(PARAMETER)}
                if (
                    kept.how == "append"
                    and kept.container.startswith("self.")
                    and shown & {"outputs", "batch", "loss"}
                    and kept.container not in bounded_containers(file)
                    and not cleared_in(file.tree, kept.container)
                    # self.losses["train"] goes with self.losses = defaultdict(list)
                    and not cleared_in(file.tree, kept.container.split("[")[0])
                    and "keras" not in file.modules
                ):
                    yield rules.finding(
                        "module-keeps-tensors",
                        kept.statement,
                        "`%s` of every batch is kept in `%s` and nothing empties it"
                        % (source(kept.value), kept.container),
                        proven=True,
                    )


_CUTS = ("detach", "item", "cpu", "numpy", "tolist", "float", "argmax")


def _kept_of_module(file, scope: Scope, s) -> Optional[Tuple[str, str]]:
    """z = pl_module.encoder(x); self.seen.append(z): (z, self.seen), where gradients are on"""
    call = s.value if isinstance(s, ast.Expr) else None
    if not isinstance(call, ast.Call) or method(call) != "append" or len(call.args) != 1:
        return None
    container = key(call.func.value) if isinstance(call.func, ast.Attribute) else None
    name = key(call.args[0])
    if not container or not container.startswith("self.") or not name:
        return None
    if container in bounded_containers(file) or file.places[s].no_grad:
        return None
    made = [
        x for x in scope.statements if isinstance(x, ast.Assign) and name in map(key, x.targets)
    ]
    by_module = made and all(
        isinstance(x.value, ast.Call)
        and (key(x.value.func) or "").split(".")[0] == "pl_module"
        and method(x.value) not in _CUTS
        and not file.places[x].no_grad
        for x in made
    )
    return (name, container) if by_module else None
