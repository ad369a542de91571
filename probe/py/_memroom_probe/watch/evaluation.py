"""What an evaluation keeps: the variable that gets longer with every batch, and whether gradients
are on.

Looked at twice in an evaluation, when the data loader is asked for a batch: there the program's
variables are in the frames of the callers. One look costs less than a millisecond, and a few
evaluations are looked at, no more.
"""

import sys
import weakref

from .. import guard, link
from . import holders, steps

FIRST, SECOND = 2, 4  # batches at which the variables are looked at
MOST = 5  # evaluations that are looked at
MAX_FRAMES = 16
MOST_THINGS = 10000  # in a container that is looked into
MAX_NAMES = 64  # variables of a frame, and attributes of a variable

_torch = None
_batches = 0
_evaluations = 0
_before = None  # what the first look saw


def install(torch):
    global _torch
    _torch = torch


def begins():
    """An evaluation begins."""
    global _batches, _evaluations, _before
    _batches, _before = 0, None
    _evaluations += 1


@guard.hook("evaluation", heavy=True)
def batch():
    """The data loader is asked for a batch, within an evaluation."""
    global _batches, _before
    _batches += 1
    if _evaluations > MOST or _batches not in (FIRST, SECOND):
        return
    seen = _look()
    if _batches == FIRST:
        _before = seen
    elif _before is not None:
        _tell(_before, seen)
        _before = None


def _tell(before, after):
    """Sends what changed between two looks."""
    between = SECOND - FIRST
    grown = [
        ((size - before[path][0]) // between, count, path)
        for path, (size, count, _, _) in after.items()
        if path in before and size > before[path][0] and count >= before[path][1]
    ]
    kept, count, path = max(grown) if grown else (0, 0, "")
    grads = any(
        graph and (path not in before or before[path][3]() is not tensor())
        for path, (_, _, graph, tensor) in after.items()
    )
    link.send(
        "evaluation",
        {"step": steps.step, "grad": grads, "kept": kept, "count": count, "holder": path},
    )


def _look():
    """Path of a variable -> (bytes, tensors, whether the newest has a graph, reference to it), of
    all variables that hold tensors.
    """
    found, depth = {}, 0
    frame = sys._getframe().f_back  # the caller: this function holds nothing of the program
    while frame is not None and depth < MAX_FRAMES:
        if "_memroom_probe" not in frame.f_code.co_filename:
            depth += 1
            where = "%s:%d" % (frame.f_code.co_filename, frame.f_code.co_firstlineno)
            for name, value in list(frame.f_locals.items())[:MAX_NAMES]:
                _note(found, name, where, value)
                for key, thing in holders.attributes(value)[:MAX_NAMES]:
                    _note(found, "%s.%s" % (name, key), where, thing)
        frame = frame.f_back
    return found


def _note(found, name, where, value):
    tensors = _tensors(value)
    if tensors:
        size = sum(t.numel() * t.element_size() for t in tensors)
        newest = tensors[-1]
        found["%s in %s" % (name, where)] = (
            size,
            len(tensors),
            newest.grad_fn is not None,
            weakref.ref(newest),
        )


def _tensors(value):
    """The tensors in a variable: itself, or in a list, one level of tuples, lists and dictionaries
    deep.
    """
    if type(value) is _torch.Tensor:
        return [value]
    if type(value) not in (list, tuple, dict) or len(value) > MOST_THINGS:
        return []
    found = []
    for thing in list(value.values()) if type(value) is dict else value:
        if type(thing) in (list, tuple):
            found.extend(t for t in thing if type(t) is _torch.Tensor)
        elif type(thing) is dict:
            found.extend(t for t in thing.values() if type(t) is _torch.Tensor)
        elif type(thing) is _torch.Tensor:
            found.append(thing)
        elif len(found) == 0:
            return []  # no list of tensors
    return found
