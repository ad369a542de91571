"""Loader that keeps what it handed out.

severity: warning
remedy: stream_data

A loader hands out a piece at a time so that the last one can be freed. What it also puts into a
list or dict of its own stays: after an epoch, the whole data set.

Instead: Keep the piece in a local variable, or bound what is kept (`collections.deque(maxlen=2)`).
"""

import ast
import re
from typing import Any, Iterator

from ..findings import Finding, finding
from ..flow import bounded_containers, in_order
from ..loaders import NOTES, is_tool
from ..names import FUNCTIONS, key, method, targets, walk, walk_here

_FROM_FILES = re.compile(r"^(load|loadtxt|fromfile|imread|read_\w+|read|open|decode\w*)$")


def buffers_kept(file: Any) -> Iterator[Finding]:
    """A loader of one's own that keeps each piece it hands out: self.buffers[f] = np.fromfile(f)"""
    bounded = bounded_containers(file)
    for c in file.classes.values():
        if any((file.dotted(b) or "").endswith("Dataset") for b in c.bases):
            continue  # whose samples the abstract run follows into the loader's workers
        methods = [f for f in c.body if isinstance(f, FUNCTIONS)]
        for f in methods:
            yields = any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in walk_here(f))
            if not (f.name == "__next__" or f.name == "__iter__" and yields or yields):
                continue
            for s in in_order(f.body):
                name, value = _kept_piece(s)
                if not name or not name.startswith("self."):
                    continue
                if not _of_file(f, value) and not _handed_out(file, f, value):
                    continue
                if _evicts(c, name) or _limited(c, name) or NOTES.search(name):
                    continue
                if name in bounded:
                    continue
                if any(
                    key(t) == name and not isinstance(t, ast.Subscript)
                    for g in methods
                    if g.name != "__init__"
                    for x in in_order(g.body)
                    for t in targets(x)
                ):
                    continue  # made anew somewhere
                yield finding(
                    "loader-keeps-buffers",
                    s,
                    "`%s` keeps every piece that `%s` has handed out: host memory grows until the "
                    "loader is gone" % (name, c.name),
                )
                break


def _kept_piece(s: ast.stmt) -> Any:
    if isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Subscript):
        if not isinstance(s.targets[0].slice, ast.Constant):
            return key(s.targets[0].value), s.value
    if isinstance(s, ast.Expr) and isinstance(s.value, ast.Call):
        call = s.value
        if method(call) == "append" and call.args and isinstance(call.func, ast.Attribute):
            return key(call.func.value), call.args[0]
    return None, None


def _of_file(f: Any, value: Any) -> bool:
    """Is this read from a file, here or through one variable?"""
    if any(isinstance(n, ast.Call) and _FROM_FILES.match(method(n)) for n in walk_here(value)):
        return not _is_small(value)
    name = key(value)
    return name is not None and any(
        isinstance(s, ast.Assign)
        and any(key(t) == name for t in s.targets)
        and any(
            isinstance(n, ast.Call) and _FROM_FILES.match(method(n)) for n in walk_here(s.value)
        )
        and not _is_small(s.value)
        for s in in_order(f.body)
    )


def _handed_out(file: Any, f: Any, value: Any) -> bool:
    """Is this an array that is made here, and yielded whole?"""
    name = key(value)
    made = any(
        isinstance(n, ast.Call) and (file.callee(n) or "").startswith(("numpy.", "torch."))
        for s in in_order(f.body)
        if isinstance(s, ast.Assign) and any(key(t) == name for t in s.targets)
        for n in walk_here(s.value)
    )
    return made and any(
        isinstance(n, ast.Name) and n.id == name
        for y in walk_here(f)
        if isinstance(y, ast.Yield) and y.value is not None and not _is_small(y.value)
        for n in walk_here(y.value)
    )


def _is_small(value: Any) -> bool:
    """image.shape, len(text), counts[i] + 1: a few numbers, no sample"""
    return is_tool(value) or any(
        isinstance(n, ast.Attribute)
        and n.attr in ("shape", "size", "ndim", "dtype")
        or isinstance(n, ast.Call)
        and method(n) in ("len", "size", "int", "float", "sum", "mean", "max", "min")
        for n in walk_here(value)
    )


def _limited(c: Any, name: str) -> bool:
    """if len(self.cache) < self.cache_size: the cache has a bound"""
    return any(
        isinstance(n, ast.Compare)
        and any(
            isinstance(x, ast.Call) and method(x) == "len" and x.args and key(x.args[0]) == name
            for x in [n.left, *n.comparators]
        )
        and any(isinstance(o, (ast.Lt, ast.LtE, ast.Gt, ast.GtE)) for o in n.ops)
        for n in walk(c)
    )


def _evicts(c: Any, name: str) -> bool:
    return any(
        isinstance(n, ast.Call)
        and isinstance(n.func, ast.Attribute)
        and n.func.attr in ("pop", "popitem", "clear")
        and key(n.func.value) == name
        or isinstance(n, ast.Delete)
        and any(key(getattr(t, "value", t)) == name for t in n.targets)
        for n in walk(c)
    )


CHECKS = (buffers_kept,)
