"""Lightning keeps every step's result.

severity: warning
remedy: detach

Before Lightning 2, training_epoch_end is given what every training_step returned, so all of it
stays on the card until the epoch ends.

Instead: Return only the loss from training_step, and log or detach the rest (`.item()`,
`.detach().cpu()`). In Lightning 2 use on_train_epoch_end.
"""

import ast
from typing import Any, Iterator, Optional

from ..findings import Finding, finding
from ..flow import in_order, module_classes
from ..names import FUNCTIONS, File, Function, constant, key, method, walk


def lightning_outputs(file: File) -> Iterator[Finding]:
    """training_step returns tensors and training_epoch_end gets them all"""
    for name in module_classes(file):
        c = file.classes[name]
        by_name = {f.name: f for f in c.body if isinstance(f, FUNCTIONS)}
        if "training_epoch_end" not in by_name or "training_step" not in by_name:
            continue
        hit = _returns_more(by_name, by_name["training_step"], 2)
        if hit is not None:
            yield finding(
                "lightning-keeps-step-outputs",
                hit,
                "training_epoch_end makes Lightning keep what every training_step returns, "
                "until the epoch ends",
            )


def _returns_more(by_name: Any, function: Function, depth: int) -> Optional[ast.stmt]:
    """The return of a dict that holds a tensor beside the loss."""
    for s in in_order(function.body):
        if not isinstance(s, ast.Return) or s.value is None:
            continue
        if isinstance(s.value, ast.Dict):
            for k, v in zip(s.value.keys, s.value.values):
                if constant(k, "?") in ("loss", "log", "progress_bar"):
                    continue
                if _may_be_tensor(v) and not _plain_number(function, v):
                    return s
        if isinstance(s.value, ast.Call) and depth:
            called = key(s.value.func) or ""
            inner = "forward" if called == "self" else called.replace("self.", "", 1)
            if inner in by_name:
                hit = _returns_more(by_name, by_name[inner], depth - 1)
                if hit is not None:
                    return hit
    return None


def _plain_number(function: Function, value: ast.expr) -> bool:
    """took = time.perf_counter() - began; rate = float(x); n = len(batch)"""
    made = [
        n.value
        for n in walk(function)
        if isinstance(n, ast.Assign) and any(key(t) == key(value) for t in n.targets)
    ]
    return bool(made) and all(
        isinstance(m, ast.Constant)
        or isinstance(m, ast.Call)
        and method(m) in ("float", "int", "len", "item", "time", "perf_counter")
        or isinstance(m, ast.BinOp)
        and any(isinstance(n, ast.Call) and method(n) in ("time", "perf_counter") for n in walk(m))
        for m in made
    )


def _may_be_tensor(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        return method(value) not in ("item", "detach", "cpu", "len", "int", "float", "tolist")
    return isinstance(value, (ast.Name, ast.Attribute, ast.Subscript, ast.BinOp))


CHECKS = (lightning_outputs,)
