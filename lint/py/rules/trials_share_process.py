"""Trials that share a process.

severity: warning

A trial's model, optimizer state and trainer refer to each other in cycles. They are freed only
when Python's garbage collector runs, often after the next trial has allocated its own.

Instead: End each trial with `del model, trainer; gc.collect(); torch.cuda.empty_cache()`, use
study.optimize(..., gc_after_trial=True), or run each trial in its own process.
"""

import ast
from typing import Iterator

from ..findings import Finding, finding
from ..names import File, constant, key, keyword, walk_here


def model_search(file: File) -> Iterator[Finding]:
    """Trials of a search in one process: Optuna objectives and hyperparameter_search"""
    for call in file.nodes:
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        if call.func.attr == "hyperparameter_search":
            backend = constant(keyword(call, "backend"), "optuna")
            if backend in ("optuna", "sigopt", "wandb"):
                yield finding(
                    "trials-share-process",
                    call,
                    "all trials run in one process: the model and the optimizer state of the "
                    "previous trial are still alive when model_init builds the next",
                )
        elif call.func.attr == "optimize" and "optuna" in file.modules and call.args:
            yield from _objective(file, call)


def _objective(file: File, call: ast.Call) -> Iterator[Finding]:
    if constant(keyword(call, "gc_after_trial")) is True:
        return
    function = file.functions.get(key(call.args[0]) or "")
    if function is None:
        return
    frees = any(
        isinstance(n, ast.Call) and (file.callee(n) or "") == "gc.collect" for n in file.nodes
    )
    if frees:
        return
    for node in sorted(
        (n for n in walk_here(function) if isinstance(n, ast.Call)), key=lambda n: n.lineno
    ):
        name = (file.callee(node) or "").split(".")[-1]
        if (
            name.endswith("Trainer")
            or name == "from_pretrained"
            and "AutoModel" in (file.callee(node) or "")
        ):
            whose = (file.callee(node) or "").split(".")[0]
            yield finding(
                "trials-share-process",
                node,
                "every trial builds a model in the same process, and a Trainer's reference cycles "
                "keep the previous trial's model alive until Python collects them",
                hint=whose not in ("transformers", "lightning", "pytorch_lightning", "trl"),
            )
            return


CHECKS = (model_search,)
