"""What a backward pass saves because it will be differentiated again (create_graph).

Gradient penalties, learning to learn and equations with derivatives make a graph of a backward
pass. It is as large as that of the forward pass, and neither checkpointing nor pieces of the batch
make it smaller. It can wait in host memory, as what a forward pass saves can: the same bits come
back.
"""

import functools
import weakref
from typing import Any, Callable, Dict, Tuple

import torch

from ..calls import outermost
from .activation_offload import Away

_wanted: "weakref.WeakSet[Any]" = weakref.WeakSet()  # whoever sends what backward passes save


class Derivatives:
    """modules: gives those whose calls wait for a backward pass, or nothing where theirs is to stay
    on the card.
    """

    def __init__(self, modules: Any) -> None:
        self._modules = modules
        self.sent = 0  # bytes since somebody asked
        _install()
        _wanted.add(self)

    def take_sent(self) -> Any:
        sent, self.sent = self.sent, 0
        return sent

    def away(self) -> Any:
        modules = self._modules()
        if not modules:
            return None
        return Away(modules[0], [list(m.parameters()) for m in modules[1:]])


def _run(original: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    for one in list(_wanted):
        away = one.away()
        if away is not None:
            with away:
                result = original(*args, **kwargs)
            one.sent += away.sent
            return result
    return original(*args, **kwargs)


def _install() -> None:
    for name, place in (("grad", 4), ("backward", 3)):
        original = getattr(torch.autograd, name)
        if not hasattr(original, "memroom_stands_for"):
            setattr(torch.autograd, name, _instead_of(original, place))


def _instead_of(original: Callable[..., Any], place: Any) -> Any:
    """place: of create_graph among the arguments."""

    @functools.wraps(original)
    def differentiate(*args: Any, **kwargs: Any) -> Any:
        again = kwargs.get("create_graph") or len(args) > place and args[place]
        if not again or not _wanted or outermost.transformed():
            return original(*args, **kwargs)
        return _run(original, args, kwargs)

    setattr(differentiate, "memroom_stands_for", original)  # noqa: B010
    return differentiate
