"""Ray Tune."""

import ast

from . import rules
from .flow import in_order
from .names import constant, key, keyword, targets, walk_here
from .tensorflow import LOADING


def _launches(file):
    """Calls that start trials, with the trainable."""
    for call in ast.walk(file.tree):
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
                for n in ast.walk(file.tree)
            ):
                continue
            yield rules.finding(
                "ray-trial-without-resources",
                call,
                "no resources are given for a trial: Ray packs one on every core, whatever memory each takes",
            )
            continue
        given = asked if asked is not None else wrapped
        if isinstance(given, ast.Dict) and "memory" not in [constant(k) for k in given.keys]:
            yield rules.finding(
                "ray-trial-without-memory",
                call,
                'trials are packed by CPU and GPU alone: without "memory" Ray starts more than the host can hold',
            )


def _with_resources(file, trainable):
    """The second argument of tune.with_resources around the trainable, found through a variable
    too.
    """
    nodes = [trainable] if trainable is not None else []
    if key(trainable) if trainable is not None else None:
        nodes += [
            s.value
            for s in file.statements
            if isinstance(s, ast.Assign) and any(key(t) == key(trainable) for t in targets(s))
        ]
    for node in nodes:
        for call in walk_here(node):
            if isinstance(call, ast.Call) and (file.callee(call) or "").endswith("with_resources"):
                return call.args[1] if len(call.args) > 1 else keyword(call, "resources")
    return None


def captures(file):
    """A trainable that uses a large object from outside"""
    large = {}
    for s in file.statements:
        if (
            isinstance(s, ast.Assign)
            and isinstance(s.value, ast.Call)
            and file.places[s].function is None
            and (file.callee(s.value) or "") in LOADING + ("torch.load", "datasets.load_dataset")
        ):
            for t in targets(s):
                if key(t):
                    large[key(t)] = file.callee(s.value)
    for call, trainable in _launches(file):
        function = file.functions.get(key(trainable) or "") if trainable is not None else None
        if function is None:
            continue
        bound = {a.arg for a in function.args.args} | {
            key(t) for s in in_order(function.body) for t in targets(s)
        }
        for node in sorted(
            (n for n in walk_here(function) if isinstance(n, ast.Name)), key=lambda n: n.lineno
        ):
            if isinstance(node.ctx, ast.Load) and node.id in large and node.id not in bound:
                yield rules.finding(
                    "ray-captures-large-object",
                    node,
                    "the trainable drags `%s` along: it is pickled into every trial and each holds its own copy"
                    % node.id,
                )
                break
