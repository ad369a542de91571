"""TensorFlow and Keras."""

import ast
import re

from . import evidence, rules
from .accumulation import _counts, _direct
from .flow import in_order, is_model_name, resets, scopes
from .keeping import source
from .names import (
    FUNCTIONS,
    LOOPS,
    calls,
    constant,
    key,
    keyword,
    method,
    own,
    targets,
    walk,
    walk_here,
)

LOADING = (
    "numpy.load",
    "numpy.loadtxt",
    "numpy.genfromtxt",
    "numpy.fromfile",
    "pandas.read_csv",
    "pandas.read_parquet",
    "pandas.read_pickle",
    "pandas.read_hdf",
    "pandas.read_feather",
    "pickle.load",
    "joblib.load",
    "h5py.File",
    "scipy.io.loadmat",
)


def _uses(file):
    return "tensorflow" in file.modules or "keras" in file.modules


def _is_function(file, node):
    target = node.func if isinstance(node, ast.Call) else node
    return (file.dotted(target) or "") in (
        "tensorflow.function",
        "tensorflow.python.eager.def_function.function",
    )


def retracing(file):
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
            yield rules.finding(
                "tf-function-retraced",
                s,
                "a new tf.function is made in every round of the loop: each is traced again and its graph is kept",
            )
        elif place.loops and isinstance(s, (ast.Expr, ast.Assign)):
            for call in [n for n in own(s) if isinstance(n, ast.Call)]:
                if _makes_function(file, call) and _used_in(place.loops[-1], s):
                    yield rules.finding(
                        "tf-function-retraced",
                        s,
                        "`%s` makes a new tf.function in every round of the loop: each is traced "
                        "again and its graph is kept" % method(call),
                    )
                elif _is_function(file, call):
                    yield rules.finding(
                        "tf-function-retraced",
                        s,
                        "tf.function is called in the loop: each round traces a new graph and keeps it",
                    )
                else:
                    yield from _number_argument(file, s, call, place)


def _makes_function(file, call) -> bool:
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


def _used_in(loop, s) -> bool:
    """step = make_step(beta), then step(x) in the same loop, not once for each of some models"""
    if not isinstance(s, ast.Assign) or not key(s.targets[0]):
        return False
    name = key(s.targets[0])
    direct = [x for x in loop.body if not isinstance(x, LOOPS)]
    return s in loop.body and any(
        isinstance(n, ast.Call) and key(n.func) == name for x in direct for n in walk(x)
    )


def _made_for(function, loop) -> bool:
    """for model in models: a function that works on this round's model must be a new one"""
    here = {t.id for t in targets(loop) if isinstance(t, ast.Name)}
    here |= {
        t.id
        for s in loop.body
        for t in targets(s)
        if isinstance(t, ast.Name) and is_model_name(t.id)
    }
    return any(isinstance(n, ast.Name) and n.id in here for n in walk(function))


def _number_argument(file, s, call, place):
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
                yield rules.finding(
                    "tf-function-retraced",
                    s,
                    "`%s` gets the list `%s`, which is longer in every round: every length traces a "
                    "new graph, and all are kept" % (function.name, counter),
                )
                return
        if counter and any(key(a) == counter or source(a) == counter for a in call.args):
            yield rules.finding(
                "tf-function-retraced",
                s,
                "`%s` gets the Python number `%s`: every new value traces a new graph, and all are kept"
                % (function.name, counter),
            )


def _traced(file, call):
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


def decayed_attributes(file):
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
                    yield rules.finding(
                        "tf-function-retraced",
                        s,
                        "`%s` gets the Python number `%s`: every new value traces a new graph, "
                        "and all are kept" % (method(call), sorted(given)[0]),
                    )


def _growing_list(loop, call):
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


def _reckoned(loop, call):
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


def _changing_number(file, loop, call):
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


def _python_number(file, loop, call):
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


def _counts_up(loop) -> bool:
    return isinstance(loop.iter, ast.Call) and method(loop.iter) in ("range", "enumerate")


