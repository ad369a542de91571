"""Tf.function traced again and again.

severity: warning

Every trace builds a graph that is kept for the life of the program.

Instead: Define it once outside the loop. Pass tensors (`tf.constant(i)`), or give an
input_signature.
"""

import ast
import re
from typing import Any, Iterator, Optional, Set

from ..findings import Finding, finding
from ..flow import in_order, is_model_name, resets
from ..keeping import source
from ..names import (
    FUNCTIONS,
    LOOPS,
    File,
    Function,
    Place,
    constant,
    key,
    keyword,
    method,
    own,
    targets,
    walk,
)
from ..reasons import functions_around


def _inside_traced(file: Any, line: int) -> bool:
    """@tf.function def outer(x): for i in range(9): x = inner(x, i): the outer one is traced once,
    and with it what it calls
    """
    return any(_is_traced(file, f, 3) for f in functions_around(file, line))


# Methods that Keras compiles into a graph itself.
_OF_KERAS = frozenset("call train_step test_step predict_step".split())


_TRACING = frozenset("function map flat_map interleave reduce filter map_fn while_loop run".split())


def _is_traced(file: Any, function: Any, depth: int) -> bool:
    """By its decorator, by Keras, by whom it is given to, or by everybody who calls it"""
    if any(_traces(file, d) for d in function.decorator_list):
        return True
    klass = file.places[function].klass if function in file.places else None
    if klass is not None and function.name in _OF_KERAS and klass.bases:
        return True
    given, callers = False, []
    for n in file.nodes:
        if not isinstance(n, ast.Call):
            continue
        if method(n) == function.name:
            callers.append(n)
        elif method(n) in _TRACING:
            given = given or any((key(a) or "").split(".")[-1] == function.name for a in n.args)
    if given or not callers or not depth:
        return given
    around = [functions_around(file, c.lineno) for c in callers]
    return all(
        any(_is_traced(file, f, depth - 1) for f in fs if f is not function) for fs in around
    )


def _traces(file: Any, decorator: Any) -> bool:
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    return (file.dotted(target) or "").endswith(("tensorflow.function", "def_function.function"))


def _is_function(file: File, node: ast.expr) -> bool:
    target = node.func if isinstance(node, ast.Call) else node
    return (file.dotted(target) or "") in (
        "tensorflow.function",
        "tensorflow.python.eager.def_function.function",
    )


def retracing(file: File) -> Iterator[Finding]:
    """A tf.function made in a loop, or called with a Python number that changes"""
    if "tensorflow" not in file.modules:
        return
    for s in file.statements:
        place = file.places[s]
        if (
            isinstance(s, FUNCTIONS)
            and place.loops
            and any(_is_function(file, d) for d in s.decorator_list)
            and not _made_for(s, place.loops[-1])
        ):
            yield finding(
                "tf-function-retraced",
                s,
                "a new tf.function is made in every round of the loop: each is traced again and its graph is kept",
            )
        elif place.loops and isinstance(s, (ast.Expr, ast.Assign)):
            for call in [n for n in own(s) if isinstance(n, ast.Call)]:
                if _makes_function(file, call) and _used_in(place.loops[-1], s):
                    yield finding(
                        "tf-function-retraced",
                        s,
                        "`%s` makes a new tf.function in every round of the loop: each is traced "
                        "again and its graph is kept" % method(call),
                    )
                elif _is_function(file, call):
                    yield finding(
                        "tf-function-retraced",
                        s,
                        "tf.function is called in the loop: each round traces a new graph and keeps it",
                    )
                else:
                    yield from _number_argument(file, s, call, place)


def _makes_function(file: File, call: ast.Call) -> bool:
    """Does a function of this file that is called here return a tf.function of its own?"""
    made = file.functions.get(method(call))
    if made is None:
        return False
    inner = {
        f.name
        for f in in_order(made.body)
        if isinstance(f, FUNCTIONS) and any(_is_function(file, d) for d in f.decorator_list)
    }
    return any(
        isinstance(s, ast.Return) and key(s.value) in inner
        for s in in_order(made.body)
        if isinstance(s, ast.Return) and s.value is not None
    )


