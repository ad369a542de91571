"""Graph retained for nothing.

severity: warning
remedy: detach

retain_graph keeps the activations after backward. Those of the next iteration come on top.

Instead: Call `backward()` without it. If an error then names a second backward, some tensor is
carried over from an earlier iteration: detach that one.
"""

import ast
import re
from typing import Any, Iterator

from ..findings import Finding, finding
from ..flow import Scope, calls_module, in_order, innermost, is_model_name, variables
from ..keeping import cut_or_begun
from ..loops import backward_in_loops
from ..names import File, constant, key, keyword, method, own, targets, walk
from ..reasons import small_problem, without_torch


def retain_graph(file: File) -> Iterator[Finding]:
    """loss.backward(retain_graph=True) where nothing needs the graph again"""
    for scope, s, loop, call in backward_in_loops(file):
        if constant(keyword(call, "create_graph")) is True:
            continue
        if constant(keyword(call, "retain_graph")) is True and _is_last(scope, loop, call):
            yield finding(
                "retain-graph-in-loop",
                s,
                "the graph is kept after backward, and nothing behind it in the loop "
                "differentiates it again: it stays beside the next one",
                hint=_begun_before(scope, loop) or _carries_state(scope.file),
            )


_RESULT = re.compile(r"emb|feat|prob|value|entrop|adv|loss|logit|pred|out|hidden|state$|code", re.I)


def _of_a_model(call: ast.Call, s: ast.stmt) -> bool:
    """text = clip_model.encode_text(tokens), values, log_probs = self.gather(): results of a model
    by another name
    """
    if not isinstance(call.func, ast.Attribute):
        return False
    owner = key(call.func.value) or ""
    return (is_model_name(owner) or owner == "self") and any(
        _RESULT.search(key(t) or "") for t in targets(s)
    )


def _carries_state(file: File) -> bool:
    """y, self.hidden = self.rnn(x, self.hidden), cut once in several rounds: those between go back
    through this graph
    """
    return any(
        cut_or_begun(file, name, s)
        for s in file.statements
        if isinstance(s, ast.Assign) and isinstance(s.value, ast.Call)
        for name in {k for k in map(key, targets(s)) if k and "." in k}
        & {key(n) for a in s.value.args for n in walk(a) if isinstance(n, ast.Attribute)}
    )


def _begun_before(scope: Scope, loop: Any) -> bool:
    """Does the loop use a tensor that was computed before it? Then every round may need that part
    of the graph again.
    """
    used = {
        n.id
        for s in [*loop.body, getattr(loop, "iter", None)]
        if s is not None
        for n in walk(s)
        if isinstance(n, ast.Name)
    }
    for s in scope.statements:
        if not isinstance(s, ast.Assign) or s.lineno >= loop.lineno:
            continue
        made = any(
            isinstance(n, ast.Call)
            and (
                calls_module(n, scope) is not None
                or (scope.file.callee(n) or "").startswith("torch.nn.functional.")
                # actions = torch.cat(actions_of_agents): made of what other loops computed
                or (scope.file.callee(n) or "") in ("torch.cat", "torch.stack")
                or _of_a_model(n, s)
            )
            for n in own(s)
        )
        names = {key(t) for t in targets(s)} - set(scope.modules)
        if made and used & names:
            return True
    return False


def _is_last(scope: Any, loop: Any, call: Any) -> bool:
    """No other use of gradients follows in the loop, and the graph is the loop's own."""
    each = key(innermost(call.func.value)) if isinstance(call.func, ast.Attribute) else None
    if each and any(
        each in variables(t) for t in targets(loop)
    ):  # for one in losses: they share a graph
        return False
    uses = [
        node
        for s in in_order(loop.body)
        for node in own(s)
        if isinstance(node, ast.Call)
        and (
            method(node) in ("backward", "manual_backward")
            or (key(node.func) or "").endswith("autograd.grad")
        )
    ]
    if any(
        u is not call and (u.lineno, u.col_offset) > (call.lineno, call.col_offset) for u in uses
    ):
        return False
    if _used_behind(scope, loop) or _taken_from(loop, each):
        return False
    if isinstance(innermost(call.func.value), ast.Subscript):
        return False  # losses[i].backward(): made elsewhere, and they may share a graph
    if len(uses) > 1 and not all(
        constant(keyword(u, "retain_graph")) is True for u in uses if u is not call
    ):
        return False  # turns of a GAN: which graph is shared cannot be told
    # A loss made before the loop is differentiated again and again: then the graph is needed.
    made = {key(t) for s in in_order(loop.body) for t in targets(s)} | {
        key(t) for t in targets(loop)
    }
    receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
    name = key(innermost(receiver)) if receiver is not None else None
    return name is None or name in made or name.split(".")[0] in made


def _used_behind(scope: Any, loop: Any) -> bool:
    """Behind an inner loop the outer one differentiates again: perhaps what the inner one made."""
    around = scope.file.places[loop].loops
    return bool(around) and any(
        s.lineno > loop.end_lineno
        for s, _ in scope.differentiated
        if s in set(in_order(around[-1].body))
    )


def _taken_from(loop: Any, name: Any) -> bool:
    """loss = losses.pop(k), loss = losses[k]: made elsewhere, and they may share a graph"""
    return any(
        isinstance(s, ast.Assign)
        and any(key(t) == name for t in s.targets)
        and (
            isinstance(s.value, ast.Subscript)
            or isinstance(s.value, ast.Call)
            and method(s.value) in ("pop", "get")
        )
        for s in in_order(loop.body)
    )


CHECKS = (retain_graph,)
HINTS = (
    without_torch,
    small_problem,
)