def _reckons(file, node, changing) -> bool:
    """Arithmetic on Python numbers of which one changes, by math and by functions of this file
    that do nothing else.
    """
    return _is_number(file, node, changing, 2) and any(
        isinstance(n, ast.Name) and n.id in changing for n in walk(node)
    )


def _is_number(file, node, names, depth) -> bool:
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


def _setting(file, node) -> bool:
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


def _plain_number(file, name) -> bool:
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


def _loaded(file):
    """Variables that hold a whole file's content."""
    found = {}
    for s in file.statements:
        if isinstance(s, ast.Assign) and isinstance(s.value, ast.Call):
            name = file.callee(s.value) or ""
            if name in LOADING and constant(keyword(s.value, "mmap_mode")) is None:
                for t in targets(s):
                    if key(t):
                        found[key(t)] = name
    return found


# A number or a name for each sample: small beside the samples.
_SMALL = re.compile(r"label|target|path|name|file|(^|_)ids?($|_)|(^|_)y($|_)|vocab", re.I)


def whole_arrays(file):
    """tf.constant(data), Dataset.from_tensor_slices(data) of an array read whole"""
    if "tensorflow" not in file.modules:
        return
    loaded = _loaded(file)
    for call in file.nodes:
        if not isinstance(call, ast.Call) or not call.args:
            continue
        name = file.callee(call) or ""
        first = call.args[0]
        parts = first.elts if isinstance(first, (ast.Tuple, ast.List)) else [first]
        part, reader = _samples_of(file, parts, loaded)
        if reader is None:
            continue
        if name.endswith("Dataset.from_tensor_slices") or name.endswith("Dataset.from_tensors"):
            yield rules.finding(
                "tf-dataset-from-array",
                call,
                "`%s` is read whole and copied once more into the dataset: stream it from disk"
                % part,
                hint=reader in _TEXT_TABLES,
            )
        elif name in ("tensorflow.constant", "tensorflow.convert_to_tensor"):
            yield rules.finding(
                "tf-constant-dataset",
                call,
                "`%s` is read whole and copied into a tensor, on the GPU where there is one" % part,
                hint=reader in _TEXT_TABLES or not _SAMPLES.search(part.split(".")[-1]),
            )


# What samples are called; a table of faces or of weights is not one.
_SAMPLES = re.compile(
    r"(^|_)(xs?|data(set)?|images?|imgs?|pictures|videos?|frames|audio|waves?|features?|samples|inputs?|"
    r"train|test|val|corpus|tokens|texts?|volumes?|arr(ay)?|whole)(\d*)(_|$)|^x_?(train|test|val)",
    re.I,
)
# Numbers written as text are seldom as large as memory.
_TEXT_TABLES = ("pandas.read_csv", "numpy.loadtxt", "numpy.genfromtxt")


def _samples_of(file, parts, loaded):
    """The first part that is not small by its name, and what read it: the samples themselves. What
    stands behind them in a tuple (lengths, weights) is small beside them.
    """
    for p in parts:
        inline = (file.callee(p) or "") if isinstance(p, ast.Call) else ""
        name = ast_name(p) if inline else key(p) or ""
        if name and _SMALL.search(name):
            continue
        return name, inline if inline in LOADING else loaded.get(name)
    return "", None


def ast_name(call):
    return key(call.func) or "the array"


