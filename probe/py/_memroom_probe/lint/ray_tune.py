"""Ray Tune."""

import ast

from . import rules
from .evidence import SMALL
from .flow import in_order
from .names import constant, key, keyword, method, targets, walk, walk_here
from .tensorflow import LOADING


def _launches(file):
    """Calls that start trials, with the trainable."""
    for call in file.nodes:
        if isinstance(call, ast.Call) and (file.callee(call) or "") in (
            "ray.tune.run",
            "ray.tune.Tuner",
            "ray.tune.tuner.Tuner",
        ):
            yield (
                call,
                call.args[0]
                if call.args
                else keyword(call, "trainable") or keyword(call, "run_or_experiment"),
            )


FRAMEWORKS = frozenset(
    "torch tensorflow keras jax flax transformers lightning pytorch_lightning torchvision xgboost lightgbm sklearn".split()
)


def resources(file):
    """Trials without resources or without memory, where a trial is more than arithmetic"""
    if not FRAMEWORKS & file.modules:
        return
    for call, trainable in _launches(file):
        if any(k.arg is None for k in call.keywords) or isinstance(trainable, ast.Constant):
            continue  # **arguments and trainables registered by name may bring their resources along
        asked = keyword(call, "resources_per_trial")
        wrapped = _with_resources(file, trainable)
        if asked is None and wrapped is None:
            if any(
                isinstance(n, ast.Name)
                and n.id == "ScalingConfig"
                or isinstance(n, ast.Attribute)
                and n.attr == "ScalingConfig"
                for n in file.nodes
            ):
                continue
            yield rules.finding(
                "ray-trial-without-resources",
                call,
                "no resources are given for a trial: Ray packs one on every core, whatever memory each takes",
                hint=not _several_trials(file, call) or _only_reckons(file, trainable),
            )
            continue
        given = asked if asked is not None else wrapped
        if isinstance(given, ast.Dict) and "memory" not in [constant(k) for k in given.keys]:
            yield rules.finding(
                "ray-trial-without-memory",
                call,
                'trials are packed by CPU and GPU alone: without "memory" Ray starts more than the host can hold',
            )


def _several_trials(file, call):
    """Without num_samples there is one trial, unless the space holds a grid."""
    nodes = [*walk(call)]
    name = key(keyword(call, "tune_config")) if keyword(call, "tune_config") else None
    for s in file.statements:
        if name and isinstance(s, ast.Assign) and any(key(t) == name for t in targets(s)):
            nodes += walk(s.value)
    asked = [n.value for n in nodes if isinstance(n, ast.keyword) and n.arg == "num_samples"]
    if any(constant(a, 2) != 1 for a in asked):
        return True
    grids = [n for n in file.nodes if isinstance(n, ast.Call) and method(n) == "grid_search"]
    total = 1
    for n in grids:
        values = getattr(n.args[0], "elts", None) if n.args else None
        total *= len(values) if values is not None else MANY_TRIALS
    return total >= MANY_TRIALS or any(
        isinstance(n, ast.Constant) and n.value == "grid_search" for n in file.nodes
    )


_NUMBERS_ONLY = frozenset("numpy ray wandb mlflow time random math os json".split())


def _only_reckons(file, trainable) -> bool:
    """def trial(config): report(loss=config["a"] + random()): an example whose trials hold nothing"""
    todo, seen = [key(trainable) if trainable is not None else None], set()
    while todo:
        name = todo.pop()
        code = file.functions.get(name) or file.classes.get(name)
        if code is None:
            return False
        seen.add(name)
        for n in walk(code):
            root = file.aliases.get(n.id, "").split(".")[0] if isinstance(n, ast.Name) else ""
            if root and root not in _NUMBERS_ONLY:
                return False
            if isinstance(n, ast.Call) and isinstance(n.func, ast.Name):
                if n.func.id in file.functions and n.func.id not in seen:
                    todo.append(n.func.id)
    return True


MANY_TRIALS = 5  # fewer at once are what somebody meant


STOPPING = ("ASHAScheduler", "AsyncHyperBandScheduler", "HyperBandScheduler", "MedianStoppingRule")


