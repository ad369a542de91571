"""Steps of optimizers that torch.compile has made part of a compiled program.

Inside such a program no hook of ours runs: a call would break its graph. What the step leaves can
be seen from outside: the parameters' version counters, which every change in place moves on, also
one by compiled code. They are looked at when the next backward pass begins, so such a step ends for
us a forward pass later than it does. Nothing is looked at where steps arrive by their hooks.
"""

import gc
import weakref
from typing import Any, Dict, List, Tuple

SOME = 32  # parameters of each group whose versions are read
_torch: Any = None
_unseen = 0  # backward passes since the last step that a hook told of
# id of an optimizer -> (weak reference, version of its parameter when last looked)
_watched: Dict[int, Tuple["weakref.ref[Any]", int]] = {}


def install(torch: Any) -> None:
    global _torch
    _torch = torch


def stepped_as_usual(optimizer: Any) -> None:
    """A hook told of this step: it is not to be found a second time."""
    global _unseen
    _unseen = 0
    if id(optimizer) in _watched:
        _watched[id(optimizer)] = weakref.ref(optimizer), _version(optimizer)


def stepped() -> List[Any]:
    """The optimizers that changed their parameters since the last call, hooks unseen."""
    global _unseen
    _unseen += 1
    if _unseen > 1 and _unseen & (_unseen - 1) == 0:  # at 2, 4, 8, ...: every object is looked at
        _find()
    found = []
    for key, (reference, version) in list(_watched.items()):
        optimizer = reference()
        if optimizer is None:
            del _watched[key]
            continue
        now = _version(optimizer)
        if now != version:
            _watched[key] = reference, now
            found.append(optimizer)
    return found


def _find() -> None:
    """Begins to watch every optimizer of the process."""
    for o in gc.get_objects():
        if id(o) not in _watched and issubclass(type(o), _torch.optim.Optimizer):
            _watched[id(o)] = weakref.ref(o), _version(o)


def _version(optimizer: Any) -> int:
    """A number that a step changes and accumulation of gradients does not."""
    return sum(
        p._version
        for group in optimizer.param_groups
        for p in group["params"][:: max(1, len(group["params"]) // SOME)]
        if p.requires_grad
    )