def growth(file):
    """GPUs used, growth nowhere set"""
    if "tensorflow" not in file.modules:
        return
    hint = None
    for node in file.nodes:
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value in ("TF_FORCE_GPU_ALLOW_GROWTH", "TF_GPU_ALLOCATOR")
        ):
            return
        if isinstance(node, ast.Attribute) and node.attr in (
            "allow_growth",
            "per_process_gpu_memory_fraction",
        ):
            return
        if isinstance(node, ast.keyword) and node.arg in (
            "allow_growth",
            "per_process_gpu_memory_fraction",
            "memory_limit",
        ):
            return
        if not isinstance(node, ast.Call):
            continue
        name = file.callee(node) or ""
        if name.split(".")[-1] in (
            "set_memory_growth",
            "set_logical_device_configuration",
            "set_virtual_device_configuration",
        ):
            return
        if (
            name.endswith("list_physical_devices")
            and node.args
            and constant(node.args[0]) == "GPU"
            or name == "tensorflow.device"
            and node.args
            and "GPU" in str(constant(node.args[0], "")).upper()
        ):
            hint = hint or node
    trains = any(
        isinstance(n, ast.Call) and method(n) in ("fit", "apply_gradients", "minimize")
        for n in file.nodes
    )
    if hint is not None and trains and _runs_itself(file, hint):
        yield rules.finding(
            "tf-no-growth",
            hint,
            "TensorFlow takes nearly the whole card at start: nobody else fits beside it, and its own use cannot be seen",
        )


def _runs_itself(file, hint) -> bool:
    """Does the file run by itself? The card of a module is set up by whoever imports it."""
    inside = any(
        hint in walk(f) for f in file.tree.body if isinstance(f, FUNCTIONS + (ast.ClassDef,))
    )
    calls = any(
        isinstance(s, (ast.Expr, ast.For, ast.While, ast.With, ast.If))
        and not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))
        for s in file.tree.body
    )
    return calls or not inside


def accumulators(file):
    """Gradient accumulators made anew in every round"""
    if not _uses(file):
        return
    for scope in scopes(file):
        for loop in [s for s in scope.statements if isinstance(s, LOOPS)]:
            applied = _applied_in_window(loop)
            if not applied:
                continue
            for s in _direct(loop.body):
                if (
                    isinstance(s, ast.Assign)
                    and key(s.targets[0]) in applied
                    and _zeros(file, s.value)
                ):
                    yield rules.finding(
                        "accumulator-recreated",
                        s,
                        "`%s` is set to zeros at every step, the optimizer applies it once in several: all but the last micro-batch are thrown away"
                        % key(s.targets[0]),
                    )


def _applied_in_window(loop):
    """Variables that apply_gradients uses under a modulo condition in this loop."""
    used = set()
    for s in _direct(loop.body):
        if isinstance(s, ast.If) and _counts(s.test):
            for inner in in_order(s.body):
                for call in calls(inner):
                    if method(call) == "apply_gradients":
                        used.update(n.id for n in walk(call) if isinstance(n, ast.Name))
    return used


def _zeros(file, value):
    return any(
        isinstance(n, ast.Call) and method(n) in ("zeros_like", "zeros") for n in walk(value)
    ) and not isinstance(value, ast.BinOp)


def tflite(file):
    """A TFLite conversion followed by training"""
    if "tensorflow" not in file.modules:
        return
    for scope in scopes(file):
        converted = None
        for s in scope.statements:
            for call in [n for n in own(s) if isinstance(n, ast.Call)]:
                if method(call) == "from_keras_model" and "TFLiteConverter" in (
                    file.callee(call) or ""
                ):
                    converted = converted or s
                elif method(call) == "fit" and converted is not None:
                    yield rules.finding(
                        "tflite-does-not-train",
                        converted,
                        "a TFLite model only runs, it does not train: converting makes the later fit() no smaller",
                    )
                    return


# models built in a loop


def models_in_loop(file):
    """A Keras model built in every round"""
    if not _uses(file):
        return
    builders = _builders(file)
    said = set()  # one finding a loop, however many models it builds
    for s in file.statements:
        place = file.places[s]
        if not place.loops or not isinstance(s, ast.Assign) or place.loops[-1] in said:
            continue
        loop = place.loops[-1]
        if not isinstance(s.value, ast.Call) or not _builds(file, s.value, builders):
            continue
        name = key(s.targets[0])
        if not name or not _fits(loop, name):
            continue
        if any(isinstance(x, ast.Break) for x in loop.body):
            continue  # switched off by hand
        said.add(loop)
        if not _clears(loop):
            yield rules.finding(
                "keras-model-in-loop",
                s,
                "a model is built in every round of the loop: Keras keeps state of each in a "
                "global session",
                hint=evidence.rounds_around(file, s) < evidence.FEW or _kept_on_purpose(loop, name),
            )
        else:
            yield rules.finding(
                "keras-loop-in-one-process",
                s,
                "a model is built, compiled and trained in every iteration: traces of its "
                "functions may stay in memory although clear_session() is called",
                hint=not evidence.many_rounds(loop),
            )