def _used_in(loop: Any, s: ast.stmt) -> bool:
    """step = make_step(beta), then step(x) in the same loop, not once for each of some models"""
    if not isinstance(s, ast.Assign) or not key(s.targets[0]):
        return False
    name = key(s.targets[0])
    direct = [x for x in loop.body if not isinstance(x, LOOPS)]
    return s in loop.body and any(
        isinstance(n, ast.Call) and key(n.func) == name for x in direct for n in walk(x)
    )


def _made_for(function: Function, loop: Any) -> bool:
    """for model in models: a function that works on this round's model must be a new one"""
    here = {t.id for t in targets(loop) if isinstance(t, ast.Name)}
    here |= {
        t.id
        for s in loop.body
        for t in targets(s)
        if isinstance(t, ast.Name) and is_model_name(t.id)
    }
    return any(isinstance(n, ast.Name) and n.id in here for n in walk(function))


def _number_argument(file: File, s: ast.stmt, call: ast.Call, place: Place) -> Iterator[Finding]:
    function = _traced(file, call)
    if function is None:
        return
    for loop in place.loops:
        counter = None
        if (
            isinstance(loop, ast.For)
            and isinstance(loop.iter, ast.Call)
            and isinstance(loop.iter.func, ast.Name)
        ):
            if loop.iter.func.id == "range":
                counter = key(loop.target)
            elif loop.iter.func.id == "enumerate" and isinstance(loop.target, ast.Tuple):
                counter = key(loop.target.elts[0])
        if counter is None or not any(key(a) == counter for a in call.args):
            counter = _changing_number(file, loop, call)
        if counter is None:
            counter = _reckoned(loop, call)
        if counter is None:
            counter = _python_number(file, loop, call)
        if counter is None:
            counter = _growing_list(loop, call)
            if counter:
                yield finding(
                    "tf-function-retraced",
                    s,
                    "`%s` gets the list `%s`, which is longer in every round: every length traces a "
                    "new graph, and all are kept" % (function.name, counter),
                )
                return
        if counter and any(key(a) == counter or source(a) == counter for a in call.args):
            yield finding(
                "tf-function-retraced",
                s,
                "`%s` gets the Python number `%s`: every new value traces a new graph, and all are kept"
                % (function.name, counter),
            )


def _traced(file: File, call: ast.Call) -> Optional[Function]:
    """The tf.function of this file that is called here, if a new number traces it again."""
    if isinstance(call.func, ast.Name):
        function = file.functions.get(call.func.id)
    else:  # agent.update(...): the only thing of that name here
        named = [f for (_, name), f in file.methods.items() if name == method(call)]
        function = named[0] if len(named) == 1 else None
        if function is not None and len(call.args) != len(function.args.args) - 1:
            function = None
    if function is None or not any(_is_function(file, d) for d in function.decorator_list):
        return None
    if any(
        isinstance(d, ast.Call)
        and (keyword(d, "input_signature") or keyword(d, "reduce_retracing"))
        for d in function.decorator_list
    ):
        return None
    return function


def decayed_attributes(file: File) -> Iterator[Any]:
    """self.update(batch, self.epsilon), where self.epsilon is a number that is decayed on the way"""
    if "tensorflow" not in file.modules:
        return
    for klass in file.classes.values():
        numbers, changed = set(), set()
        for n in walk(klass):
            for t in targets(n) if isinstance(n, (ast.Assign, ast.AugAssign)) else ():
                name = key(t) or ""
                if not name.startswith("self."):
                    continue
                if isinstance(n, ast.AugAssign):
                    changed.add(name)
                elif isinstance(constant(n.value), (int, float)):
                    numbers.add(name)
                elif any(key(x) == name for x in walk(n.value)):
                    changed.add(name)
        for s in file.statements:
            if file.places[s].klass is not klass or isinstance(s, FUNCTIONS):
                continue
            for call in [n for n in own(s) if isinstance(n, ast.Call)]:
                given = {key(a) for a in call.args} & numbers & changed
                if given and _traced(file, call) is not None:
                    yield finding(
                        "tf-function-retraced",
                        s,
                        "`%s` gets the Python number `%s`: every new value traces a new graph, "
                        "and all are kept" % (method(call), sorted(given)[0]),
                    )


