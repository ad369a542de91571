"""Retry while the exception is alive.

severity: warning

Inside the except block the exception is alive. It holds the frames of the failed call, so their
tensors cannot be freed, and empty_cache() finds nothing to return.

Instead: Only note the failure in the handler (`failed = True`). Retry after the except block
has ended. In a notebook the last traceback (sys.last_traceback) holds it too.
"""

import ast
import re
from typing import Any, Iterator, Set

from ..findings import Finding, finding
from ..flow import in_order
from ..names import FUNCTIONS, LOOPS, File, calls, key, method, own, walk


def exceptions(file: File) -> Iterator[Finding]:
    """A retry inside the handler"""
    if not file.uses_torch or "torch" not in file.modules:
        return
    for node in file.nodes:
        if not isinstance(node, ast.Try):
            continue
        tried = {f for f in _work(node.body) if not _plain(file, f)} | _itself(file, node)
        for handler in node.handlers:
            if not _catches_memory(file, handler):
                continue
            again = next(
                (
                    c
                    for s in in_order(handler.body)
                    for c in own(s)
                    if isinstance(c, ast.Call) and key(c.func) in tried
                ),
                None,
            )
            if again is not None:
                yield finding(
                    "retry-in-handler",
                    handler,
                    "`%s` is called again inside the except block: the exception still holds the "
                    "failed call's frames, and their tensors stay alive" % key(again.func),
                )


def _plain(file: File, name: str) -> bool:
    """def now(): return datetime.now().isoformat(): it only asks modules of the standard library"""
    f = file.functions.get((name or "").split(".")[-1])
    if f is None:
        return False
    asked = [n for s in f.body for n in walk(s) if isinstance(n, (ast.Call, *LOOPS))]
    return all(
        isinstance(n, ast.Call)
        and (
            method(n) in _HARMLESS
            or (file.callee(n) or "").split(".")[0] in _STANDARD
            or isinstance(n.func, ast.Attribute)
            and isinstance(n.func.value, (ast.Call, ast.Constant, ast.JoinedStr))
        )
        for n in asked
    )


_STANDARD = frozenset("datetime time os json math random pathlib sys platform uuid psutil".split())


def _itself(file: File, node: ast.Try) -> Set[Any]:
    """The function that the try block makes up, as it is called: return self.run(batch)"""
    for f in file.nodes:
        if isinstance(f, FUNCTIONS) and any(s is node for s in f.body):
            works = any(True for s in in_order(node.body) for _ in calls(s))
            owner = "self." if file.places[f].klass is not None else ""
            return {owner + f.name} if works else set()
    return set()


def _work(body: Any) -> Set[Any]:
    """Functions called in the try block that may allocate: step(batch), self.run(batch)."""
    return {
        key(c.func)
        for s in in_order(body)
        for c in own(s)
        if isinstance(c, ast.Call)
        and (isinstance(c.func, ast.Name) or (key(c.func) or "").startswith("self."))
        and method(c) not in _HARMLESS
        and not _TELLS.search(method(c))
        and not _CLEANS.search(method(c))
    }


# self.optimizer.zero_grad(), free_memory(): they tidy up after the failure
_CLEANS = re.compile(
    r"clean|clear|empty|free|release|zero|collect|reset|delete|close|gc|memory", re.I
)


# print_verbose(), self._log_results(): they tell of the failure, they do not try again
_TELLS = re.compile(
    r"print|log|warn|report|notify|write|save|dump|debug|info|error|message|time|stamp|stats$|usage|"
    r"(^|_)now(_|$)|elapsed|^get_|status|summary|alert|exit|abort",
    re.I,
)


_HARMLESS = frozenset(
    """print len str int float range format open list dict tuple isinstance getattr hasattr setattr
    sum min max round zip enumerate sorted type super log""".split()
)


def _catches_memory(file: File, handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return False
    names = [
        (file.dotted(t) or "").split(".")[-1]
        for t in (handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type])
    ]
    if "OutOfMemoryError" in names:
        return True
    # RuntimeError is also raised for much else: the handler must speak of memory.
    return "RuntimeError" in names and any(
        isinstance(n, ast.Constant)
        and isinstance(n.value, str)
        and "memory" in n.value
        or isinstance(n, ast.Call)
        and method(n) == "empty_cache"
        for n in walk(handler)
    )


CHECKS = (exceptions,)