def _kept_on_purpose(loop, name: str) -> bool:
    """models.append(model): an ensemble, whose models must stay"""
    return any(
        isinstance(n, ast.Call)
        and method(n) == "append"
        and any(key(a) == name for a in n.args)
        or isinstance(n, ast.Assign)
        and isinstance(n.targets[0], ast.Subscript)
        and key(n.value) == name
        for n in walk(loop)
    )


def models_in_trials(file):
    """A Keras model built in an Optuna objective, which runs once a trial"""
    if not _uses(file) or "optuna" not in file.modules:
        return
    builders = _builders(file)
    tried = {
        key(c.args[0])
        for c in file.nodes
        if isinstance(c, ast.Call) and method(c) == "optimize" and c.args
    }
    for name, function in file.plain_functions.items():
        if name not in tried or _clears(function) or _clears(file.tree):
            continue
        for s in in_order(function.body):
            if (
                isinstance(s, ast.Assign)
                and isinstance(s.value, ast.Call)
                and _builds(file, s.value, builders)
                and _fits(function, key(s.targets[0]))
                and not file.places[s].loops
            ):
                yield rules.finding(
                    "keras-model-in-loop",
                    s,
                    "every trial builds a model in the same process: Keras keeps state of each in "
                    "a global session",
                )
                break


def _builds(file, call, builders):
    name = file.callee(call) or ""
    last = name.split(".")[-1]
    if last in builders:
        return True
    return last in ("Sequential", "Model") and ("keras" in name or "keras" in file.modules)


def _builders(file):
    """Functions that return a Keras model, and subclasses of keras.Model."""
    found = {
        name
        for name, c in file.classes.items()
        if any(
            (file.dotted(b) or "").endswith(("keras.Model", "models.Model"))
            or (file.dotted(b) or "") == "keras.Model"
            for b in c.bases
        )
    }
    for name, f in file.plain_functions.items():
        makes = any(
            isinstance(n, ast.Call)
            and (file.callee(n) or "").split(".")[-1] in ("Sequential", "Model")
            and "keras" in (file.callee(n) or "")
            for n in walk(f)
        )
        if makes and any(
            isinstance(n, ast.Return) and n.value is not None for n in in_order(f.body)
        ):
            found.add(name)
    return found


def _fits(loop, name):
    return any(
        isinstance(n, ast.Call)
        and isinstance(n.func, ast.Attribute)
        and n.func.attr in ("fit", "fit_generator", "train_on_batch")
        and key(n.func.value) == name
        for n in walk(loop)
    )


def _clears(loop):
    return any(
        isinstance(n, ast.Call)
        and method(n) in ("clear_session", "reset_default_graph", "Process", "Pool")
        for n in walk(loop)
    )


# Models of scikit-learn and the like: they have a predict() too.
_OTHERS = re.compile(r"k_?means|knn|svm|svc|forest|gmm|xgb|lgb|sklearn|regress|linear|tree", re.I)


def _predicts_itself(file, owner: str) -> bool:
    """A class of this file whose predict() does something else than calling Keras'."""
    name = file.class_of(owner)
    f = file.method_of(name, "predict") if name is not None else None
    return f is not None and not any(
        isinstance(n, ast.Call) and method(n) == "predict" for n in walk(f)
    )


_NOT_KERAS = frozenset(
    "sklearn xgboost lightgbm catboost torch stable_baselines3 stable_baselines ultralytics joblib "
    "pickle statsmodels gensim hmmlearn surprise prophet".split()
)