def stopped_trials(file):
    """A scheduler that stops trials, on cards"""
    stops = any(
        isinstance(n, ast.Call) and (file.callee(n) or "").split(".")[-1] in STOPPING
        for n in file.nodes
    )
    if not stops:
        return
    for call, trainable in _launches(file):
        given = keyword(call, "resources_per_trial") or _with_resources(file, trainable)
        if isinstance(given, ast.Dict) and any(
            constant(k) in ("gpu", "GPU") and constant(v, 1) != 0
            for k, v in zip(given.keys, given.values)
        ):
            yield rules.finding(
                "ray-stopped-trial-holds-card",
                call,
                "the scheduler stops trials early: a stopped trial may still hold its card when "
                "the next one starts there",
            )


def _with_resources(file, trainable):
    """The second argument of tune.with_resources around the trainable, found through a variable
    too.
    """
    nodes = [trainable] if trainable is not None else []
    seen = set()
    for node in nodes:  # grows: wrapped = with_resources(f); given = with_parameters(wrapped)
        for name in {n.id for n in walk_here(node) if isinstance(n, ast.Name)} - seen:
            seen.add(name)
            nodes += [
                s.value
                for s in file.statements
                if isinstance(s, ast.Assign) and any(key(t) == name for t in targets(s))
            ]
        for call in walk_here(node):
            if isinstance(call, ast.Call) and (file.callee(call) or "").endswith("with_resources"):
                return call.args[1] if len(call.args) > 1 else keyword(call, "resources")
    return None


# What makes something small of a table.
_REDUCES = frozenset(
    "len sum mean max min std unique nunique head sample keys item count describe".split()
)


def _converted(value, large) -> bool:
    """torch.tensor(frame.drop(columns="y").values) of a large frame"""
    made = {method(n) for n in walk_here(value) if isinstance(n, ast.Call)}
    asked = {n.attr for n in walk_here(value) if isinstance(n, ast.Attribute)}
    if (made | asked) & (_REDUCES | {"shape", "columns", "dtypes", "index"}):
        return False
    named = {n.id for n in walk_here(value) if isinstance(n, ast.Name)}
    return bool(made) and bool(named & set(large))


def _large_variables(file, function=None):
    """Variables of the module, or of a function, that hold a whole file, a dataset, a model or a
    large array.
    """
    large = {}
    for s in file.statements:
        if not isinstance(s, ast.Assign) or file.places[s].function is not function:
            continue
        if file.places[s].klass is not None and function is None:
            continue
        if _converted(s.value, large) and key(s.targets[0]):
            large[key(s.targets[0])] = "a table"
        for call in [n for n in walk_here(s.value) if isinstance(n, ast.Call)]:
            name = file.callee(call) or ""
            if (
                name in LOADING + ("torch.load", "datasets.load_dataset")
                or name.endswith(".from_pretrained")
                and "Model" in name
                or _many_numbers(name, call)
            ):
                for t in targets(s):
                    if key(t):
                        large[key(t)] = name
    return large


def _many_numbers(name, call):
    """np.zeros((10000, 10000)): ten million numbers or more, where the shape is written out."""
    if not name.startswith(("numpy.", "torch.")) or name.split(".")[-1] not in (
        "zeros",
        "ones",
        "rand",
        "randn",
        "empty",
        "random",
        "arange",
    ):
        return False
    count = 1
    for a in call.args:
        for n in a.elts if isinstance(a, (ast.Tuple, ast.List)) else [a]:
            value = _number(n)
            if value is None:
                return False
            count *= max(1, value)
    return count >= 10_000_000


def _number(node):
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return int(node.value)
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Pow)):
        left, right = _number(node.left), _number(node.right)
        if left is not None and right is not None and right < 64 or isinstance(node.op, ast.Mult):
            if left is None or right is None:
                return None
            return left * right if isinstance(node.op, ast.Mult) else left**right
    return None


