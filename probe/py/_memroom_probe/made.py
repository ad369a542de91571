"""The modules, optimizers and Keras models that the program has made, as weak references.

Hooks fill these lists as things are made, copied or loaded. The garbage collector could be asked
for all objects instead, but it hands out tuples that other threads are still filling, and Python
ends a thread whose unfinished tuple somebody else holds (`SystemError: ... tupleobject.c`).
"""

from __future__ import annotations

import functools
import weakref

from . import compiled

TYPE_CHECKING = False
if TYPE_CHECKING:  # a name that type checkers take for true: importing typing takes a while
    from typing import Any, Callable


class Made:
    """Live objects of one kind, in the order in which they were made."""

    __slots__ = ("_purge_at", "_refs")

    def __init__(self) -> None:
        self._refs: dict[int, weakref.ref[Any]] = {}  # by id
        self._purge_at = 4096

    def add(self, thing: Any) -> None:
        key = id(thing)
        known = self._refs.get(key)
        if known is None or known() is not thing:
            self._refs.pop(key, None)
            self._refs[key] = weakref.ref(thing)
            if len(self._refs) > self._purge_at:
                self._purge()

    def live(self) -> list[Any]:
        things = [ref() for ref in list(self._refs.values())]
        return [thing for thing in things if thing is not None]

    def _purge(self) -> None:
        for key, ref in list(self._refs.items()):
            if ref() is None and self._refs.get(key) is ref:
                del self._refs[key]
        self._purge_at = max(4096, 2 * len(self._refs))


modules = Made()  # of torch, those with parameters or parts
optimizers = Made()  # of torch
keras_models = Made()

_hooked: list[Any] = []  # torch, once it is
_listeners: list[Callable[[Any], None]] = []


def install(torch: Any, listener: Callable[[Any], None] | None = None) -> None:
    """Begins to note what torch makes, once. The listener is called with every optimizer."""
    if listener is not None:
        _listeners.append(listener)
    if torch in _hooked:
        return
    _hooked.append(torch)
    compiled.install(torch)
    _wrap(torch.nn.Module, "__setstate__", modules.add)
    for name in ("__init__", "__setstate__"):
        _wrap(torch.optim.Optimizer, name, _optimizer_made)
    hooks = torch.nn.modules.module
    if hasattr(hooks, "register_module_parameter_registration_hook"):  # since 2.0
        hooks.register_module_parameter_registration_hook(_registered)
        hooks.register_module_module_registration_hook(_registered)
    else:
        _wrap(torch.nn.Module, "__init__", modules.add)


def _registered(module: Any, name: str, part: Any) -> None:
    if not compiled.compiling():
        modules.add(module)


def _optimizer_made(optimizer: Any) -> None:
    optimizers.add(optimizer)
    for listener in _listeners:
        listener(optimizer)


def _wrap(cls: type, name: str, note: Callable[[Any], None]) -> None:
    """Calls note(self) after a method that makes self."""
    original = getattr(cls, name)

    @compiled.left_alone
    @functools.wraps(original)
    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if not compiled.compiling():
            note(self)

    setattr(cls, name, make)


def hook_keras(module: Any) -> None:
    """Hooks a module of Keras that defines Model."""
    cls = getattr(module, "Model", None)
    if cls is None or "__new__" not in vars(cls):
        return
    original = cls.__new__

    @functools.wraps(original)
    def make(kind: type, *args: Any, **kwargs: Any) -> Any:
        model = original(kind, *args, **kwargs)
        keras_models.add(model)
        return model

    cls.__new__ = make
