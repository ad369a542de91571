"""Record of all allocations.

severity: warning

Each entry holds a stack trace in host memory. Without max_entries a long training fills
gigabytes.

Instead: Give `max_entries=100000`, or stop it after the steps in question:
`torch.cuda.memory._record_memory_history(enabled=None)`.
"""

import ast
from typing import Any, Iterator

from ..findings import Finding, finding
from ..names import constant, keyword, method, own
from ..reasons import measured


def records(file: Any) -> Iterator[Finding]:
    """torch.cuda.memory._record_memory_history() and never stopped"""
    started = None
    for n in file.nodes:
        if not isinstance(n, ast.Call) or not (file.callee(n) or "").endswith(
            "_record_memory_history"
        ):
            continue
        asked = n.args[0] if n.args else keyword(n, "enabled")
        if asked is not None and constant(asked, "") in (None, False):
            return
        if keyword(n, "max_entries") is None and keyword(n, "trace_alloc_max_entries") is None:
            started = started or n
    trains = any(isinstance(n, ast.Call) and method(n) == "backward" for n in file.nodes)
    if started is None or not trains:
        return
    s = next((s for s in file.statements if started in list(own(s))), None)
    yield finding(
        "memory-history-on",
        started,
        "the allocator writes down every allocation with its stack, without a limit, and nothing "
        "stops it",
        hint=s is not None and any(isinstance(i, ast.If) for i in file.places[s].ifs),
    )


CHECKS = (records,)
HINTS = (measured,)
