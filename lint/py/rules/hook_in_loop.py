"""One more hook in every round.

severity: warning
remedy: remove_hooks

A hook stays until its handle is removed. Hooks registered in a loop pile up, and each keeps
alive what its function refers to.

Instead: Register the hook once before the loop, or keep the handle and call `handle.remove()`
in the same round.
"""

import ast
from typing import Any, Iterator

from ..findings import finding
from ..flow import in_order, scopes, variables
from ..names import File, Place, key, targets


def hooks_in_loop(file: File) -> Iterator[Any]:
    """model.register_forward_hook(hook) in every round, with nothing that removes it"""
    for scope in scopes(file):
        for s in scope.statements:
            place = file.places.get(s)
            if not place or not place.loops or not isinstance(s, ast.Expr):
                continue  # a handle that is kept may be removed
            call = s.value
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                continue
            if call.func.attr not in _MODULE_HOOKS or not call.args:
                continue
            loop = next((x for x in place.loops if scope.has_backward(x)), None)
            # for layer in model.modules(): each layer gets one
            if loop is None or _names_own(loop, place, call.func.value):
                continue
            yield finding(
                "hook-in-loop",
                s,
                "every round registers one more hook and none is removed: all of them run at each "
                "pass, with what they hold",
            )


_MODULE_HOOKS = (
    "register_forward_hook",
    "register_forward_pre_hook",
    "register_full_backward_hook",
    "register_backward_hook",
)


def _names_own(loop: Any, place: Place, owner: Any) -> bool:
    """Is the module made anew in the loop that trains? Then its hooks go with it."""
    names = variables(owner)
    made = {key(x) for s in in_order(loop.body) for x in targets(s)}
    inner = {key(x) for other in place.loops if other is not loop for x in targets(other)}
    return bool(names & (made - inner))


CHECKS = (hooks_in_loop,)
