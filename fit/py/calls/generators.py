"""The random generators that a module draws from, read and put back: torch's, that of the card,
Python's, numpy's, and those that the module or its code holds itself.

A second run of something checkpointed draws from torch's own as the first one did, and from the
others as far as a trial has shown that they are drawn from.
"""

import contextlib
import hashlib
import random
import sys
import weakref
from typing import Any, Dict, Iterator

import torch

from . import refers

_held: "weakref.WeakKeyDictionary[Any, Any]" = (
    weakref.WeakKeyDictionary()
)  # module -> generators that it or its code holds
_drawn: Dict[
    Any, Any
] = {}  # id -> generator, of those besides torch's own that a trial has seen move


def read(module: torch.nn.Module) -> Any:
    """The states of all generators that the module may draw from."""
    return *of_torch(), [(g, _state(g)) for g in _besides(module)]


def read_all() -> Any:
    """The states of the generators that anybody may draw from."""
    return *of_torch(), [(g, _state(g)) for g in _shared()]


def of_torch() -> Any:
    """The states of torch's own generators: the CPU's, and that of every card that is in use."""
    on = torch.cuda.is_available() and torch.cuda.is_initialized()
    cards = range(torch.cuda.device_count()) if on else ()
    return torch.get_rng_state(), [torch.cuda.get_rng_state(i) for i in cards]


def put_back(states: Any) -> None:
    put_back_of_torch(states)
    put_back_besides(states[2])


def put_back_of_torch(states: Any) -> None:
    """A card's only where it has moved: whenever it is set, cuDNN's recurrent layers draw a new
    seed for their masks, which they would not have drawn.
    """
    torch.set_rng_state(states[0])
    for i, state in enumerate(states[1]):
        if not torch.equal(torch.cuda.get_rng_state(i), state):
            torch.cuda.set_rng_state(state, i)


@contextlib.contextmanager
def kept(module: torch.nn.Module) -> Iterator[Any]:
    """Around passes of ours: whatever they do, the program draws afterwards what it would have
    drawn without them.
    """
    states = read(module)
    try:
        yield
    finally:
        put_back(states)


def digest() -> Any:
    """A hash of the states of all generators that anybody may draw from. Two runs of a program that
    have drawn the same so far have the same one.
    """
    cpu, cards, besides = read_all()
    found = hashlib.sha256(cpu.numpy().tobytes())
    for state in cards:
        found.update(state.numpy().tobytes())
    found.update(repr([_plain(state) for _, state in besides]).encode())
    return found.hexdigest()[:16]


def _plain(state: Any) -> Any:
    return [x.tobytes() if hasattr(x, "tobytes") else x for x in state]


def put_back_besides(states: Any) -> None:
    for generator, state in states:
        _set(generator, state)


def same(a: Any, b: Any) -> Any:
    return torch.equal(a[0], b[0]) and all(map(torch.equal, a[1], b[1])) and not _moved(a, b)


def note_drawn(before: Any, after: Any) -> None:
    """From now on the generators that moved between two readings are put back for every
    second run.
    """
    _drawn.update((id(g), g) for g in _moved(before, after))


def drawn() -> Any:
    """The states of the generators that were seen to be drawn from, besides torch's own."""
    return [(g, _state(g)) for g in _drawn.values()]


def _moved(a: Any, b: Any) -> Any:
    return [g for (g, before), (_, after) in zip(a[2], b[2]) if not _equal(before, after)]


def _equal(a: Any, b: Any) -> Any:
    """Whether two states of one generator are the same, in whatever way it writes them."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return all(_equal(value, b[key]) for key, value in a.items())
    if isinstance(a, (tuple, list)):
        if set(map(type, a)) == {int}:  # Python's own has 625
            return a == b
        return len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b))
    return a.tobytes() == b.tobytes() if hasattr(a, "tobytes") else a == b


def _besides(module: torch.nn.Module) -> Any:
    if module not in _held:
        _held[module] = _find(module)
    return _shared() + _held[module]


def _shared() -> Any:
    """Python's own and numpy's: their modules have the functions of a generator."""
    return [random] + ([sys.modules["numpy.random"]] if "numpy.random" in sys.modules else [])


def _find(module: torch.nn.Module) -> Any:
    """Generators among the attributes of a module and all below it, and among the names that its
    code refers to.
    """
    seen = {}
    for m in module.modules():
        for value in list(vars(m).values()) + refers.values(type(m)):
            if _is_generator(value):
                seen[id(value)] = value
    return list(seen.values())


def _is_generator(value: Any) -> Any:
    if isinstance(value, (torch.Generator, random.Random)):
        return True
    return (type(value).__module__ or "").startswith("numpy.random") and (
        hasattr(value, "bit_generator") or hasattr(value, "get_state")
    )


def _state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if hasattr(generator, "getstate"):
        return generator.getstate()
    return (
        generator.get_state() if hasattr(generator, "get_state") else generator.bit_generator.state
    )


def _set(generator: Any, state: Any) -> None:
    if (
        isinstance(generator, torch.Generator)
        or not hasattr(generator, "setstate")
        and hasattr(generator, "set_state")
    ):
        generator.set_state(state)
    elif hasattr(generator, "setstate"):
        generator.setstate(state)
    else:
        generator.bit_generator.state = state
