"""Data that is loaded whole."""

import ast

from . import rules
from .flow import variables
from .names import FUNCTIONS, constant, key, keyword, method, walk_here


def _loaders(file):
    """Variables that are DataLoaders, by what they are made from."""
    return {
        key(t)
        for n in file.nodes
        if isinstance(n, ast.Assign)
        and isinstance(n.value, ast.Call)
        and (file.callee(n.value) or "").split(".")[-1] == "DataLoader"
        for t in n.targets
        if key(t)
    }


def _moves_to_gpu(node):
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr == "cuda":
        return True
    return (
        node.func.attr == "to"
        and bool(node.args)
        and (
            str(constant(node.args[0], "")).startswith("cuda")
            or "device" in (key(node.args[0]) or "").lower()
        )
    )


def whole_dataset(file):
    """list(loader), [x.to(device) for x in loader], TensorDataset(x.cuda())"""
    loaders = _loaders(file)
    for node in file.nodes:
        if isinstance(node, ast.Call):
            name = (file.callee(node) or "").split(".")[-1]
            if (
                isinstance(node.func, ast.Name)
                and node.func.id == "list"
                and len(node.args) == 1
                and key(node.args[0]) in loaders
            ):
                yield rules.finding(
                    "dataset-in-a-list",
                    node,
                    "`%s` is read to its end into a list: the whole dataset stays in memory"
                    % key(node.args[0]),
                )
            elif name == "TensorDataset" and any(_moves_to_gpu(a) for a in node.args):
                yield rules.finding(
                    "dataset-on-gpu",
                    node,
                    "the whole dataset is moved to the GPU: it takes room that activations need; move each batch instead",
                )
        elif isinstance(node, ast.ListComp) and len(node.generators) == 1:
            over = node.generators[0].iter
            if isinstance(over, ast.Call) and method(over) in ("enumerate", "tqdm") and over.args:
                over = over.args[0]
            if key(over) not in loaders:
                continue
            if any(_moves_to_gpu(n) for n in walk_here(node.elt)):
                yield rules.finding(
                    "dataset-on-gpu",
                    node,
                    "every batch of `%s` is moved to the GPU and kept in a list" % key(over),
                )
            elif _keeps_batch(node):
                yield rules.finding(
                    "dataset-in-a-list",
                    node,
                    "every batch of `%s` is kept in a list: the whole dataset stays in memory"
                    % key(over),
                )


def _keeps_batch(comprehension):
    """[b for b in loader], [b[0] for b in loader]: the data itself, not a number made of it."""
    element = comprehension.elt
    while isinstance(element, ast.Subscript):
        element = element.value
    names = variables(comprehension.generators[0].target)
    if isinstance(element, (ast.Tuple, ast.List)):
        return any(key(e) in names for e in element.elts)
    return key(element) in names


def lists_and_workers(file):
    """A Dataset that keeps Python objects, read by many workers"""
    keeping = {
        name: attribute
        for name, c in file.classes.items()
        for attribute in [_python_list(file, c)]
        if attribute
    }
    if not keeping:
        return
    made = {
        key(t): (file.callee(n.value) or "").split(".")[-1]
        for n in file.nodes
        if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call)
        for t in n.targets
        if key(t)
    }
    for call in file.nodes:
        if (
            not isinstance(call, ast.Call)
            or (file.callee(call) or "").split(".")[-1] != "DataLoader"
            or not call.args
        ):
            continue
        workers = constant(keyword(call, "num_workers"), 0)
        first = call.args[0]
        name = (
            (file.callee(first) or "").split(".")[-1]
            if isinstance(first, ast.Call)
            else made.get(key(first))
        )
        if name in keeping and isinstance(workers, int) and workers >= 4:
            yield rules.finding(
                "workers-copy-python-list",
                call,
                "`%s.%s` is a Python list: reading it changes reference counts, so each of the %d workers copies its pages over time"
                % (name, keeping[name], workers),
            )


def _python_list(file, c):
    """The attribute of a Dataset in which __init__ gathers Python objects one by one."""
    if not any(
        (file.dotted(b) or "").split(".")[-1] in ("Dataset", "IterableDataset") for b in c.bases
    ):
        return None
    for f in c.body:
        if not isinstance(f, FUNCTIONS) or f.name != "__init__":
            continue
        for node in walk_here(f):
            if (
                isinstance(node, ast.Call)
                and method(node) in ("append", "extend")
                and isinstance(node.func, ast.Attribute)
            ):
                name = key(node.func.value) or ""
                if name.startswith("self."):
                    return name.split(".", 1)[1]
            if isinstance(node, ast.Assign) and (
                isinstance(node.value, ast.ListComp)
                or isinstance(node.value, ast.Call)
                and (
                    method(node.value) in ("tolist", "readlines", "splitlines")
                    or (file.callee(node.value) or "") in ("json.load", "json.loads")
                )
            ):
                name = key(node.targets[0]) or ""
                if name.startswith("self."):
                    return name.split(".", 1)[1]
    return None
