"""Ray Tune."""

import ast
from typing import Any, Iterator, List, Set, Tuple

from .names import File, key, keyword, own, targets, walk_here


def _launches(file: File) -> Iterator[Tuple[ast.Call, ast.expr]]:
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


def launches(file: File) -> Iterator[Tuple[ast.Call, ast.expr, ast.expr]]:
    """(call, trainable, resources of a trial or None) of tune.run and Tuner, where a trial is more
    than arithmetic
    """
    if not FRAMEWORKS & file.modules:
        return
    for call, trainable in _launches(file):
        if any(k.arg is None for k in call.keywords) or isinstance(trainable, ast.Constant):
            continue  # **arguments and trainables registered by name may bring their resources along
        asked = keyword(call, "resources_per_trial")
        yield call, trainable, asked if asked is not None else with_resources(file, trainable)


def with_resources(file: File, trainable: Any) -> Any:
    """The second argument of tune.with_resources around the trainable, found through a variable
    or an attribute too.
    """
    nodes = [trainable] if trainable is not None else []
    around = function_of(file, trainable)
    seen: Set[Any] = set()
    for node in nodes:  # grows: wrapped = with_resources(f); given = with_parameters(wrapped)
        parts = [n for n in walk_here(node) if isinstance(n, (ast.Name, ast.Attribute))]
        for name in {key(n) for n in parts} - seen - {None}:
            seen.add(name)
            nodes += values_of(file, name, around)
        for call in walk_here(node):
            if isinstance(call, ast.Call) and (file.callee(call) or "").endswith("with_resources"):
                return call.args[1] if len(call.args) > 1 else keyword(call, "resources")
    return None


def function_of(file: File, node: Any) -> Any:
    """The function whose statement this is a part of, None at the top of the file"""
    at = (s for s in file.statements if any(n is node for n in own(s)))
    return next((file.places[s].function for s in at), None)


def values_of(file: File, name: Any, function: Any) -> List[Any]:
    """What a variable is set to, as seen in this function: there, in those around it, or at the top
    of the file; an attribute, wherever it is set.
    """
    made = [
        s
        for s in file.statements
        if isinstance(s, ast.Assign) and any(key(t) == name for t in targets(s))
    ]
    while "." not in name:
        here = [s.value for s in made if file.places[s].function is function]
        if here or function is None:
            return here
        function = getattr(file.places.get(function), "function", None)
    return [s.value for s in made]


def many_numbers(name: str, call: ast.Call) -> bool:
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


def _number(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return int(node.value)
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Pow)):
        left, right = _number(node.left), _number(node.right)
        if left is not None and right is not None and right < 64 or isinstance(node.op, ast.Mult):
            if left is None or right is None:
                return None
            return left * right if isinstance(node.op, ast.Mult) else left**right
    return None
