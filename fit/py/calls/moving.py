"""What every call of a module moves on: running statistics and other buffers, counters, tensors
among its attributes.

A second run, as activation checkpointing makes it, must start from what the first run started from,
and must leave no trace: `again` does both. What moves is seen, not guessed: what was seen to move
is copied before each call. What moves for the first time is known only afterwards: a second run of
that one call starts from what the first one left, and leaves no trace either.
"""

import contextlib
import weakref
from typing import Any, Dict, Iterator, List, Set, Tuple

import torch

from . import inside

Names = Dict[str, Any]  # where a module keeps things: its buffers, or its attributes
Before = List[Tuple[Names, str, Any]]  # places with what lay there

_OWN = {"_parameters", "_buffers", "_modules", "training"}
_seen: "weakref.WeakKeyDictionary[torch.nn.Module, Set[str]]" = weakref.WeakKeyDictionary()


SMALL = 1 << 16  # elements up to which a tensor's content is compared at a module's first call


class Watched:
    """One call of some modules: noted before it, looked at after it."""

    def __init__(self, modules: List[torch.nn.Module]) -> None:
        every = inside.modules(modules)
        self.norms = [m for m in every if _only_keeps_statistics(m)]
        self.places = [(m, names, key) for m in every for names, key in _places(m)]
        self.marks = [_mark(names[key]) for _, names, key in self.places]
        self.copies = {
            i: _copy(names[key])
            for i, (m, names, key) in enumerate(self.places)
            if key in _seen.get(m, ())
            or _keeps_statistics(m)
            or m not in _seen
            and _is_small(names[key])
        }

    def done(self) -> Before:
        """After the call: the places that it moved, with what lay there before."""
        moved: Before = [place for m in self.norms for place in _scratch_of(m)]
        known = {m for m, _, _ in self.places if m in _seen}
        for m, _, _ in self.places:
            _seen.setdefault(m, set())
        for i, (m, names, key) in enumerate(self.places):
            first = m not in known
            if not self._moved(i, first) and not (_keeps_statistics(m) and names is m._buffers):
                continue
            _seen[m].add(key)
            moved.append((names, key, self.copies.get(i, _copy(names.get(key)))))
        return moved

    def _moved(self, i: int, first: bool) -> bool:
        """Whether the call moved a place. A kernel may change a tensor and not its version: the
        content is compared once.
        """
        _, names, key = self.places[i]
        value = names.get(key)
        if _mark(value) != self.marks[i]:
            return True
        return first and isinstance(value, torch.Tensor) and _differs(self.copies.get(i), value)


@contextlib.contextmanager
def again(before: Before) -> Iterator[None]:
    """A second run: everything starts as it was before the first, and is then put back."""
    now = [(names, key, names.get(key)) for names, key, _ in before]
    for names, key, value in before:
        # a retained graph is run again more than once
        names[key] = value.tensor if isinstance(value, _Scratch) else _copy(value)
    try:
        yield
    finally:
        for names, key, value in now:
            names[key] = value


@contextlib.contextmanager
def results_as_they_are(modules: List[torch.nn.Module]) -> Iterator[None]:
    """What a first run left in attributes for the loop (a balancing loss) stays there. That of a
    second run would hold everything that the second run computed, block after block.
    """
    before = [(vars(m), _tensors_of(m)) for m in inside.modules(modules) if not _is_plain(m)]
    try:
        yield
    finally:
        for names, tensors in before:
            names.update(tensors)


def _tensors_of(module: torch.nn.Module) -> Names:
    return {key: value for key, value in vars(module).items() if isinstance(value, torch.Tensor)}


def _places(module: torch.nn.Module) -> List[Tuple[Names, str]]:
    """Everything of the module itself that a call could move."""
    found: List[Tuple[Names, str]] = []
    if module._buffers and not _only_keeps_statistics(module):
        found += [(module._buffers, key) for key, b in module._buffers.items() if b is not None]
    if _is_plain(module):
        return found
    own = vars(module)
    fixed = _constants(module)
    for key, value in own.items():
        if key not in _OWN and key not in fixed and _can_move(value):
            found.append((own, key))
    return found


_plain: "weakref.WeakKeyDictionary[torch.nn.Module, int]" = weakref.WeakKeyDictionary()


def _is_plain(module: torch.nn.Module) -> bool:
    """Whether it is one of torch's own layers with nothing among its attributes that could move.
    An attribute that somebody adds is seen by their number.
    """
    count = len(vars(module))
    if _plain.get(module) == count:
        return True
    if not type(module).__module__.startswith("torch.nn.modules."):
        return False
    fixed = _constants(module)
    for key, value in vars(module).items():
        if key not in _OWN and key not in fixed and _can_move(value):
            return False
    _plain[module] = count
    return True


def _constants(module: torch.nn.Module) -> Any:
    """Attributes that no call of torch's own layers moves: they say so."""
    own = type(module).__module__.startswith("torch.nn.modules.")
    return getattr(type(module), "__constants__", ()) if own else ()


class _Scratch:
    """A tensor that second runs write to and nobody reads."""

    def __init__(self, like: torch.Tensor) -> None:
        self.tensor = torch.zeros_like(like)


_scratch: "weakref.WeakKeyDictionary[torch.nn.Module, Names]" = weakref.WeakKeyDictionary()


def _only_keeps_statistics(module: torch.nn.Module) -> bool:
    """torch's own norms while they train: what they compute does not depend on the running
    statistics that they move on.
    """
    return _keeps_statistics(module) and type(module).forward in _NORMS


_NORMS = (
    torch.nn.modules.batchnorm._BatchNorm.forward,
    torch.nn.modules.instancenorm._InstanceNorm.forward,
)


def _scratch_of(module: torch.nn.Module) -> Before:
    """Buffers in which a second run may keep its statistics: nobody reads them."""
    kept = _scratch.get(module)
    now = {key: value for key, value in module._buffers.items() if value is not None}
    if kept is None or any(
        key not in kept
        or kept[key].tensor.shape != b.shape
        or kept[key].tensor.device != b.device
        or kept[key].tensor.dtype != b.dtype
        for key, b in now.items()
    ):
        kept = _scratch[module] = {key: _Scratch(b) for key, b in now.items()}
    return [(module._buffers, key, kept[key]) for key in now]


def _keeps_statistics(module: torch.nn.Module) -> bool:
    """torch's own norms: their kernels change running statistics without a new version."""
    norm = isinstance(module, torch.nn.modules.batchnorm._NormBase)
    return norm and module.training and bool(module.track_running_stats)


def _is_small(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() <= SMALL


def _differs(before: Any, value: torch.Tensor) -> bool:
    return before is not None and not torch.equal(before, value)


def _can_move(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.grad_fn is None and not isinstance(value, torch.nn.Parameter)
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _mark(value: Any) -> Tuple[Any, Any]:
    """Differs when something was moved: another tensor, another version of it, another number."""
    if isinstance(value, torch.Tensor):
        return id(value), None if value.is_inference() else value._version
    return None, value
