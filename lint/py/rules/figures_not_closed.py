"""Figures that are never closed.

severity: warning

pyplot keeps a reference to every figure until it is closed. Each holds its pixels and its data.

Instead: Call `plt.close(fig)` after saving it.
"""

import ast
import re
from typing import Any, Iterator

from .. import evidence
from ..devices import called_while_training
from ..findings import Finding, finding
from ..flow import Scope, in_order, scopes
from ..names import FUNCTIONS, File, constant, keyword, method, own, walk


def figures(file: File) -> Iterator[Finding]:
    """plt.figure() in a loop that never closes one"""
    for scope in scopes(file):
        for s in scope.statements:
            place = file.places.get(s)
            if not place or not place.loops or not isinstance(s, (ast.Assign, ast.Expr)):
                continue
            for call in [n for n in own(s) if isinstance(n, ast.Call)]:
                if (file.callee(call) or "") not in (
                    "matplotlib.pyplot.figure",
                    "matplotlib.pyplot.subplots",
                ):
                    continue
                if call.args and (file.callee(call) or "").endswith("figure"):
                    continue  # plt.figure(1) opens the same one again
                if keyword(call, "num") is not None or _closes(file, place.loops[0]):
                    continue
                if not any(_trains(scope, loop) for loop in place.loops):
                    continue  # a few figures of a result are nobody's trouble
                if evidence.rounds_around(file, s) < evidence.FEW:
                    continue
                yield finding(
                    "figures-not-closed",
                    s,
                    "every round of the loop opens a figure and none is closed: pyplot keeps them all",
                    hint=any(_shown_by_helper(file, x) for x in file.places[s].loops[-1:]),
                )


def figures_of_helper(file: File) -> Iterator[Finding]:
    """def save_grid(images): plt.subplots(); savefig(), called again and again, never closed"""
    for scope in scopes(file):
        function = scope.function
        if function is None or _closes(file, function) or not called_while_training(file, function):
            continue
        for s in scope.statements:
            for call in [n for n in own(s) if isinstance(n, ast.Call)]:
                if (file.callee(call) or "") not in (
                    "matplotlib.pyplot.figure",
                    "matplotlib.pyplot.subplots",
                ):
                    continue
                if file.places[s].loops or keyword(call, "num") is not None:
                    continue  # figures() speaks of loops
                if call.args and (file.callee(call) or "").endswith("figure"):
                    continue
                yield finding(
                    "figures-not-closed",
                    s,
                    "every call of `%s` opens a figure and none is closed: pyplot keeps them all"
                    % function.name,
                    hint=_of_folds(file, function.name),
                )
                return


def _shown_by_helper(file: File, loop: ast.stmt) -> bool:
    """add_plot(writer, "plot", i): it closes the figure it writes, or it may, in another file"""
    helpers = {
        n.func.id for n in walk(loop) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
    }
    return any(
        _closes(file, file.functions[name])
        if name in file.functions
        else re.search(r"plot|fig", name, re.I)
        for name in helpers
    )


def _of_folds(file: File, name: str) -> bool:
    """for train, test in folds.split(x): plot(history): as many as there are folds"""
    around = [
        file.places[s].loops
        for s in file.statements
        if not isinstance(s, FUNCTIONS)
        for n in own(s)
        if isinstance(n, ast.Call) and method(n) == name
    ]
    return bool(around) and all(
        all(evidence.few_rounds(x, file) or _splits(x) for x in loops) for loops in around
    )


def _splits(loop: Any) -> bool:
    return isinstance(loop, ast.For) and any(
        isinstance(n, ast.Call) and method(n) == "split" for n in walk(loop.iter)
    )


def _trains(scope: Scope, loop: Any) -> bool:
    return scope.has_backward(loop) or any(
        isinstance(n, ast.Call)
        and re.match(r"(fit|train)(_|$)|.*_step$", method(n))
        and method(n) not in ("fit_transform", "fit_predict", "train_test_split")
        for s in in_order(loop.body)
        for n in own(s)
    )


def _closes(file: File, loop: ast.stmt) -> bool:
    return any(
        isinstance(n, ast.Call)
        and (
            method(n) in ("close", "clf", "show", "closeall", "savefig_close")
            # TensorBoard's writer closes the figure unless it is told not to.
            or method(n) == "add_figure"
            and constant(keyword(n, "close")) is not False
        )
        for n in walk(loop)
    ) or any(isinstance(n, (ast.Return, ast.Yield)) for n in walk(loop))


CHECKS = (
    figures,
    figures_of_helper,
)
