"""Predict() called in a loop.

severity: info

predict() is made for many samples at once. Each call sets up a pipeline, and in some versions
part of it stays in memory.

Instead: Call the model itself, `model(x, training=False)`, or predict_on_batch(x), or predict()
once for all samples.
"""

import ast
import re
from typing import Any, Iterator

from .. import evidence
from ..findings import Finding, finding
from ..flow import in_order
from ..names import File, key, method, own, targets, walk, walk_here
from ..tensorflow import uses

# Models of scikit-learn and the like: they have a predict() too.
_OTHERS = re.compile(r"k_?means|knn|svm|svc|forest|gmm|xgb|lgb|sklearn|regress|linear|tree", re.I)


def _predicts_itself(file: File, owner: str) -> bool:
    """A class of this file whose predict() does something else than calling Keras'."""
    name = file.class_of(owner)
    f = file.method_of(name, "predict") if name is not None else None
    return f is not None and not any(
        isinstance(n, ast.Call) and method(n) == "predict" for n in walk(f)
    )


_NOT_KERAS = frozenset(
    "sklearn xgboost lightgbm catboost torch stable_baselines3 stable_baselines ultralytics joblib "
    "pickle statsmodels gensim hmmlearn surprise prophet".split()
)


def _uses_target(loop: ast.For) -> bool:
    """Is each call another sample? Else it is a measurement."""
    names = {n.id for n in walk(loop.target) if isinstance(n, ast.Name)}
    return any(
        isinstance(n, ast.Name) and n.id in names and isinstance(n.ctx, ast.Load)
        for s in loop.body
        for n in walk(s)
    )


def _changes(loop: ast.For, call: ast.Call) -> bool:
    """Is what predict() gets made in the loop? The same picture again and again is a measurement."""
    made = {
        n.id
        for s in [loop, *in_order(loop.body)]
        for t in targets(s)
        for n in walk(t)
        if isinstance(n, ast.Name)
    }
    given = [n for a in call.args for n in walk(a)]
    return any(
        isinstance(n, ast.Name) and n.id in made or isinstance(n, (ast.Call, ast.Attribute))
        for n in given
    )


def _follows(loop: ast.For, call: ast.Call) -> bool:
    """Is what predict() gets made of what the loop goes through? A setting that changes from round
    to round is no sample.
    """
    fed = {n.id for n in walk(loop.target) if isinstance(n, ast.Name)}
    for _ in range(3):
        for s in in_order(loop.body):
            if any(isinstance(n, ast.Name) and n.id in fed for n in walk_here(s)):
                fed |= {n.id for t in targets(s) for n in walk(t) if isinstance(n, ast.Name)}
    given = {n.id for a in call.args for n in walk(a) if isinstance(n, ast.Name)}
    steps = any(isinstance(n, ast.Call) and method(n) == "step" for n in walk(loop))
    return bool(given & fed) or steps


def _many_calls(file: File, loops: Any) -> bool:
    """Hundreds of calls are written down, or an agent acts: a hundred rounds and more."""
    if any(isinstance(n, ast.Call) and method(n) == "input" for n in walk(loops[-1])):
        return False  # somebody types
    steps = any(
        isinstance(n, ast.Call) and method(n) == "step" and isinstance(n.func, ast.Attribute)
        for n in walk(loops[-1])
    )
    return evidence.rounds_around(file, None, loops) >= evidence.MANY or (steps and len(loops) > 1)


def _shows(loop: ast.For) -> bool:
    """img.show(), plt.show(), input(): as many rounds as somebody looks at"""
    return any(
        isinstance(n, ast.Call) and method(n) in ("show", "waitKey", "input") for n in walk(loop)
    )


def predict_in_loop(file: File) -> Iterator[Finding]:
    """model.predict() once a sample"""
    if not uses(file):
        return
    for s in file.statements:
        place = file.places[s]
        if not place.loops or not isinstance(s, (ast.Assign, ast.Expr)):
            continue
        loop = place.loops[-1]
        if isinstance(loop, ast.While) or not isinstance(loop, ast.For):
            continue
        for call in [n for n in own(s) if isinstance(n, ast.Call)]:
            owner = key(call.func.value) if isinstance(call.func, ast.Attribute) else None
            if (
                method(call) == "predict"
                and owner
                and "model" in owner.lower()
                and not _OTHERS.search(owner)
                and key(loop.target) not in (owner, None)
                and not any(key(t) == owner for i in in_order(loop.body) for t in targets(i))
                and not _predicts_itself(file, owner)
                and (file.made_from(owner) or "").split(".")[0] not in _NOT_KERAS
                and not evidence.few_rounds(loop, file)
            ):
                yield finding(
                    "keras-predict-in-loop",
                    s,
                    "predict() builds a data pipeline at every call, and what it leaves behind "
                    "grows with the number of calls",
                    hint=not _many_calls(file, place.loops)
                    or not _uses_target(loop)
                    or not _changes(loop, call)
                    or not _follows(loop, call)
                    or _shows(loop),
                )
                return


CHECKS = (predict_in_loop,)
