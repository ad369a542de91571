"""Models that a program builds one after the other and does not let go of: trials of a search,
folds of a cross-validation, a loop over settings.

Counted when a new model begins: then the ones before are complete, and gone or kept. Counting looks
at every live module, so it is done as seldom as its cost asks for. When a class of models
has become more at several counts in a row, garbage is collected once, to tell models that somebody
holds from those that wait for the collector.
"""

import gc
import sys
import types
from typing import Any, Dict, Iterator, List, Set, Tuple

from .. import guard, link, made
from . import holders, host, steps

PAUSE_NS = 200000000  # without a new parameter: what comes next is another model
SHARE = 0.003  # of the time that counting may take
FIRST, FIRST_SHARE = 8, 0.05  # the first counts may come sooner: a leak is to be named in a minute
LEAST = 4  # live models of one class, before anything is reported
RISES = 3  # counts in a row at which there were more
MOST_CLASSES = 3


class Builds:
    """The models that the program begins, and how many of each class live."""

    __slots__ = (
        "_counted",
        "_counts",
        "_due_ns",
        "_last_ns",
        "_loop",
        "_pages",
        "_step",
        "_told",
        "_users",
        "built",
    )

    def __init__(self, loop: steps.Loop) -> None:
        self._loop = loop
        self._last_ns = 0  # when a parameter was last registered
        self._step = -1  # the last step before the model that was last begun
        self._due_ns = 0  # before which nothing is counted
        self._counts: Dict[type, List[int]] = {}  # class -> live models at the last counts
        self._pages = 0  # anonymous bytes at the first count
        self.built = 0  # models begun
        self._counted = 0  # counts made
        self._told: Dict[type, int] = {}  # class -> live models when it was reported
        self._users: Set[int] = set()  # ids of Keras models that were seen to train or predict

    def registered(self) -> None:
        """A parameter of a torch module is registered. The first after a pause begins a model, if
        steps were made since the one before: layers that take long to build, in a list of their own
        until the model has them, are no models.
        """
        now = guard.now()
        paused = now - self._last_ns > PAUSE_NS
        self._last_ns = now
        if (paused or now > self._due_ns > 0) and self._loop.step != self._step:
            self._step = self._loop.step
            self.begins(now)

    def used(self, model: Any) -> None:
        """A Keras model begins to train or to predict."""
        if id(model) not in self._users:
            if len(self._users) > 10000:
                self._users.clear()
            self._users.add(id(model))
            self.begins(guard.now())

    def begins(self, now: int) -> None:
        """A new model begins."""
        self.built += 1
        if now < self._due_ns or self.built < 2:
            return
        # Processor time, not the clock's: on a busy machine counting would seem to cost more than
        # the program that waits as well, and would come too seldom.
        before = guard.used()
        self._count()
        self._counted += 1
        spent = guard.used() - before
        self._due_ns = guard.now() + int(spent / (FIRST_SHARE if self._counted < FIRST else SHARE))

    def _count(self) -> None:
        if self._pages == 0:
            self._pages = host.memory()[1]
        live = _live()
        for cls, models in list(live.items()):
            before = self._counts.setdefault(cls, [])
            before.append(len(models))
            del before[:-RISES]
            # half as many again: more of the same is not said at every model
            if (
                len(models) >= max(LEAST, 3 * self._told.get(cls, 0) // 2)
                and len(before) == RISES
                and before[0] < before[1] < before[2]
            ):
                self._suspect(cls, len(models))
        del live

    def _suspect(self, cls: type, count: int) -> None:
        """Tells of models that have become more, with who holds them."""
        self._told[cls] = count
        gc.collect()
        kept = _live().get(cls, [])
        found = holders.look(wanted=set(map(id, kept))) if len(kept) > LEAST // 2 else {}
        best = holders.together(found)
        if best is not None and best.count < 2:
            best = None
        self._counts[cls][-1] = len(kept)
        where = line()
        link.send(
            "models",
            {
                "step": self._loop.step,
                "framework": "torch" if _is_torch(cls) else "keras",
                "class": cls.__name__,
                "count": len(kept),
                "waited": count - len(kept),
                "built": self.built,
                "bytes": sum(map(_size, kept)),
                "grown": max(0, host.memory()[1] - self._pages),
                "file": where[0],
                "line": where[1],
                "holder": best.name if best else "",
                "holder_kind": best.kind if best else "",
                "holder_file": best.file if best else "",
                "holder_line": holders.line_of(best) if best else 0,
            },
        )


def _is_torch(cls: type) -> bool:
    return any(base.__module__.startswith("torch.") for base in cls.__mro__)


def _live() -> Dict[type, List[Any]]:
    """Class -> its live models that are no part of another one; an optimizer of torch counts where
    the model of its parameters is gone.
    """
    found = made.modules.live() + made.optimizers.live() + made.keras_models.live()
    parts: Set[int] = set()
    for thing in found:
        parts.update(map(id, _parts(thing)))
    live: Dict[type, List[Any]] = {}
    for thing in found:
        if id(thing) not in parts:
            live.setdefault(type(thing), []).append(thing)
    torch = sys.modules.get("torch")
    optimizer = getattr(getattr(torch, "optim", None), "Optimizer", None)
    for cls in [c for c in live if optimizer is not None and optimizer in c.__mro__]:
        owned = {
            id(parameter)
            for other, models in live.items()
            if optimizer not in other.__mro__ and _is_torch(other)
            for model in models
            for parameter in model.parameters()
        }
        live[cls] = [o for o in live[cls] if not any(id(p) in owned for p in _parameters(o))]
    return live


def _parts(thing: Any) -> Iterator[Any]:
    """The models inside a model."""
    attributes = thing.__dict__
    yield from (attributes.get("_modules") or {}).values()
    inner = attributes.get("_functional")
    if inner is not None:
        yield inner
    for name in ("_layers", "_operations"):
        layers = attributes.get(name)
        if isinstance(layers, list):
            yield from layers


def _parameters(optimizer: Any) -> List[Any]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _size(model: Any) -> int:
    """Bytes of a model's weights with their gradients, or of what an optimizer keeps."""
    try:
        if hasattr(model, "param_groups"):
            tensors = _parameters(model) + [
                value
                for state in model.state.values()
                if isinstance(state, dict)
                for value in state.values()
                if hasattr(value, "element_size")
            ]
        elif hasattr(model, "parameters"):
            tensors = list(model.parameters()) + list(model.buffers())
        else:
            return _keras_size(model)
        tensors += [t.grad for t in tensors if t.is_leaf and t.grad is not None]
        return sum(t.numel() * t.element_size() for t in tensors)
    except Exception:  # a model that does not answer
        return 0


def _keras_size(model: Any) -> int:
    total = 0
    optimizer = getattr(model, "optimizer", None)
    for variable in list(model.weights) + list(getattr(optimizer, "variables", None) or ()):
        size = 4
        for length in variable.shape:
            size *= int(length)
        total += size
    return total


def line() -> Tuple[str, int]:
    """Where the program builds: its innermost line that is not in a constructor."""
    here = None
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if holders.is_users(code.co_filename):
            here = here or (code.co_filename, frame.f_lineno)
            if code.co_name not in ("__init__", "forward", "__call__"):
                return code.co_filename, frame.f_lineno
        frame = frame.f_back
    return here or ("", 0)
