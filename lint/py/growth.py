"""Things that grow beside the tensors of a step: metrics, compiled programs, worker processes,
records of the allocator, graphs of TensorFlow 1, cycles that nobody collects.
"""

import ast
from typing import Any

from .evidence import few_rounds
from .names import method, walk


def long_loop(file: Any, s: ast.stmt) -> Any:
    """The loop around a statement that trains and is not a handful of rounds; not for a loop over
    models or files, each of which is another one.
    """
    loops = file.places[s].loops
    if not loops or few_rounds(loops[-1], file) or file.places[s].ifs[-1:] and _once(file, s):
        return None
    trains = any(
        isinstance(n, ast.Call) and method(n) in ("backward", "step", "fit", "train")
        for n in walk(loops[-1])
    )
    return loops[-1] if trains else None


def _once(file: Any, s: ast.stmt) -> bool:
    """if epoch == start: it happens once"""
    last = file.places[s].ifs[-1]
    return bool(file.places[last].loops == file.places[s].loops)