def _growing_list(loop: Any, call: ast.Call) -> Any:
    """seen in seen.append(v); f(seen), where the loop does not begin it anew"""
    names = {key(a) for a in call.args} - {None}
    for s in in_order(loop.body):
        if (
            isinstance(s, ast.Expr)
            and isinstance(s.value, ast.Call)
            and method(s.value) == "append"
            and isinstance(s.value.func, ast.Attribute)
            and key(s.value.func.value) in names
            and not resets(loop, key(s.value.func.value), None)
        ):
            return key(s.value.func.value)
    return None


def _reckoned(loop: Any, call: ast.Call) -> Any:
    """1.0 / (1 + i): an argument made of numbers and the loop's counter alone"""
    if not (isinstance(loop, ast.For) and isinstance(loop.iter, ast.Call)):
        return None
    if method(loop.iter) not in ("range", "enumerate"):
        return None
    first = loop.target.elts[0] if isinstance(loop.target, ast.Tuple) else loop.target
    for argument in call.args:
        names = {n.id for n in walk(argument) if isinstance(n, ast.Name)}
        other = any(isinstance(n, (ast.Call, ast.Subscript, ast.Attribute)) for n in walk(argument))
        if isinstance(argument, ast.BinOp) and not other and names == {key(first)}:
            return source(argument)
    return None


def _changing_number(file: File, loop: Any, call: ast.Call) -> Any:
    """lr in `lr = 0.1` before the loop and `lr = lr * 0.99` or `lr *= 0.99` in it"""
    names = {key(a) for a in call.args} - {None}
    start = {
        key(t)
        for s in file.statements
        if isinstance(s, ast.Assign)
        and isinstance(constant(s.value), (int, float))
        and not isinstance(constant(s.value), bool)  # two values, two traces
        for t in targets(s)
    }
    counters = set()
    if isinstance(loop, ast.For) and isinstance(loop.iter, ast.Call):
        first = loop.target.elts[0] if isinstance(loop.target, ast.Tuple) else loop.target
        if method(loop.iter) in ("range", "enumerate") and isinstance(loop.iter.func, ast.Name):
            counters.add(key(first))
    for s in in_order(loop.body):
        if isinstance(s, ast.Assign) and isinstance(s.value, ast.BinOp):
            # lr = 0.1 * 0.99 ** step: made of numbers and the loop's counter alone
            used = {n.id for n in walk(s.value) if isinstance(n, ast.Name)}
            plain = not any(
                isinstance(n, (ast.Call, ast.Subscript, ast.Attribute)) for n in walk(s.value)
            )
            if plain and used and used <= counters | start and used & counters:
                for t in targets(s):
                    if key(t) in names:
                        return key(t)
        if isinstance(s, (ast.Assign, ast.AugAssign)) and isinstance(
            s.value, (ast.BinOp, ast.Constant)
        ):
            for t in targets(s):
                if key(t) in names & start and not any(
                    isinstance(n, ast.Call) for n in walk(s.value)
                ):
                    return key(t)
    return None


_NUMBERS = frozenset("float int min max round abs pow".split())


def _python_number(file: File, loop: Any, call: ast.Call) -> Any:
    """temperature in temperature = cosine(step, total); f(x, temperature), where cosine reckons
    with numbers alone and step changes from round to round
    """
    changing = {key(loop.target)} if isinstance(loop, ast.For) and _counts_up(loop) else set()
    if isinstance(loop, ast.For) and _counts_up(loop) and isinstance(loop.target, ast.Tuple):
        changing.add(key(loop.target.elts[0]))
    start = {
        key(t)
        for s in file.statements
        if isinstance(s, ast.Assign) and isinstance(constant(s.value), (int, float))
        for t in targets(s)
    }
    for s in in_order(loop.body):  # step += 1
        if isinstance(s, ast.AugAssign) and isinstance(constant(s.value), (int, float)):
            changing |= {key(s.target)} & start
        elif isinstance(s, ast.Assign):  # epsilon = max(0.05, epsilon * 0.99)
            own_name = {key(t) for t in targets(s)} & start
            if own_name and _reckons(file, s.value, own_name):
                changing |= own_name
    changing.discard(None)
    for s in in_order(loop.body):
        if isinstance(s, ast.Assign) and _reckons(file, s.value, changing):
            if any(key(t) in {key(a) for a in call.args} for t in targets(s)):
                return next(key(t) for t in targets(s))
    for a in call.args:
        if isinstance(a, (ast.Call, ast.BinOp)) and _reckons(file, a, changing):
            return source(a)
    return None


