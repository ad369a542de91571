"""Loader workers that use the card.

severity: warning
remedy: dataloader_workers

A process that touches the card gets a CUDA context. With many workers the contexts, and the
batches they hold, take gigabytes.

Instead: Return CPU tensors from the dataset and move each batch in the training loop.
pin_memory=True makes that fast.
"""

import ast
from typing import Iterator

from ..findings import Finding, finding
from ..names import FUNCTIONS, File, constant, key, keyword, walk_here


def card_in_workers(file: File) -> Iterator[Finding]:
    """x.cuda() in __getitem__ or collate_fn, with workers"""
    loads = [
        n
        for n in file.nodes
        if isinstance(n, ast.Call) and (file.callee(n) or "").split(".")[-1] == "DataLoader"
    ]
    parallel = [n for n in loads if constant(keyword(n, "num_workers"), 1) not in (0, None)]
    parallel = [n for n in parallel if keyword(n, "num_workers") is not None]
    if not parallel:
        return
    functions = [
        f
        for c in file.classes.values()
        if any((file.dotted(b) or "").split(".")[-1].endswith("Dataset") for b in c.bases)
        for f in c.body
        if isinstance(f, FUNCTIONS) and f.name == "__getitem__"
    ]
    for n in parallel:
        collate = file.plain_functions.get(key(keyword(n, "collate_fn")) or "")
        if collate is not None:
            functions.append(collate)
    for f in functions:
        for n in walk_here(f):
            if _certainly_gpu(n):
                yield finding(
                    "card-in-workers",
                    n,
                    "`%s` runs in the workers: each worker process gets a CUDA context of its own, "
                    "some hundred MiB of the card" % f.name,
                )
                break


def _certainly_gpu(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr == "cuda":
        return True
    return (
        node.func.attr == "to"
        and bool(node.args)
        and str(constant(node.args[0], "")).startswith("cuda")
    )


CHECKS = (card_in_workers,)
