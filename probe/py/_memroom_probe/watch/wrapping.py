"""Functions of the program's libraries in which ours stand around the original."""

from __future__ import annotations

import functools
from typing import Any, Callable


def once(owner: Any, name: str, around: Callable[[Any], Any]) -> None:
    """Puts around(original) in the place of a function of a module, or of a class's own method:
    inherited methods are left to their owner. What is wrapped already stays as it is.
    """
    own = vars(owner).get(name) if isinstance(owner, type) else getattr(owner, name, None)
    if own is not None and not getattr(own, "_memroom", False):
        setattr(owner, name, marked(own, around(own)))


def marked(original: Any, wrapper: Any) -> Any:
    """Gives a wrapper the original's name, and the mark by which it is known."""
    functools.update_wrapper(wrapper, original)
    wrapper._memroom = True
    return wrapper
