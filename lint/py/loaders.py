"""Data loaders and what a dataset keeps of its samples."""

import ast
import re
from typing import Any, Iterator

from .flow import in_order
from .names import FUNCTIONS, File, Function, key, keyword, method, targets, walk, walk_here


def loader_calls(file: File) -> Iterator[ast.Call]:
    for call in file.nodes:
        if isinstance(call, ast.Call):
            last = (file.callee(call) or "").split(".")[-1]
            if last in ("DataLoader", "WebLoader", "StatefulDataLoader"):
                yield call


def workers_of(call: ast.Call) -> object:
    """The number of workers, "cpus" where it is the machine's cores, None where it is unknown, 0
    where there are none.
    """
    value = keyword(call, "num_workers")
    if value is None:
        return None if any(k.arg is None for k in call.keywords) else 0  # **common may hold it
    if isinstance(value, ast.Constant):
        return value.value
    if any(
        isinstance(n, ast.Call) and method(n) in ("cpu_count", "process_cpu_count")
        for n in walk_here(value)
    ):
        return "cpus"
    return None


# Tools that are made once for each kind of file, and notes about a sample: not the sample.
NOTES = re.compile(
    r"landmark|key_?point|box|label|annot|meta|info|len|size|shape|count|offset|handle|reader|"
    r"resampl|transform|tokeni[sz]er|lock",
    re.I,
)


def is_tool(value: Any) -> bool:
    """Resample(rate, new_rate), h5py.File(path): an object, whose class begins with a capital"""
    name = method(value) if isinstance(value, ast.Call) else ""
    return name[:1].isupper() and not name.isupper() and not name.endswith("Tensor")


def reads_sample(c: ast.ClassDef, f: Function, value: Any) -> bool:
    """Is what is kept read from a file here, or by a method that reads one?"""
    made = [value]
    names = {n.id for n in walk_here(value) if isinstance(n, ast.Name)}
    for s in in_order(f.body):
        if isinstance(s, ast.Assign) and any(key(t) in names for t in targets(s)):
            made.append(s.value)
    helpers = {g.name: g for g in c.body if isinstance(g, FUNCTIONS) and g is not f}
    todo = [n for m in made for n in walk_here(m) if isinstance(n, ast.Call)]
    inside = [
        n
        for call in todo
        for g in [helpers.get(method(call) or "")]
        if g is not None and (key(call.func) or "").startswith("self.")
        for n in walk(g)
        if isinstance(n, ast.Call)
    ]
    return any(_READS.search(method(n) or "") for n in todo + inside)


_READS = re.compile(r"read|load|open|decode|get_fdata|fetch|parse", re.I)