def _uses_target(loop) -> bool:
    """Is each call another sample? Else it is a measurement."""
    names = {n.id for n in walk(loop.target) if isinstance(n, ast.Name)}
    return any(
        isinstance(n, ast.Name) and n.id in names and isinstance(n.ctx, ast.Load)
        for s in loop.body
        for n in walk(s)
    )


def _changes(loop, call) -> bool:
    """Is what predict() gets made in the loop? The same picture again and again is a measurement."""
    made = {
        n.id
        for s in [loop, *in_order(loop.body)]
        for t in targets(s)
        for n in walk(t)
        if isinstance(n, ast.Name)
    }
    given = [n for a in call.args for n in walk(a)]
    return any(
        isinstance(n, ast.Name) and n.id in made or isinstance(n, (ast.Call, ast.Attribute))
        for n in given
    )


def _follows(loop, call) -> bool:
    """Is what predict() gets made of what the loop goes through? A setting that changes from round
    to round is no sample.
    """
    fed = {n.id for n in walk(loop.target) if isinstance(n, ast.Name)}
    for _ in range(3):
        for s in in_order(loop.body):
            if any(isinstance(n, ast.Name) and n.id in fed for n in walk_here(s)):
                fed |= {n.id for t in targets(s) for n in walk(t) if isinstance(n, ast.Name)}
    given = {n.id for a in call.args for n in walk(a) if isinstance(n, ast.Name)}
    steps = any(isinstance(n, ast.Call) and method(n) == "step" for n in walk(loop))
    return bool(given & fed) or steps


def _many_calls(file, loops) -> bool:
    """Hundreds of calls are written down, or an agent acts: a hundred rounds and more."""
    if any(isinstance(n, ast.Call) and method(n) == "input" for n in walk(loops[-1])):
        return False  # somebody types
    steps = any(
        isinstance(n, ast.Call) and method(n) == "step" and isinstance(n.func, ast.Attribute)
        for n in walk(loops[-1])
    )
    return evidence.rounds_around(file, None, loops) >= evidence.MANY or (steps and len(loops) > 1)


def _shows(loop) -> bool:
    """img.show(), plt.show(), input(): as many rounds as somebody looks at"""
    return any(
        isinstance(n, ast.Call) and method(n) in ("show", "waitKey", "input") for n in walk(loop)
    )


def predict_in_loop(file):
    """model.predict() once a sample"""
    if not _uses(file):
        return
    for s in file.statements:
        place = file.places[s]
        if not place.loops or not isinstance(s, (ast.Assign, ast.Expr)):
            continue
        loop = place.loops[-1]
        if isinstance(loop, ast.While) or not isinstance(loop, ast.For):
            continue
        for call in [n for n in own(s) if isinstance(n, ast.Call)]:
            owner = key(call.func.value) if isinstance(call.func, ast.Attribute) else None
            if (
                method(call) == "predict"
                and owner
                and "model" in owner.lower()
                and not _OTHERS.search(owner)
                and key(loop.target) not in (owner, None)
                and not any(key(t) == owner for i in in_order(loop.body) for t in targets(i))
                and not _predicts_itself(file, owner)
                and (file.made_from(owner) or "").split(".")[0] not in _NOT_KERAS
                and not evidence.few_rounds(loop, file)
            ):
                yield rules.finding(
                    "keras-predict-in-loop",
                    s,
                    "predict() builds a data pipeline at every call, and what it leaves behind "
                    "grows with the number of calls",
                    hint=not _many_calls(file, place.loops)
                    or not _uses_target(loop)
                    or not _changes(loop, call)
                    or not _follows(loop, call)
                    or _shows(loop),
                )
                return


# tf.data

LARGE_BUFFER = 10000  # elements


_HELD_OUT = re.compile(r"(^|_)(val|valid|validation|test|dev|eval)(_|$)", re.I)


def _for_validation(file, call) -> bool:
    """val_set = val_set.map(decode).cache(): a small part of the samples"""
    return any(
        isinstance(s, ast.Assign)
        and any(n is call for n in own(s))
        and any(_HELD_OUT.search(key(t) or "") for t in s.targets)
        for s in file.statements
    )


