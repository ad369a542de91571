"""Whether the program has drawn what its training goes on with: actions, words, codes.

A script may hold such lines only for samples that it shows now and then. So the functions that draw
from probabilities note that they were called.
"""

import functools
from typing import Any, Callable, List, Tuple

import torch

from . import outermost

_NAMES = ("multinomial", "bernoulli", "binomial")  # distributions draw by these too
_seen: List[str] = []


def has() -> bool:
    """Whether anything has been drawn so far."""
    return bool(_seen)


def watch() -> None:
    """Stands around torch's functions until remedies are taken away."""
    places: List[Tuple[Any, str]] = [(torch, n) for n in _NAMES if hasattr(torch, n)]
    places.append((torch.nn.functional, "gumbel_softmax"))
    for owner, name in places:
        original = getattr(owner, name)
        setattr(owner, name, _noting(original))
        outermost.when_forgotten(functools.partial(setattr, owner, name, original))
    outermost.when_forgotten(_seen.clear)


def _noting(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def draw(*args: Any, **kwargs: Any) -> Any:
        if not _seen:
            _seen.append(original.__name__)
        return original(*args, **kwargs)

    builtins: Any = getattr(torch.jit, "_builtins", None)
    known = builtins and builtins._find_builtin(original)
    if known:  # what is scripted must find torch's function
        builtins._register_builtin(draw, known)
    return draw
