"""Trials that use a card and ask for none.

severity: warning
remedy: trial_resources

Ray sets CUDA_VISIBLE_DEVICES to nothing for a trial without "gpu". The trial fails, or trains on
the CPU and in host memory, as many at once as there are cores.

Instead: Ask for it: `resources_per_trial={"cpu": 4, "gpu": 1}`, or a part of a card, "gpu": 0.5,
where two trials fit one.
"""

import ast
import re
from typing import Any, Dict, Iterator, Optional, Tuple

from ..findings import Finding, finding
from ..names import constant, key, method, walk
from ..ray_tune import function_of, launches, values_of

_CARD = re.compile(r"^(cuda(:\d+)?|/(device:)?GPU:\d+|/gpu:\d+)$")


def card_not_asked_for(file: Any) -> Iterator[Finding]:
    """A trial that computes on the card, and resources without "gpu" """
    given: Optional[ast.expr]
    for call, trainable, given in launches(file):
        if isinstance(given, ast.Name):
            given = next(iter(values_of(file, given.id, function_of(file, call))), None)
        asked = _asked_resources(given)
        if asked is None or any(k in ("gpu", "GPU") and v != 0 for k, v in asked.items()):
            continue
        certain, perhaps = _uses_card(file, trainable)
        if certain or perhaps:
            yield finding(
                "ray-trial-without-gpu",
                call,
                'a trial computes on the card, and its resources have no "gpu": Ray hides the '
                "cards from it%s" % ("" if certain else ", and it trains on the CPU"),
                hint=not certain,
            )


def _asked_resources(given: Any) -> Optional[Dict[Any, Any]]:
    """{"cpu": 4} and dict(cpu=4) as a dictionary; None for anything that is not written out"""
    if isinstance(given, ast.Dict) and all(isinstance(k, ast.Constant) for k in given.keys):
        return {constant(k): constant(v, 1) for k, v in zip(given.keys, given.values)}
    if isinstance(given, ast.Call) and method(given) == "dict" and not given.args:
        return {k.arg: constant(k.value, 1) for k in given.keywords}
    return None


def _uses_card(file: Any, trainable: Any) -> Tuple[bool, bool]:
    """(for certain, where there is one) of what the trainable and its helpers do"""
    around = function_of(file, trainable)
    todo = [(n, around) for n in walk(trainable)] if trainable is not None else []
    seen, certain, perhaps = set(), False, False
    while todo:
        node, around = todo.pop()
        name = key(node) if isinstance(node, (ast.Name, ast.Attribute)) else None
        if name is None or (name, around) in seen:
            continue
        seen.add((name, around))
        code = file.functions.get(name) or file.classes.get(name)
        values = [code] if code is not None else values_of(file, name, around)
        for value in values:
            guarded = {
                x
                for n in walk(value)
                if isinstance(n, (ast.IfExp, ast.If))
                and any(
                    isinstance(c, ast.Call) and method(c) == "is_available" for c in walk(n.test)
                )
                for x in walk(n)
            }
            for n in walk(value):
                if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load):
                    todo.append((n, code or around))
                moves = isinstance(n, ast.Call) and method(n) == "cuda" and not n.args
                names = isinstance(n, ast.Constant) and _CARD.match(str(n.value))
                if moves or names:
                    certain, perhaps = certain or n not in guarded, True
    return certain, perhaps


CHECKS = (card_not_asked_for,)