def data_buffers(file):
    """cache() of decoded data in memory, shuffle buffers that hold it whole"""
    if "tensorflow" not in file.modules:
        return
    for call in file.nodes:
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        steps = _steps_before(file, call)
        if "take" in steps and _takes_few(call):
            continue
        if not steps & {"list_files", "TFRecordDataset", "map", "from_generator", "interleave"}:
            continue
        decoded = bool(steps & {"map", "from_generator", "image_dataset_from_directory"})
        if call.func.attr == "cache" and not call.args and not call.keywords and decoded:
            yield rules.finding(
                "tf-data-buffers",
                call,
                "cache() without a file name keeps the whole decoded dataset in host memory",
                hint=not _decodes_media(file)
                or _small_set(file, None)
                or _chosen(file, call)
                or _for_validation(file, call)
                # a published set, whose size is known to whoever chose it
                or "tensorflow_datasets" in file.modules,
            )
        elif call.func.attr == "shuffle" and "batch" in steps:
            size = _buffer(call)
            if isinstance(size, int) and size >= 1000:
                yield rules.finding(
                    "tf-data-buffers",
                    call,
                    "shuffle() stands behind batch(): its buffer holds %d whole batches" % size,
                    hint=not _decodes_media(file) or _small_set(file, None),
                )
        elif call.func.attr == "shuffle" and decoded:
            size = _buffer(call)
            if size == "all" or isinstance(size, int) and size >= LARGE_BUFFER:
                yield rules.finding(
                    "tf-data-buffers",
                    call,
                    "shuffle() holds %s decoded samples in host memory: its buffer fills before "
                    "the first batch comes" % ("all" if size == "all" else size),
                    hint=not _decodes_media(file) or _small_set(file, size),
                )


def _chosen(file, call: ast.Call) -> bool:
    """if path: data = data.cache(path) else: data = data.cache()"""
    return any(
        isinstance(i, ast.If)
        and i.orelse
        and any(n is call for b in i.orelse for n in walk(b))
        and any(
            isinstance(n, ast.Call) and method(n) == "cache" and n.args
            for b in i.body
            for n in walk(b)
        )
        for i in file.nodes
    )


_MEDIA = re.compile(
    r"decode_(jpeg|png|image|wav|gif|bmp|raw)|read_file|imread|image_dataset|audio_dataset|"
    r"librosa|soundfile|resize|^load$|spectrogram|stft|mfcc|(^|_)(mels?|audios?|wavs?)($|_)|"
    r"_decode$|\.(jpe?g|png|bmp|tiff?|gif|wav|mp3|flac|mp4|avi|npy|npz)$|"
    r"(^|_|/)(img|image|photo|frame|video)s?($|_|/)",
    re.I,
)


def _decodes_media(file) -> bool:
    """Are there images, sound or arrays in files? Text and tables are small when decoded."""
    return any(
        _MEDIA.search(method(n) if isinstance(n, ast.Call) else str(n.value))
        for n in file.nodes
        if isinstance(n, ast.Call)
        or isinstance(n, ast.Constant)
        and isinstance(n.value, str)
        and len(n.value) < 40
    )


# Bytes of a decoded sample, float32, and samples of the sets that Keras and tfds bring along.
_KNOWN_SETS = {
    "mnist": (28 * 28 * 4, 70_000),
    "fashion_mnist": (28 * 28 * 4, 70_000),
    "kmnist": (28 * 28 * 4, 70_000),
    "cifar10": (32 * 32 * 3 * 4, 60_000),
    "cifar100": (32 * 32 * 3 * 4, 60_000),
    "imdb": (4 << 10, 50_000),
    "reuters": (4 << 10, 11_228),
    "boston_housing": (52, 506),
    "iris": (16, 150),
}
_SMALL_SET = 1 << 30  # bytes; the machines that train have more to spare


