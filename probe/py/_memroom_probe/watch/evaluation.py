"""What an evaluation keeps: the variable that gets longer with every batch, and whether gradients
are on.

Looked at twice in an evaluation, when the data loader is asked for a batch or, where there is none,
when the model is called: there the program's variables are in the frames of the callers. One look
costs a millisecond or two, and a few evaluations are looked at, no more. How many batches there
were is told when the evaluation is over: by then what was kept of each adds up, however fast they
went by.
"""

import sys
import types
import weakref
from typing import Any, Dict, List, Optional, Tuple

from .. import compiled, farewell, guard, link
from . import holders, steps

# batches at which the variables are looked at: a loader may read one ahead of the model
FIRST, SECOND = 3, 5
MOST = 5  # evaluations that are looked at
MAX_FRAMES = 16
MOST_THINGS = 10000  # in a container that is looked into
MAX_NAMES = 64  # variables of a frame, and attributes of a variable

# a variable -> bytes, tensors, whether the newest has a graph, reference to it
Seen = Dict[str, Tuple[int, int, bool, "weakref.ref[Any]"]]


class Evaluations:
    """The evaluations of a program, as far as they are looked at."""

    __slots__ = (
        "_batches",
        "_before",
        "_calls",
        "_codes",
        "_evaluations",
        "_iterator",
        "_lines",
        "_loop",
        "_model",
        "_told",
        "_torch",
    )

    def __init__(self, torch: Any, loop: steps.Loop) -> None:
        self._torch, self._loop = torch, loop
        self._batches = self._evaluations = 0
        self._before: Optional[Seen] = None  # what the first look saw
        # over the loader whose batches are counted
        self._iterator: Optional[weakref.ref[Any]] = None
        self._told: Dict[str, Any] = {}  # what was reported of the evaluation that runs
        self._lines: Dict[str, str] = {}  # path of a variable -> it with its line
        # the module that was switched to evaluation
        self._model: Optional[weakref.ref[Any]] = None
        # file and first line of a function -> its code, of the last look
        self._codes: Dict[str, types.CodeType] = {}
        self._calls: Any = (
            None  # handle of torch's hook on all calls of modules, while it is needed
        )
        farewell.before(self.ends)

    def begins(self, module: Any) -> None:
        """An evaluation of a module begins."""
        self.ends()
        self._batches, self._before = 0, None
        self._evaluations += 1
        # A hook of the module itself would be saved with it. torch's own hook on all calls slows
        # each of them down, so it lives for a few batches.
        if self._evaluations <= MOST and not _compiles():
            self._model = weakref.ref(module)
            self._calls = self._torch.nn.modules.module.register_module_forward_pre_hook(
                self._called
            )

    def ends(self) -> None:
        """The evaluation is over: what was reported of it is reported again with its batches."""
        if self._batches > SECOND and self._told.get("kept"):
            # the last time that it was asked there was no batch, or what became of it is not known
            link.send("evaluation", dict(self._told, batches=self._batches - 1))
        self._told = {}
        self._leave_calls()

    def _leave_calls(self) -> None:
        """No calls of modules are looked at any more."""
        if self._calls is not None:
            self._calls.remove()
        self._model = self._calls = None

    def _called(self, module: Any, args: Any) -> None:
        if self._model is not None and module is self._model():
            self._batch()
            if self._batches >= SECOND or self._loop.phase != "eval":
                self._leave_calls()

    def batch(self, iterator: Any) -> None:
        """A data loader is asked for a batch, within an evaluation. Once something was told, other
        loaders do not count: training asks for a batch before its first backward pass.
        """
        if self._calls is not None:
            self._forget_calls()
        if self._iterator is None or self._iterator() is not iterator:
            if self._told:
                return
            self._iterator, self._batches, self._before = weakref.ref(iterator), 0, None
        self._batch()

    @guard.hook("evaluation by a loader")
    def _forget_calls(self) -> None:
        """The loader tells of batches: calls of the model are not counted too."""
        self._batches, self._before = 0, None
        self._leave_calls()

    def _batch(self) -> None:
        self._batches += 1
        if self._evaluations <= MOST and self._batches in (FIRST, SECOND):
            self._look_at()

    @guard.hook("evaluation", heavy=True)
    def _look_at(self) -> None:
        """Makes one of the two looks: half of them would find nothing, so they count as looks."""
        if self._batches == FIRST and not guard.may_ask():
            return
        began = guard.used()
        seen = self._look()
        if self._batches == FIRST:
            self._before = seen
        elif self._before is not None:
            self._tell(self._before, seen)
            self._before = None
        guard.asked(guard.used() - began)

    def _tell(self, before: Seen, after: Seen) -> None:
        """Sends what changed between two looks."""
        between = SECOND - FIRST
        grown = [
            ((size - before[path][0]) // between, count, path)
            for path, (size, count, _, _) in after.items()
            if path in before and size > before[path][0] and count >= before[path][1]
        ]
        kept, count, path = max(grown) if grown else (0, 0, "")
        held = after[path][0] if path else 0
        grads = any(
            graph and (path not in before or before[path][3]() is not tensor())
            for path, (_, _, graph, tensor) in after.items()
        )
        if path not in self._lines:
            self._lines[path] = self._with_line(path)
        self._told = {
            "step": self._loop.step,
            "grad": grads,
            "kept": kept,
            "count": count,
            "held": held,
            "holder": self._lines[path],
        }
        link.send("evaluation", self._told)

    def _with_line(self, path: str) -> str:
        """A variable with the line where it grows."""
        name, _, place = path.rpartition(" in ")
        file, _, first = place.rpartition(":")
        if not file:
            return path
        lines = holders.Holder(name, (file, int(first), self._codes.get(place)))
        return "%s in %s:%d" % (name, file, holders.line_of(lines))

    def _look(self) -> Seen:
        """Path of a variable -> (bytes, tensors, whether the newest has a graph, reference to it),
        of all variables that hold tensors.
        """
        found: Seen = {}
        depth = 0
        self._codes.clear()
        frame = sys._getframe().f_back  # the caller: this function holds nothing of the program
        while frame is not None and depth < MAX_FRAMES:
            if "_memroom_probe" not in frame.f_code.co_filename:
                depth += 1
                code = frame.f_code
                where = "%s:%d" % (code.co_filename, code.co_firstlineno)
                self._codes[where] = code
                for name, value in list(frame.f_locals.items())[:MAX_NAMES]:
                    _note(found, name, where, value)
                    owner, place = name, where
                    if not holders.is_users(code.co_filename):
                        owner, place = _of_class(value) or (name, where)
                    for key, thing in holders.attributes(value)[:MAX_NAMES]:
                        _note(found, "%s.%s" % (owner, key), place, thing)
            frame = frame.f_back
        return found


def _compiles() -> bool:
    """Returns whether anything was compiled: a hook on calls would have it compiled anew."""
    if not compiled.compiler.in_use:
        return False
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    return counters is None or bool(counters.get("frames"))


def _of_class(value: Any) -> Optional[Tuple[str, str]]:
    """(class, file:line) of an object of the program's own class that a library has a variable
    for: the program knows it by its class.
    """
    file = holders.file_of(type(value))
    return (type(value).__name__, file + ":0") if holders.is_users(file) else None


def _note(found: Seen, name: str, where: str, value: Any) -> None:
    tensors = _tensors(value)
    if tensors:
        size = sum(map(_size, tensors))
        newest = tensors[-1]
        found["%s in %s" % (name, where)] = (
            size,
            len(tensors),
            getattr(newest, "grad_fn", None) is not None,
            weakref.ref(newest),
        )


def _size(thing: Any) -> int:
    answer: int = thing.numel() * thing.element_size() if hasattr(thing, "numel") else thing.nbytes
    return answer


def _is_data(thing: Any) -> bool:
    """A tensor, or an array that it was turned into."""
    torch, numpy = sys.modules["torch"], sys.modules.get("numpy")
    return type(thing) is torch.Tensor or numpy is not None and type(thing) is numpy.ndarray


def _tensors(value: Any) -> List[Any]:
    """The tensors and arrays in a variable: itself, or in a list, one level of tuples, lists and
    dictionaries deep.
    """
    if _is_data(value):
        return [value]
    if type(value) not in (list, tuple, dict) or len(value) > MOST_THINGS:
        return []
    found: list[Any] = []
    for thing in list(value.values()) if type(value) is dict else value:
        if type(thing) in (list, tuple):
            found.extend(t for t in thing if _is_data(t))
        elif type(thing) is dict:
            found.extend(t for t in thing.values() if _is_data(t))
        elif _is_data(thing):
            found.append(thing)
        elif len(found) == 0:
            return []  # no list of tensors
    return found
