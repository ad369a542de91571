"""Hidden state carried with its graph.

severity: error
remedy: detach

Backward then goes through all earlier batches. Memory grows until it runs out.

Instead: Cut the graph between batches: `hidden = hidden.detach()`. For an LSTM:
`tuple(h.detach() for h in hidden)`.
"""

import ast
import re
from typing import Any, Iterator

from ..calls import grad_is_off, scope_of
from ..findings import Finding, finding
from ..flow import Scope, calls_module, in_order, module_classes, scopes, variables
from ..keeping import begun_outside, cleared_in, cut_anywhere
from ..names import FUNCTIONS, File, calls, key, method, targets, walk_here
from ..reasons import before_a_step, grad_turned_off, read_first, without_torch


def state_of_module(file: File) -> Iterator[Finding]:
    """y, self.hidden = self.rnn(x, self.hidden) in forward, never cut"""
    for name in module_classes(file):
        for function in [f for f in file.classes[name].body if isinstance(f, FUNCTIONS)]:
            if function.name not in ("forward", "training_step"):
                continue
            scope = scope_of(file, function)
            for s in scope.statements:
                if not isinstance(s, ast.Assign) or not isinstance(s.value, ast.Call):
                    continue
                if file.places[s].no_grad or not calls_module(s.value, scope):
                    continue
                given = {key(a) for a in s.value.args} | {key(k.value) for k in s.value.keywords}
                for k in [key(t) for t in targets(s)]:
                    if not k or not k.startswith("self.") or k not in given:
                        continue
                    if cleared_in(file.tree, k) or cut_anywhere(file, k):
                        continue
                    if begun_outside(file, k, s):
                        continue
                    yield finding(
                        "hidden-state-not-detached",
                        s,
                        "`%s` goes from one call of %s into the next with its graph: backward "
                        "reaches back to the first batch" % (k, function.name),
                        hint=not _trained_here(file),
                    )


def _trained_here(file: File) -> bool:
    """Is the module used in this file? The script that trains it may begin its state anew."""
    return any(
        isinstance(n, ast.Call)
        and method(n) in ("backward", "manual_backward", "fit")
        or isinstance(n, FUNCTIONS)
        and n.name == "training_step"
        for n in file.nodes
    )


_WARMS = re.compile(r"warm|burn_?in|prime|prefill|catch_?up", re.I)


_PIECES = re.compile(r"chunk|piece|segment|window|past|history|context", re.I)


def state_brought_up(file: File) -> Iterator[Finding]:
    """for piece in past.split(n): _, state = net(piece, state), with grad, outputs thrown away"""
    if "torch" not in file.modules:
        return
    for scope in scopes(file):
        for s in scope.statements:
            place = file.places[s]
            if not isinstance(s, ast.Assign) or not place.loops or place.no_grad:
                continue
            loop, goals = place.loops[-1], [key(t) for t in targets(s)]
            if len(goals) < 2 or goals[0] != "_" or not isinstance(loop, ast.For):
                continue
            if scope.has_backward(loop) or not calls_module(s.value, scope) or grad_is_off(scope):
                continue
            if not isinstance(s.value, ast.Call):
                continue
            given = {key(a) for a in s.value.args} | {key(k.value) for k in s.value.keywords}
            state = next((g for g in goals[1:] if g and g in given), None)
            named = [key(n) or "" for n in walk_here(loop.iter)] + [
                method(c) for c in walk_here(loop.iter) if isinstance(c, ast.Call)
            ]
            past = any(_PIECES.search(n) or n in ("split", "chunk") for n in named)
            warms = scope.function is not None and bool(_WARMS.search(scope.function.name))
            if state is None or not (past or warms) or _cut(loop, state, s):
                continue
            if _cut_later(scope, loop, state):
                continue
            yield finding(
                "hidden-state-not-detached",
                s,
                "the outputs are thrown away and `%s` is carried on with its graph: the "
                "activations of all pieces are held as long as it lives" % state,
            )


def _cut_later(scope: Scope, loop: ast.For, state: str) -> bool:
    """return state.detach() behind the loop still holds all pieces until then, but not after"""
    return any(
        method(c) in ("detach", "detach_") and state in variables(c)
        for s in scope.statements
        if s.lineno > loop.lineno
        for c in calls(s)
    )


def _detaches(loop: ast.For) -> bool:
    """for s in state: s.detach_()"""
    return any(
        method(c) == "detach_" and variables(c.func) & variables(loop.target)
        for s in in_order(loop.body)
        for c in calls(s)
    )


def _cut(loop: ast.For, name: str, origin: Any) -> bool:
    """Is the state detached or made anew anywhere in the loop?"""
    for s in in_order(loop.body):
        if s is origin:
            continue
        if any(key(t) == name for t in targets(s)):
            return True
        if isinstance(s, ast.For) and name in variables(s.iter) and _detaches(s):
            return True
        for call in calls(s) if isinstance(s, ast.Expr) else ():
            if method(call) in ("detach_", "repackage_hidden", "detach") and name in variables(
                call
            ):
                return True
    return any(
        method(c) in ("detach", "repackage_hidden") and name in variables(c)
        for c in calls(origin.value)
    )


CHECKS = (
    state_of_module,
    state_brought_up,
)
HINTS = (
    without_torch,
    before_a_step,
    read_first,
    grad_turned_off,
)
