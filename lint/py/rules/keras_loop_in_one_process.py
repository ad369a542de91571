"""Keras models built in a loop.

severity: info
remedy: clear_session

Some TensorFlow versions keep the traced functions of compiled models even after
clear_session().

Instead: If memory grows, train each model in its own process (multiprocessing with "spawn"),
and call gc.collect() after clear_session().
"""

import ast
from typing import Any, Iterator

from .. import evidence
from ..findings import finding
from ..names import File, key
from ..tensorflow import _builders, builds, clears, fits, uses


def models_in_loop(file: File) -> Iterator[Any]:
    """A Keras model built in every round, and a session that is cleared"""
    if not uses(file):
        return
    builders = _builders(file)
    said = set()  # one finding a loop, however many models it builds
    for s in file.statements:
        place = file.places[s]
        if not place.loops or not isinstance(s, ast.Assign) or place.loops[-1] in said:
            continue
        loop = place.loops[-1]
        if not isinstance(s.value, ast.Call) or not builds(file, s.value, builders):
            continue
        name = key(s.targets[0])
        if not name or not fits(loop, name):
            continue
        if any(isinstance(x, ast.Break) for x in loop.body):
            continue  # switched off by hand
        said.add(loop)
        if clears(loop):
            yield finding(
                "keras-loop-in-one-process",
                s,
                "a model is built, compiled and trained in every iteration: traces of its "
                "functions may stay in memory although clear_session() is called",
                hint=not evidence.many_rounds(loop),
            )


CHECKS = (models_in_loop,)
