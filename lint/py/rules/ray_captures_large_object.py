"""Large object captured by a remote function.

severity: warning
remedy: trial_resources

What the function uses from outside is serialised with it, into every worker process.

Instead: Put it into the object store once, `ref = ray.put(data)`, and pass `ref`. For Tune:
tune.with_parameters(train_fn, data=data).
"""

import ast
from typing import Any, Dict, Iterator, Optional, Tuple, Union

from ..evidence import SMALL
from ..findings import finding
from ..names import File, Function, key, keyword, method, targets, walk, walk_here
from ..ray_tune import _launches, many_numbers
from ..tensorflow import LOADING

# What makes something small of a table.
_REDUCES = frozenset(
    "len sum mean max min std unique nunique head sample keys item count describe".split()
)


def _converted(value: ast.expr, large: Dict[Any, Any]) -> bool:
    """torch.tensor(frame.drop(columns="y").values) of a large frame"""
    made = {method(n) for n in walk_here(value) if isinstance(n, ast.Call)}
    asked = {n.attr for n in walk_here(value) if isinstance(n, ast.Attribute)}
    if (made | asked) & (_REDUCES | {"shape", "columns", "dtypes", "index"}):
        return False
    named = {n.id for n in walk_here(value) if isinstance(n, ast.Name)}
    return bool(made) and bool(named & set(large))


def _large_variables(file: File, function: Any = None) -> Dict[Any, Any]:
    """Variables of the module, or of a function, that hold a whole file, a dataset, a model or a
    large array.
    """
    large: Dict[Any, Any] = {}
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
                or many_numbers(name, call)
            ):
                for t in targets(s):
                    if key(t):
                        large[key(t)] = name
    return large


def _remote_functions(file: File) -> Iterator[Tuple[Union[Function, ast.ClassDef], str]]:
    """What Ray pickles: trainables and their wrappers, remote functions, actors, train loops."""
    trainable: Optional[ast.expr]
    for _, trainable in _launches(file):
        while isinstance(trainable, ast.Call) and method(trainable).startswith("with_"):
            trainable = trainable.args[0] if trainable.args else None  # with_resources(f, ...)
        function = file.functions.get(key(trainable) or "") if trainable is not None else None
        if function is not None:
            yield function, "trial"
    defined: Dict[str, Union[Function, ast.ClassDef]] = {**file.plain_functions, **file.classes}
    for name, f in defined.items():
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


def captures(file: File) -> Iterator[Any]:
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
                yield finding(
                    "ray-captures-large-object",
                    node,
                    "`%s` is a large object from outside: Ray pickles it with the function, and "
                    "each %s holds its own copy" % (node.id, kind),
                )
                break


CHECKS = (captures,)
