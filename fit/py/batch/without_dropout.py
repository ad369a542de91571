"""Dropout switched off for a trial: it becomes the identity, for the thread that tries and no
other.

torch's functions are replaced once, by ones that ask which thread calls. A thread that trains,
evaluates or loads data meanwhile gets what it always got.
"""

import contextlib
import functools
import threading
from typing import Any, Callable, Dict, Iterator, List

import torch
import torch.nn.functional as F

from ... import compiled

_local = threading.local()
_originals: Dict[Any, Any] = {}  # name in torch.nn.functional -> what it was before us
_waiting: List[
    Any
] = []  # label values of trials whose backward pass runs now, on threads of autograd's
_lock = threading.Lock()
_graph_task = getattr(torch._C, "_current_graph_task_id", lambda: -1)

_DROPOUTS = (
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "alpha_dropout",
    "feature_alpha_dropout",
)


@contextlib.contextmanager
def without_dropout(ignored: Any) -> Iterator[Any]:
    """While this is entered dropout is the identity on this thread, and the label values that cross
    entropy is told to ignore are added to `ignored`.
    """
    _replace_once()
    before = getattr(_local, "ignored", None)
    _local.ignored = ignored
    try:
        yield
    finally:
        _local.ignored = before


@contextlib.contextmanager
def in_backward() -> Iterator[Any]:
    """While this is entered, autograd's threads work for the trial on this thread: what they run
    again for activation checkpointing must leave out the same dropout.
    """
    ignored = getattr(_local, "ignored", None)
    if ignored is None:
        yield
        return
    _waiting.append(ignored)
    try:
        yield
    finally:
        _waiting.remove(ignored)


def _trial() -> Any:
    """The label values of the trial that this thread works for, or None."""
    own = getattr(_local, "ignored", None)
    if own is not None or not _waiting or _graph_task() == -1:
        return own
    # Threads that Python did not start are autograd's.
    started = type(threading.current_thread()).__name__ != "_DummyThread"
    return None if started else _waiting[-1]


def _replace_once() -> None:
    with _lock:
        if _originals:
            return
        compiled.install(torch)
        for name in _DROPOUTS:
            _replace(name, _identity)
        _replace("scaled_dot_product_attention", _without_dropout_p)
        for name in ("cross_entropy", "nll_loss"):
            _replace(name, _noting)


def _replace(name: str, make: Any) -> Any:
    function = getattr(F, name, None)
    if function is None:
        return
    _originals[name] = function
    in_trial = make(function)

    def asked(*args: Any, **kwargs: Any) -> Any:
        if compiled.compiling():
            return function(*args, **kwargs)
        ignored = _trial()
        if ignored is None:
            return function(*args, **kwargs)
        return in_trial(ignored, *args, **kwargs)

    # A function of C has no wrapper's fields; its name and text are enough.
    functools.update_wrapper(asked, function, assigned=("__name__", "__qualname__", "__doc__"))
    setattr(F, name, compiled.left_alone(asked))


def _identity(function: Callable[..., Any]) -> Any:
    return lambda ignored, input, *args, **kwargs: input


def _without_dropout_p(function: Callable[..., Any]) -> Any:
    def attention(
        ignored: Any,
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        return function(query, key, value, attn_mask, 0.0, *args, **kwargs)

    return attention


def _noting(function: Callable[..., Any]) -> Any:
    def noted(
        ignored: Any,
        input: Any,
        target: Any,
        weight: Any = None,
        size_average: Any = None,
        ignore_index: Any = -100,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        ignored.add(int(ignore_index))
        return function(input, target, weight, size_average, ignore_index, *args, **kwargs)

    return noted