def _remote_functions(file):
    """What Ray pickles: trainables and their wrappers, remote functions, actors, train loops."""
    for _, trainable in _launches(file):
        while isinstance(trainable, ast.Call) and method(trainable).startswith("with_"):
            trainable = trainable.args[0] if trainable.args else None  # with_resources(f, ...)
        function = file.functions.get(key(trainable) or "") if trainable is not None else None
        if function is not None:
            yield function, "trial"
    for name, f in list(file.plain_functions.items()) + list(file.classes.items()):
        for d in f.decorator_list:
            if (file.dotted(d.func if isinstance(d, ast.Call) else d) or "") == "ray.remote":
                yield f, "task" if name in file.plain_functions else "actor"
    for call in file.nodes:
        if isinstance(call, ast.Call) and (file.callee(call) or "") == "ray.remote" and call.args:
            function = file.plain_functions.get(key(call.args[0]) or "")
            if function is not None:
                yield function, "task"
        if isinstance(call, ast.Call) and (file.callee(call) or "").startswith("ray.train."):
            if method(call).endswith("Trainer"):
                loop = keyword(call, "train_loop_per_worker") or (
                    call.args[0] if call.args else None
                )
                function = file.functions.get(key(loop) or "") if loop is not None else None
                if function is not None:
                    yield function, "worker"


def captures(file):
    """A function that Ray pickles and that uses a large object from outside"""
    if "ray" not in file.modules:
        return
    of_module = _large_variables(file)
    for function, kind in _remote_functions(file):
        around = file.places[function].function if function in file.places else None
        large = {**of_module, **(_large_variables(file, around) if around is not None else {})}
        bound = {a.arg for a in walk(function) if isinstance(a, ast.arg)} | {
            n.id for n in walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        }
        for node in sorted(
            (n for n in walk(function) if isinstance(n, ast.Name)),
            key=lambda n: (bool(SMALL.search(n.id)), n.lineno),  # data before labels
        ):
            if isinstance(node.ctx, ast.Load) and node.id in large and node.id not in bound:
                yield rules.finding(
                    "ray-captures-large-object",
                    node,
                    "`%s` is a large object from outside: Ray pickles it with the function, and "
                    "each %s holds its own copy" % (node.id, kind),
                )
                break


def passed_again(file):
    """f.remote(data) in a loop, with a large object that is the same every time"""
    if "ray" not in file.modules:
        return
    for call in file.nodes:
        if not isinstance(call, (ast.ListComp, ast.For)):
            continue
        inside = [call.elt] if isinstance(call, ast.ListComp) else call.body
        large = _loaded_anywhere(file)
        for part in inside:
            for n in walk_here(part):
                if isinstance(n, ast.Call) and (file.callee(n) or "") == "ray.put" and n.args:
                    if key(n.args[0]) in large and isinstance(call, ast.For):
                        yield rules.finding(
                            "ray-passes-large-object",
                            n,
                            "`%s` is put into the object store in every round: each put is one "
                            "more copy" % key(n.args[0]),
                        )
                if not isinstance(n, ast.Call) or method(n) != "remote":
                    continue
                name = next((key(a) for a in n.args if key(a) in large), None)
                if name:
                    yield rules.finding(
                        "ray-passes-large-object",
                        n,
                        "`%s` is passed by value at every call: Ray copies it into the object "
                        "store each time" % name,
                    )


def _giving_loaded(file):
    """Functions of this file that read a whole file and give it back."""
    found = set()
    for name, f in file.plain_functions.items():
        loaded = set()
        for s in in_order(f.body):
            value = getattr(s, "value", None)
            if not isinstance(s, (ast.Assign, ast.Return)) or value is None:
                continue
            reads = any(
                isinstance(n, ast.Call)
                and (file.callee(n) or "") in LOADING
                and constant(keyword(n, "mmap_mode")) is None
                or isinstance(n, ast.Name)
                and n.id in loaded
                for n in walk_here(value)
            )
            if reads and isinstance(s, ast.Return):
                found.add(name)
            elif reads:
                loaded.update(k for k in map(key, targets(s)) if k)
    return found


def _loaded_anywhere(file):
    """Variables that hold a loaded file or a large array, in any function."""
    found = set()
    givers = _giving_loaded(file)
    for s in file.statements:
        if isinstance(s, ast.Assign) and isinstance(s.value, ast.Call):
            name = file.callee(s.value) or ""
            if name in givers:
                found.update(k for k in map(key, targets(s)) if k and not SMALL.search(k))
            if (
                name in LOADING + ("torch.load", "datasets.load_dataset")
                or name.endswith(".from_pretrained")
                and "Model" in name
                or _many_numbers(name, s.value)
            ):
                found.update(k for k in map(key, targets(s)) if k)
    return found
