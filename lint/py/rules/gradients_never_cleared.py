"""Gradients that add up for ever.

severity: error
remedy: micro_batch

backward() adds to the gradients that are there. Never cleared, they are the sum over all steps:
no larger in bytes, but not the training that was meant.

Instead: Call `optimizer.zero_grad()` before `loss.backward()`, or after each
`optimizer.step()`.
"""

import ast
from typing import Any, Iterator

from ..accumulation import own_body
from ..evaluation import stops_early
from ..findings import Finding, finding
from ..flow import backward_values, in_order, scopes
from ..names import LOOPS, File, calls, key, method, targets
from ..reasons import without_torch


def never_cleared(file: File) -> Iterator[Finding]:
    """backward and optimizer.step in a loop, and nothing in the whole file that clears gradients"""
    if "torch" not in file.modules or _may_clear(file):
        return
    # Plain names only: what a class keeps in self, a parent class in another file may clear.
    made = {
        t.id
        for n in file.nodes
        if isinstance(n, ast.Assign)
        and isinstance(n.value, ast.Call)
        and _optimizer(file.callee(n.value) or "")
        for t in n.targets
        if isinstance(t, ast.Name)
    }
    for scope in scopes(file):
        # The inside of a loop, shown without it: what is around may clear the gradients.
        if scope.function is None and not any(isinstance(s, LOOPS) for s in scope.statements):
            for s in own_body(file.tree.body):
                if not isinstance(s, ast.Expr):
                    continue
                for call in calls(s):
                    if call is s.value and call.args and _is_free(file, _stepped(file, call)):
                        yield finding(
                            "gradients-never-cleared",
                            s,
                            "nothing here clears the gradients that `%s` steps on"
                            % _stepped(file, call),
                            hint=True,
                        )
        for loop in [s for s in scope.statements if isinstance(s, LOOPS)]:
            direct = list(own_body(loop.body))
            if not any(True for s in direct for _ in backward_values(s)):
                continue
            # An optimizer made in the loop is given fresh tensors, which have no gradients yet.
            fresh = {key(t) for s in in_order(loop.body) for t in targets(s)}
            for s in direct:
                for call in calls(s) if isinstance(s, ast.Expr) else ():
                    stepped = _stepped(file, call)
                    # A name that the file never sets is a fragment's: what made it may clear it.
                    fragment = stepped not in made and _is_free(file, stepped)
                    if stepped and (stepped in made or fragment) and stepped not in fresh:
                        yield finding(
                            "gradients-never-cleared",
                            s,
                            "`%s` steps on the sum of all gradients since the start: nothing in this file ever clears them"
                            % stepped,
                            hint=fragment or stops_early(file, s),
                        )


def _stepped(file: File, call: ast.Call) -> Any:
    """The optimizer of optimizer.step() and of scaler.step(optimizer)"""
    if method(call) != "step" or not isinstance(call.func, ast.Attribute) or call.keywords:
        return None
    owner = key(call.func.value)
    if not call.args:
        return owner
    scaler = (file.made_from(owner) or "").endswith("GradScaler") or "scaler" in (owner or "")
    return key(call.args[0]) if scaler and len(call.args) == 1 else None


def _is_free(file: File, name: Any) -> bool:
    """An optimizer that nothing in the file makes, takes or imports"""
    if not name or "opt" not in name or "." in name or name in file.aliases:
        return False
    return not any(
        isinstance(n, ast.arg)
        and n.arg == name
        or isinstance(n, ast.Name)
        and n.id == name
        and isinstance(n.ctx, ast.Store)
        for n in file.nodes
    )


def _optimizer(name: str) -> bool:
    """torch.optim.Adam, but neither a scheduler nor one that calls a closure."""
    return (
        name.startswith("torch.optim.")
        and name.split(".")[2][:1].isupper()
        and not name.endswith("LBFGS")
    )


# What an optimizer may be handed to without its gradients being cleared there; anything else might
# clear them.
_HARMLESS = ("step", "unscale_", "print", "len", "id", "type", "isinstance", "update")


def _may_clear(file: File) -> bool:
    """Something that clears gradients, or that is given a model or optimizer and might."""
    for node in file.nodes:
        if isinstance(node, (ast.Name, ast.Attribute)) and "zero_grad" in (
            node.attr if isinstance(node, ast.Attribute) else node.id
        ):
            return True
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and "zero_grad" in node.value
        ):
            return True
        if (
            isinstance(node, ast.Attribute)
            and node.attr == "grad"
            and isinstance(node.ctx, (ast.Store, ast.Del))
        ):
            return True
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Attribute)
            and node.value.attr == "grad"
            and node.attr in ("zero_", "fill_", "mul_", "copy_")
        ):
            return True
        if (
            isinstance(node, ast.Call)
            and method(node) not in _HARMLESS
            and "lr_scheduler" not in (file.callee(node) or "")
        ):
            if any(
                "opt" in (key(a) or "").lower()
                for a in list(node.args) + [k.value for k in node.keywords]
            ):
                return True
    return False


CHECKS = (never_cleared,)
HINTS = (without_torch,)
