"""The random generators that a module draws from, read and put back: torch's, that of the card,
Python's, numpy's, and those that the module or its code holds itself.

torch's checkpointing puts back torch's own generators for a second run; the others are put back by
blocks.checkpointed, as far as a trial has shown that they are drawn from.
"""

import random
import sys
import weakref

import torch

from . import refers

_held = weakref.WeakKeyDictionary()  # module -> generators that it or its code holds
_drawn: dict = {}  # id -> generator, of those besides torch's own that a trial has seen move


def read(module):
    """The states of all generators that the module may draw from."""
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    card = (device, torch.cuda.get_rng_state(device)) if device.type == "cuda" else None
    return torch.get_rng_state(), card, [(g, _state(g)) for g in _besides(module)]


def read_all():
    """The states of the generators that anybody may draw from."""
    return torch.get_rng_state(), None, [(g, _state(g)) for g in _shared()]


def put_back(states):
    torch.set_rng_state(states[0])
    if states[1] is not None:
        _put_back_card(*states[1])
    put_back_besides(states[2])


def _put_back_card(device, state):
    """Only where it has moved: whenever it is set, cuDNN's recurrent layers draw a new seed for
    their masks, which they would not have drawn.
    """
    if not torch.equal(torch.cuda.get_rng_state(device), state):
        torch.cuda.set_rng_state(state, device)


def put_back_besides(states):
    for generator, state in states:
        _set(generator, state)


def same(a, b):
    return (
        torch.equal(a[0], b[0])
        and (a[1] is None or torch.equal(a[1][1], b[1][1]))
        and not _moved(a, b)
    )


def note_drawn(before, after):
    """From now on the generators that moved between two readings are put back for every
    second run.
    """
    _drawn.update((id(g), g) for g in _moved(before, after))


def drawn():
    """The states of the generators that were seen to be drawn from, besides torch's own."""
    return [(g, _state(g)) for g in _drawn.values()]


def _moved(a, b):
    return [g for (g, before), (_, after) in zip(a[2], b[2]) if not _equal(before, after)]


def _equal(a, b):
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


def _besides(module):
    if module not in _held:
        _held[module] = _find(module)
    return _shared() + _held[module]


def _shared():
    """Python's own and numpy's: their modules have the functions of a generator."""
    return [random] + ([sys.modules["numpy.random"]] if "numpy.random" in sys.modules else [])


def _find(module):
    """Generators among the attributes of a module and all below it, and among the names that its
    code refers to.
    """
    seen = {}
    for m in module.modules():
        for value in list(vars(m).values()) + refers.values(type(m)):
            if _is_generator(value):
                seen[id(value)] = value
    return list(seen.values())


def _is_generator(value):
    if isinstance(value, (torch.Generator, random.Random)):
        return True
    return (type(value).__module__ or "").startswith("numpy.random") and (
        hasattr(value, "bit_generator") or hasattr(value, "get_state")
    )


def _state(generator):
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if hasattr(generator, "getstate"):
        return generator.getstate()
    return (
        generator.get_state() if hasattr(generator, "get_state") else generator.bit_generator.state
    )


def _set(generator, state):
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
