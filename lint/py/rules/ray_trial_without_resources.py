"""Trials without resources.

severity: warning
remedy: trial_resources

Ray then counts one CPU for each trial and starts as many as there are cores. Their memory adds
up.

Instead: `resources_per_trial={"cpu": 4, "gpu": 1, "memory": 8 * 1024**3}` or
tune.with_resources(...).
"""

import ast
from typing import Any, Iterator

from ..findings import finding
from ..names import File, constant, key, keyword, method, targets, walk
from ..ray_tune import launches


def no_resources(file: File) -> Iterator[Any]:
    if any(
        isinstance(n, ast.Name)
        and n.id == "ScalingConfig"
        or isinstance(n, ast.Attribute)
        and n.attr == "ScalingConfig"
        for n in file.nodes
    ):
        return
    for call, trainable, given in launches(file):
        if given is None:
            yield finding(
                "ray-trial-without-resources",
                call,
                "no resources are given for a trial: Ray packs one on every core, whatever memory each takes",
                hint=not _several_trials(file, call) or _only_reckons(file, trainable),
            )


def _several_trials(file: File, call: ast.Call) -> Any:
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


def _only_reckons(file: File, trainable: ast.expr) -> bool:
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


CHECKS = (no_resources,)
