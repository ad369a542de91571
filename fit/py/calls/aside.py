"""Hooks on what autograd saves step aside where torch.func transforms a function.

grad, vmap and the like refuse to begin while such hooks are there. Ours are around a whole call, or
a whole program, and somewhere inside of it a loss may be differentiated for each sample. What is
saved there stays as it is; before and behind it the hooks do what they did. A program that begins a
transformation under hooks of its own ends by that without us too, so there are none of its own.
"""

import contextlib
import functools
from typing import Any, Callable, List, Tuple

import torch
from torch.autograd import graph

_original: List[Any] = []  # torch's own function, while ours stands in its place


def install() -> None:
    needed = all(
        hasattr(torch._C._autograd, name)
        for name in (
            "_top_saved_tensors_default_hooks",
            "_pop_saved_tensors_default_hooks",
            "_push_saved_tensors_default_hooks",
        )
    )
    disable = getattr(graph, "disable_saved_tensors_hooks", None)
    if not _original and needed and disable is not None:
        _original.append(disable)
        setattr(graph, "disable_saved_tensors_hooks", _instead_of(disable))  # noqa: B010


def forget() -> None:
    if _original:
        setattr(graph, "disable_saved_tensors_hooks", _original.pop())  # noqa: B010


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether the tensor is one piece of memory that can be read: not one that torch.func wraps,
    nor the zeros of a derivative that nobody stores, nor one of a sparse or nested kind, nor one
    that computes by itself, and may have no content yet.
    """
    if tensor.layout != torch.strided or tensor.is_nested or tensor._is_zerotensor():
        return False
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return False
    return not _is_wrapped(tensor)


_is_wrapped: Callable[[torch.Tensor], bool] = getattr(
    getattr(torch._C, "_functorch", None), "is_functorch_wrapped_tensor", lambda tensor: False
)


def _instead_of(disable: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(disable)
    @contextlib.contextmanager
    def without(*args: Any, **kwargs: Any) -> Any:
        with _none(), disable(*args, **kwargs):
            yield

    return without


@contextlib.contextmanager
def _none() -> Any:
    autograd: Any = torch._C._autograd
    taken: List[Tuple[Any, Any]] = []
    while (top := autograd._top_saved_tensors_default_hooks(True)) is not None:
        taken.append(top)
        autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for hooks in reversed(taken):
            autograd._push_saved_tensors_default_hooks(*hooks)
