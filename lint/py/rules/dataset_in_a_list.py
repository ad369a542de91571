"""Dataset read into a list.

severity: warning
remedy: stream_data

A loader yields batches so that only a few exist at a time. A list holds them all.

Instead: Iterate over the loader, or cache on disk.
"""

import ast
import re
from typing import Any, Dict, Iterator, Set

from ..data import _loaders, gathers_on_gpu, hub_datasets, iterated, trains
from ..findings import Finding, finding
from ..flow import variables
from ..names import File, constant, key, keyword, own, targets, walk_here


def kept_values(file: File) -> Set[ast.AST]:
    """What statements keep: not an assertion about it, not a call that throws it away."""
    return {
        n
        for s in file.statements
        if isinstance(s, (ast.Assign, ast.AnnAssign, ast.Return)) and s.value is not None
        for n in walk_here(s.value)
    }


def read_to_the_end(file: File) -> Iterator[Finding]:
    """list(loader), [x for x in loader]"""
    loaders = _loaders(file)
    streams = loaders | hub_datasets(file)
    kept = kept_values(file)
    # list(loader)[3]: the rest of the list is gone at once
    picked = {n.value for n in file.nodes if isinstance(n, ast.Subscript)}
    for node in file.nodes:
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "list"
            and len(node.args) == 1
            and key(node.args[0]) in streams
            and node in kept
            and node not in picked
            and not _set_to_another(file, node)
        ):
            yield finding(
                "dataset-in-a-list",
                node,
                "`%s` is read to its end into a list: the whole dataset stays in memory"
                % key(node.args[0]),
                hint=key(node.args[0]) in _test_splits(file) and not trains(file),
            )
        elif isinstance(node, ast.ListComp) and len(node.generators) == 1:
            over = iterated(node.generators[0].iter)
            if key(over) in streams and not gathers_on_gpu(file, node) and _keeps_batch(node):
                yield finding(
                    "dataset-in-a-list",
                    node,
                    "every batch of `%s` is kept in a list: the whole dataset stays in memory"
                    % key(over),
                    hint=key(over) not in loaders or not trains(file),
                )


def _set_to_another(file: File, call: ast.Call) -> bool:
    """ds = split_of(name) in this function, and ds = load_dataset(...) in another"""
    name = key(call.args[0])
    here = [s for s in file.statements if any(n is call for n in own(s))]
    function = file.places[here[0]].function if here else None
    values = [
        s.value
        for s in file.statements
        if isinstance(s, ast.Assign)
        and file.places[s].function is function
        and any(key(t) == name for t in targets(s))
    ]
    return bool(values) and not any(
        isinstance(v, ast.Call)
        and (file.callee(v) or "").split(".")[-1] in ("load_dataset", "DataLoader")
        for v in values
    )


def _test_splits(file: File) -> Set[str]:
    """Variables that are splits for tests, wherever they are set: small beside the others."""
    splits: Dict[Any, Any] = {}
    for n in file.nodes:
        if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call):
            if (file.callee(n.value) or "") == "datasets.load_dataset":
                split = str(constant(keyword(n.value, "split"), ""))
                for t in n.targets:
                    splits.setdefault(key(t), []).append(split)
    return {k for k, v in splits.items() if all(re.search("test|valid|dev", s) for s in v)}


def _keeps_batch(comprehension: ast.ListComp) -> bool:
    """[b for b in loader], [b[0] for b in loader]: the data itself, not a number made of it."""
    element = comprehension.elt
    while isinstance(element, ast.Subscript):
        element = element.value
    names = variables(comprehension.generators[0].target)
    if isinstance(element, (ast.Tuple, ast.List)):
        return any(key(e) in names for e in element.elts)
    return key(element) in names


CHECKS = (read_to_the_end,)
