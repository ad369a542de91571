"""Frozen model that builds a graph.

severity: warning
remedy: no_grad

eval() does not switch autograd off. The activations of a teacher or reference model are held
until backward, and its weights get gradients that no optimizer uses.

Instead: Call it under `with torch.no_grad():`, or freeze it once:
`teacher.requires_grad_(False)`.
"""

import ast
import re
from typing import Any, Iterator, Set

from ..evaluation import grad_off_for_good
from ..findings import Finding, finding
from ..flow import Scope, calls_module, in_order, scopes
from ..names import File, constant, key, method, own, targets, walk
from ..reasons import small_problem, without_torch

_FROZEN = re.compile(
    r"(^|_|\.)(teacher|ref|reference|frozen|perceptual|vgg|lpips)(_?(model|net|network|policy))?$",
    re.I,
)


def frozen_models(file: File) -> Iterator[Finding]:
    """teacher(x) in the training loop with its graph: a model that nothing updates"""
    if "torch" not in file.modules or grad_off_for_good(file) or _freezes(file):
        return
    idle = {k for k in _eval_only(file) if _FROZEN.search(k)} - _optimized(file)
    for scope in scopes(file):
        said = set()
        for s in scope.statements:
            place = file.places[s]
            if place.no_grad or not place.loops or not isinstance(s, ast.Assign):
                continue
            if not any(scope.has_backward(loop) for loop in place.loops):
                continue
            for node in own(s):
                name = calls_module(node, scope)
                if name not in idle or name in said or not isinstance(node, ast.Call):
                    continue
                if node.args + node.keywords:
                    if _of_a_trained(scope, place.loops[-1], node, idle):
                        continue
                    said.add(name)
                    yield finding(
                        "frozen-model-with-grad",
                        s,
                        "`%s` is only evaluated and no optimizer updates it, yet its forward pass "
                        "builds a graph: its activations are held until backward, and its weights "
                        "get gradients" % name,
                    )


def _of_a_trained(scope: Scope, loop: Any, call: ast.Call, idle: Any) -> bool:
    """fake = generator(x); features = vgg(fake): the gradients go through vgg to the generator"""
    given = {n.id for a in call.args for n in walk(a) if isinstance(n, ast.Name)}
    for s in in_order(loop.body):
        if isinstance(s, ast.Assign) and s.lineno < call.lineno:
            makers = {calls_module(n, scope) for n in own(s)} - {None}
            if makers - idle and any(key(t) in given for t in targets(s)):
                return True
    return False


def _freezes(file: File) -> bool:
    """Does the file switch gradients off for any parameter? Which ones is hard to tell."""
    return any(
        isinstance(n, ast.Attribute)
        and n.attr in ("requires_grad", "requires_grad_")
        or isinstance(n, ast.keyword)
        and n.arg == "requires_grad"
        or isinstance(n, ast.Name)
        and re.search(r"freeze|requires_grad", n.id)
        or isinstance(n, ast.Attribute)
        and "freeze" in n.attr
        for n in file.nodes
    )


def _eval_only(file: File) -> Set[str]:
    """Models that are put into eval mode here, and never into training mode."""
    evaluated: Set[Any] = set()
    trained: Set[Any] = set()
    for n in file.nodes:
        if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call):
            if method(n.value) == "eval" or any(
                isinstance(c, ast.Call) and method(c) == "eval" for c in _chain(n.value)
            ):
                evaluated.update(k for k in map(key, n.targets) if k)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute):
            if n.func.attr == "eval" and key(n.func.value):
                evaluated.add(key(n.func.value))
            elif n.func.attr == "train" and constant(n.args[0] if n.args else None) is not False:
                trained.add(key(n.func.value))
    return evaluated - trained


def _chain(call: Any) -> Iterator[ast.Call]:
    """The calls of build().to(device).eval(), outermost first."""
    while isinstance(call, ast.Call):
        yield call
        call = call.func.value if isinstance(call.func, ast.Attribute) else None


def _optimized(file: File) -> Set[str]:
    """Models whose parameters somebody asks for: an optimizer, an average, a clipping."""
    return {
        key(n.func.value)
        for n in file.nodes
        if isinstance(n, ast.Call)
        and method(n) in ("parameters", "named_parameters", "modules", "children")
        and isinstance(n.func, ast.Attribute)
    }


CHECKS = (frozen_models,)
HINTS = (
    without_torch,
    small_problem,
)