def _counts_up(loop: ast.For) -> bool:
    return isinstance(loop.iter, ast.Call) and method(loop.iter) in ("range", "enumerate")


def _reckons(file: File, node: ast.expr, changing: Any) -> bool:
    """Arithmetic on Python numbers of which one changes, by math and by functions of this file
    that do nothing else.
    """
    return _is_number(file, node, changing, 2) and any(
        isinstance(n, ast.Name) and n.id in changing for n in walk(node)
    )


def _is_number(file: File, node: ast.expr, names: Set[str], depth: int) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (int, float))
    if isinstance(node, ast.Name):
        return node.id in names or _plain_number(file, node.id)
    if isinstance(node, ast.Attribute):
        return (file.dotted(node) or "").startswith("math.") or _setting(file, node)
    if isinstance(node, ast.BinOp):
        return all(_is_number(file, n, names, depth) for n in (node.left, node.right))
    if isinstance(node, ast.UnaryOp):
        return _is_number(file, node.operand, names, depth)
    if isinstance(node, ast.IfExp):
        return all(_is_number(file, n, names, depth) for n in (node.body, node.orelse))
    if not isinstance(node, ast.Call) or node.keywords:
        return False
    if not all(_is_number(file, a, names, depth) for a in node.args):
        return False
    name = file.callee(node) or ""
    if name.startswith("math.") or name in _NUMBERS:
        return True
    function = file.plain_functions.get(name)
    if (
        function is None
        or depth == 0
        or any(_is_function(file, d) for d in function.decorator_list)
    ):
        return False
    known = {a.arg for a in function.args.args}
    for s in in_order(function.body):
        if isinstance(s, ast.Assign) and _is_number(file, s.value, known, depth - 1):
            known |= {key(t) for t in targets(s)}
    returns = [s for s in in_order(function.body) if isinstance(s, ast.Return)]
    return bool(returns) and all(
        s.value is not None and _is_number(file, s.value, known, depth - 1) for s in returns
    )


_SETTINGS = frozenset("args opt opts config cfg conf hparams hp params FLAGS flags".split())


_COUNTED = re.compile(
    r"(^|_)(total|num|n|max|min|steps?|epochs?|iters?|rate|decay|warm_?up|ramp|start|end|final|"
    r"anneal(ing)?|batches|rounds|episodes|frames)($|_)",
    re.I,
)


def _setting(file: File, node: Any) -> bool:
    """args.warmup, or self.total_steps that is only ever given as a number or by the caller: a
    Python number by its name.
    """
    owner = (key(node.value) or "").split(".")[-1]
    if not _COUNTED.search(node.attr) or owner not in _SETTINGS | {"self"}:
        return False
    if owner != "self":
        return True
    values = [
        s.value
        for s in file.statements
        if isinstance(s, ast.Assign) and any(key(t) == key(node) for t in targets(s))
    ]
    return bool(values) and all(isinstance(v, (ast.Name, ast.Constant)) for v in values)


def _plain_number(file: File, name: str) -> bool:
    """A variable that is only ever set to numbers, len() and arithmetic on those."""
    values = [
        s.value
        for s in file.statements
        if isinstance(s, ast.Assign) and any(key(t) == name for t in targets(s))
    ]
    return bool(values) and all(
        isinstance(n, (ast.Constant, ast.BinOp, ast.operator, ast.Name, ast.expr_context, ast.Load))
        or isinstance(n, ast.Call)
        and method(n) in ("len", "int", "float")
        for v in values
        for n in (walk(v) if not isinstance(v, ast.Call) else [v])
    )


CHECKS = (
    retracing,
    decayed_attributes,
)
HINTS = (_inside_traced,)
