"""Large object passed at every call.

severity: warning

An argument passed by value is put into the object store again for every call. Each copy stays
until its task has ended.

Instead: Put it once before the loop, `ref = ray.put(data)`, and pass `ref`.
"""

import ast
from typing import Any, Iterator, Set

from ..evidence import SMALL
from ..findings import finding
from ..flow import in_order
from ..names import File, constant, key, keyword, method, targets, walk_here
from ..ray_tune import many_numbers
from ..tensorflow import LOADING


def passed_again(file: File) -> Iterator[Any]:
    """f.remote(data) in a loop, with a large object that is the same every time"""
    if "ray" not in file.modules:
        return
    for call in file.nodes:
        if not isinstance(call, (ast.ListComp, ast.For)):
            continue
        inside = [call.elt] if isinstance(call, ast.ListComp) else call.body
        large = _loaded_anywhere(file)
        for part in inside:
            for n in walk_here(part):
                if isinstance(n, ast.Call) and (file.callee(n) or "") == "ray.put" and n.args:
                    if key(n.args[0]) in large and isinstance(call, ast.For):
                        yield finding(
                            "ray-passes-large-object",
                            n,
                            "`%s` is put into the object store in every round: each put is one "
                            "more copy" % key(n.args[0]),
                        )
                if not isinstance(n, ast.Call) or method(n) != "remote":
                    continue
                name = next((key(a) for a in n.args if key(a) in large), None)
                if name:
                    yield finding(
                        "ray-passes-large-object",
                        n,
                        "`%s` is passed by value at every call: Ray copies it into the object "
                        "store each time" % name,
                    )


def _giving_loaded(file: File) -> Set[Any]:
    """Functions of this file that read a whole file and give it back."""
    found: Set[Any] = set()
    for name, f in file.plain_functions.items():
        loaded: Set[Any] = set()
        for s in in_order(f.body):
            value = getattr(s, "value", None)
            if not isinstance(s, (ast.Assign, ast.Return)) or value is None:
                continue
            reads = any(
                isinstance(n, ast.Call)
                and (file.callee(n) or "") in LOADING
                and constant(keyword(n, "mmap_mode")) is None
                or isinstance(n, ast.Name)
                and n.id in loaded
                for n in walk_here(value)
            )
            if reads and isinstance(s, ast.Return):
                found.add(name)
            elif reads:
                loaded.update(k for k in map(key, targets(s)) if k)
    return found


def _loaded_anywhere(file: File) -> Set[Any]:
    """Variables that hold a loaded file or a large array, in any function."""
    found: Set[Any] = set()
    givers = _giving_loaded(file)
    for s in file.statements:
        if isinstance(s, ast.Assign) and isinstance(s.value, ast.Call):
            name = file.callee(s.value) or ""
            if name in givers:
                found.update(k for k in map(key, targets(s)) if k and not SMALL.search(k))
            if (
                name in LOADING + ("torch.load", "datasets.load_dataset")
                or name.endswith(".from_pretrained")
                and "Model" in name
                or many_numbers(name, s.value)
            ):
                found.update(k for k in map(key, targets(s)) if k)
    return found


CHECKS = (passed_again,)
