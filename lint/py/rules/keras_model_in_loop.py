"""Keras models built in a loop.

severity: warning
remedy: clear_session

Keras keeps layers, names and functions of every model in global state. Deleting the variable
does not free them.

Instead: Call `keras.backend.clear_session()` at the start of each round, then `del model` and
`gc.collect()`. Or train each model in its own process.
"""

import ast
from typing import Any, Iterator

from ..findings import finding
from ..flow import in_order
from ..names import File, key, method
from ..reasons import small_problem
from ..tensorflow import _builders, builds, clears, fits, uses


def models_in_trials(file: File) -> Iterator[Any]:
    """A Keras model built in an Optuna objective, which runs once a trial"""
    if not uses(file) or "optuna" not in file.modules:
        return
    builders = _builders(file)
    tried = {
        key(c.args[0])
        for c in file.nodes
        if isinstance(c, ast.Call) and method(c) == "optimize" and c.args
    }
    for name, function in file.plain_functions.items():
        if name not in tried or clears(function) or clears(file.tree):
            continue
        for s in in_order(function.body):
            if (
                isinstance(s, ast.Assign)
                and isinstance(s.value, ast.Call)
                and builds(file, s.value, builders)
                and fits(function, key(s.targets[0]))
                and not file.places[s].loops
            ):
                yield finding(
                    "keras-model-in-loop",
                    s,
                    "every trial builds a model in the same process: Keras keeps state of each in "
                    "a global session",
                )
                break


CHECKS = (models_in_trials,)
HINTS = (small_problem,)
