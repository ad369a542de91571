"""What is said when the interpreter ends: how it died if an exception got it, and what the probe
cost.
"""

from __future__ import annotations

import sys

from . import faults, guard, link, process

TYPE_CHECKING = False
if TYPE_CHECKING:  # a name that type checkers take for true: importing typing takes a while
    from typing import Any, Callable

_last_words: list[Any] = []  # functions called before the end, to hand over what they still hold


def before(fn: Callable[[], object]) -> None:
    """Calls fn when the process ends, before the exit message."""
    _last_words.append(fn)


def say() -> None:
    for fn in _last_words:
        try:
            fn()
        except Exception as error:
            faults.note("farewell", error)
    # Python sets these for an exception that nobody caught, before the exit handlers run: so
    # sys.excepthook, which programs like to replace and compare, need not be ours.
    uncaught = getattr(sys, "last_value", None)
    if uncaught is not None:
        from . import oom

        process.regroup()
        link.send("died", oom.describe(uncaught))
    spent, elapsed = guard.cost()
    link.send(
        "exit",
        {
            "spent_us": spent // 1000,
            "elapsed_us": elapsed // 1000,
            "dropped": link.state.dropped,
            "faults": faults.faults.count,
        },
    )
