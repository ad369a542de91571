"""Autocast around the whole loop.

severity: info
remedy: mixed_precision

autocast caches a half-precision copy of each weight it casts. The cache is freed when the
autocast block ends: here, after the last batch. Under no_grad, torch before 1.7.1 adds copies
with each batch.

Instead: Put `with autocast():` inside the loop, around the forward pass. Or use
`autocast(cache_enabled=False)`.
"""

import ast
import re
from typing import Any, Iterator, Optional, Set

from ..evaluation import BATCHES, ONE_BATCH
from ..findings import Finding, finding
from ..flow import Scope, calls_module, in_order, scopes
from ..names import LOOPS, constant, key, method, own, targets, text, walk, walk_here

# Work on the card that begins when the forward pass has ended.
_DECODES = re.compile(
    r"decod|beam|viterbi|crf|nms|suppress|post_?proc|search|generat|render|assign|matcher", re.I
)


# They turn numbers into text, on the host.
_OF_TEXT = re.compile(r"token|processor|vocab|^tok$|labels?_?enc", re.I)


_SEVERAL_MODELS = re.compile(r"(^|_|\.)(models|nets|networks|ensemble)$", re.I)


_TO_HOST = ("cpu", "numpy", "tolist", "item")


def around_loop(file: Any) -> Iterator[Finding]:
    """with autocast(): for batch in loader: model(batch)"""
    for scope in scopes(file):
        for s in scope.statements:
            if not isinstance(s, (ast.With, ast.AsyncWith)):
                continue
            if not any(_casts(file, i.context_expr) for i in s.items):
                continue
            for loop in in_order(s.body):
                if isinstance(loop, LOOPS) and over_batches(loop):
                    yield _around(scope, s, loop)
                    break


def _around(scope: Scope, s: ast.stmt, loop: Any) -> Finding:
    """The forward pass of an evaluation makes the same copies wherever autocast stands: the peak
    is the same, unless something else needs room while they are held.
    """
    besides = _besides(scope, loop)
    return finding(
        "autocast-around-loop",
        s,
        "one autocast stands around the whole loop: the half-precision copies of the weights that "
        "autocast caches are kept until the loop ends" + (", " + besides if besides else ""),
        hint=besides is None and not scope.has_backward(loop),
    )


def _besides(scope: Scope, loop: Any) -> Optional[str]:
    """What needs room in an evaluation while the copies of one model are held."""
    outputs: Set[Optional[str]] = set()
    for s in in_order(loop.body):
        if isinstance(s, ast.For) and _SEVERAL_MODELS.search(_iterated(s) or ""):
            return "those of all `%s` at once" % _iterated(s)
        for call in own(s):
            if isinstance(call, ast.Call) and _decodes(call, outputs):
                return "also while `%s` works on the outputs" % key(call.func)
        value = getattr(s, "value", None)
        if isinstance(s, ast.Assign) and value is not None and calls_module(value, scope):
            outputs |= {key(n) for t in targets(s) for n in walk(t)} - {None}
    return None


def _iterated(loop: ast.For) -> Optional[str]:
    """for model in models, for i, model in enumerate(models)"""
    over = loop.iter
    if isinstance(over, ast.Call) and method(over) == "enumerate" and over.args:
        over = over.args[0]
    return text(over)


def _decodes(call: ast.Call, outputs: Set[Optional[str]]) -> bool:
    """spans = tag_decode(scores, mask): scores lie on the card"""
    name = key(call.func) or ""
    return (
        bool(_DECODES.search(name))
        and not any(_OF_TEXT.search(part) for part in name.split("."))
        and any(_names(a) & outputs for a in call.args if not _to_host(a))
    )


def _names(node: ast.AST) -> Set[Optional[str]]:
    return {n.id for n in walk_here(node) if isinstance(n, ast.Name)}


def _to_host(node: ast.AST) -> bool:
    return any(isinstance(n, ast.Call) and method(n) in _TO_HOST for n in walk_here(node))


def _casts(file: Any, node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or not (file.callee(node) or "").endswith("autocast"):
        return False
    off = next((k.value for k in node.keywords if k.arg in ("enabled", "cache_enabled")), None)
    return constant(off) is not False


def over_batches(loop: ast.stmt) -> bool:
    if not isinstance(loop, ast.For):
        return False
    return any(
        BATCHES.search(key(n) or "") and not ONE_BATCH.search(key(n) or "")
        for n in walk_here(loop.iter)
        if isinstance(n, (ast.Name, ast.Attribute))
    )


CHECKS = (around_loop,)
