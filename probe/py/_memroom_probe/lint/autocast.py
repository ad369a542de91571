"""Copies of the weights that autocast keeps longer than a forward pass needs them."""

import ast
import re
from typing import Any, Dict, Iterator, Optional, Set

from . import rules
from .evaluation import over_batches
from .flow import Scope, calls_module, in_order, scopes
from .names import LOOPS, constant, key, method, own, targets, walk, walk_here

# Work on the card that begins when the forward pass has ended.
_DECODES = re.compile(
    r"decod|beam|viterbi|crf|nms|suppress|post_?proc|search|generat|render|assign|matcher", re.I
)
# They turn numbers into text, on the host.
_OF_TEXT = re.compile(r"token|processor|vocab|^tok$|labels?_?enc", re.I)
_SEVERAL_MODELS = re.compile(r"(^|_|\.)(models|nets|networks|ensemble)$", re.I)
_TO_HOST = ("cpu", "numpy", "tolist", "item")


def around_loop(file: Any) -> Iterator[Dict[str, Any]]:
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


def _around(scope: Scope, s: ast.stmt, loop: Any) -> Dict[str, Any]:
    """The forward pass of an evaluation makes the same copies wherever autocast stands: the peak
    is the same, unless something else needs room while they are held.
    """
    besides = _besides(scope, loop)
    return rules.finding(
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
    return key(over)


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