def _small_set(file, size) -> bool:
    """Is the data a set whose size is known and small? size: samples that the buffer asks for."""
    named = {
        n.attr if isinstance(n, ast.Attribute) else n.value if isinstance(n, ast.Constant) else n.id
        for n in file.nodes
        if isinstance(n, (ast.Attribute, ast.Name))
        or isinstance(n, ast.Constant)
        and isinstance(n.value, str)
    } | {a.split(".")[-1] for a in file.aliases.values()}
    # "/data/CIFAR10/test" names the set too
    parts = {p.lower() for x in named if isinstance(x, str) for p in re.split(r"[\\/.\s]", x)}
    known = [_KNOWN_SETS[x] for x in parts if x in _KNOWN_SETS]
    if not known:
        return False
    return all(
        sample * (min(size, count) if isinstance(size, int) else count) < _SMALL_SET
        for sample, count in known
    )


def _takes_few(call) -> bool:
    """dataset.take(1).cache()"""
    return any(
        isinstance(n, ast.Call)
        and method(n) == "take"
        and n.args
        and isinstance(constant(n.args[0]), int)
        and constant(n.args[0]) <= 1000
        for n in walk(call.func)
    )


def _buffer(call):
    """The shuffle buffer: a number, "all" where it is the dataset's length, else None."""
    size = call.args[0] if call.args else keyword(call, "buffer_size")
    if isinstance(size, ast.Constant):
        return size.value
    if isinstance(size, ast.Call) and method(size) in ("len", "cardinality"):
        return "all"
    return None


def _steps_before(file, call):
    """The names of the calls that made the dataset: in the chain, and through one variable."""
    steps, node, hops = set(), call.func.value, 0
    while True:
        if isinstance(node, ast.Call):
            steps.add(method(node))
            node = node.func.value if isinstance(node.func, ast.Attribute) else None
        elif isinstance(node, ast.Name) and hops < 20:
            hops += 1
            before = _last_assignment(file, node)
            if before is None:
                return steps
            node = before.value
        else:
            return steps


def _last_assignment(file, name):
    """The assignment to this name that stands last before it."""
    found = None
    for s in file.statements:
        if s.lineno >= name.lineno or name.lineno <= (s.end_lineno or 0):
            continue
        if isinstance(s, ast.Assign) and any(
            isinstance(n, ast.Name) and n.id == name.id for t in s.targets for n in walk(t)
        ):
            if _in_other_branch(file, s, name):
                continue
            if found is None or s.lineno > found.lineno:
                found = s
    return found


def _in_other_branch(file, s, node) -> bool:
    """if seed: data = data.map(f) else: data = data.shuffle(n): one of the two runs"""
    for i in file.places[s].ifs:
        if not isinstance(i, ast.If):
            continue
        sides = [{x for b in body for x in walk(b)} for body in (i.body, i.orelse)]
        if any(s in a and node in b for a, b in (sides, sides[::-1])):
            return True
    return False


def tape_around_loop(file):
    """with tf.GradientTape() as tape: for x in data: ... tape.gradient(...)"""
    if not _uses(file):
        return
    for s in file.statements:
        if not isinstance(s, ast.With):
            continue
        for item in s.items:
            name = key(item.optional_vars) if item.optional_vars is not None else None
            made = item.context_expr
            if not name or not isinstance(made, ast.Call) or method(made) != "GradientTape":
                continue
            for loop in [x for x in in_order(s.body) if isinstance(x, LOOPS)]:
                if any(
                    isinstance(n, ast.Call)
                    and method(n) == "gradient"
                    and isinstance(n.func, ast.Attribute)
                    and key(n.func.value) == name
                    for n in walk(loop)
                ) and any(
                    isinstance(n, ast.Call) and method(n) in ("apply_gradients", "minimize")
                    for n in walk(loop)
                ):
                    yield rules.finding(
                        "tape-around-loop",
                        s,
                        "one tape stands around the whole loop: it records the activations of every "
                        "step and frees none until the block ends",
                    )
                    break
