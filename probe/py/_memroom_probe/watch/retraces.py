"""Functions of TensorFlow that are traced again and again: each trace is a graph that stays.

TensorFlow notes each call that traced, by the code of the function, so that is where traces are
counted: a call that traces none costs nothing. What changed from one trace to the next, a Python
value or a tensor's shape, is read from the arguments.
"""

import functools
import inspect
import sys
from typing import Any, Dict, List

from .. import guard, link
from . import host, models

MANY, RECENT = 12, 5  # traces of a function in all, and of its last ten calls
STEP = 1.5  # times as many as were reported before: reported again
MOST_FUNCTIONS = 1000

_seen: Dict[
    Any, Any
] = {}  # code -> [traces, heap at the second trace, arguments before, causes, told]


def hook(module: Any) -> None:
    """Hooks tensorflow.python.eager.polymorphic_function.polymorphic_function."""
    cls: Any = getattr(module, "_FrequentTracingDetectorManager", None)
    original = getattr(cls, "called_with_tracing", None)
    if original is None:
        return

    @functools.wraps(original)
    def called_with_tracing(self: Any, key: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, key, *args, **kwargs)
        _traced(self, key, sys._getframe(1))
        return result

    cls.called_with_tracing = called_with_tracing


@guard.hook("traced", heavy=True)
def _traced(manager: Any, code: Any, frame: Any) -> None:
    if not hasattr(code, "co_filename") or len(_seen) > MOST_FUNCTIONS:
        return
    known = _seen.setdefault(code, [0, 0, {}, {}, 0])
    known[0] += 1
    if known[0] == 2:
        known[1] = host.heap()
    arguments = _described(frame)
    for name, described in arguments.items():
        before = known[2].get(name)
        if before is not None and before != described:
            cause = (name, _change(before, described))
            known[3][cause] = known[3].get(cause, 0) + 1
    known[2] = arguments
    if known[0] >= max(MANY, STEP * known[4]) and _recent(manager, code) >= RECENT:
        known[4] = known[0]
        _tell(code, known)


def _recent(manager: Any, code: Any) -> int:
    """Traces among the last ten calls, as TensorFlow counts them."""
    return len(manager._detectors[code]._calls_per_tracings)


def _described(frame: Any) -> Dict[str, Any]:
    """Name of an argument -> (kind, what of it matters), of the call that traced."""
    given, function = frame.f_locals, frame.f_locals.get("self")
    args, kwargs = given.get("args", ()), given.get("kwds", given.get("kwargs", {}))
    target: Any = getattr(function, "_python_function", None)
    try:
        bound = inspect.signature(target).bind_partial(*args, **kwargs).arguments
    except (TypeError, ValueError):
        bound = dict(("argument %d" % n, value) for n, value in enumerate(args))
    return {name: _describe(value) for name, value in bound.items() if name != "self"}


def _describe(value: Any) -> Any:
    if isinstance(value, (int, float, complex, str, bytes, type(None))):
        return type(value).__name__, repr(value)[:200]
    if type(value) in (list, tuple):
        return type(value).__name__, (len(value), tuple(map(_describe, value[:8])))
    shape = getattr(value, "shape", None)
    if shape is not None:
        return "tensor", (str(shape), str(getattr(value, "dtype", "")))
    return type(value).__name__, id(value)


def _change(before: Any, after: Any) -> str:
    """What of an argument changed: the value of a Python object, or a tensor's shape."""
    if before[0] != after[0]:
        return "kind"
    return "shape" if after[0] == "tensor" else "value"


def _tell(code: Any, known: List[Any]) -> None:
    traces, level, arguments, causes, _ = known
    (name, change), times = max(causes.items(), key=lambda item: item[1], default=(("", ""), 0))
    file, line = models.line()
    link.send(
        "retraced",
        {
            "function": code.co_name,
            "traces": traces,
            "grown": max(0, host.heap() - level),
            "argument": name if 2 * times >= traces else "",
            "change": change if 2 * times >= traces else "",
            "type": arguments.get(name, ("",))[0],
            "file": code.co_filename,
            "line": code.co_firstlineno,
            "called_file": file,
            "called_line": line,
        },
    )
