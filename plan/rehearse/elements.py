"""Single elements of host tensors: scripts fill their data one number at a time, a million times.

Written through the stage, each would be three or four operations. Here it is one write into the
values that are known of the tensor, or none where nothing is known of it.
"""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from .values import twin_of

if TYPE_CHECKING:
    from .stage import Stage

_BEYOND = torch.Tensor.__setitem__, torch.Tensor.__getitem__


def install(stage: Stage) -> None:
    write, read = _BEYOND

    def set_element(t: torch.Tensor, index: Any, value: Any) -> None:
        if not _is_number(value) or not _is_element(t, index):
            write(t, index, value)
            return
        there = twin_of(t)
        if there is None:
            return
        number = twin_of(value) if isinstance(value, torch.Tensor) else value
        try:
            with torch._C._DisableTorchDispatch():
                write(there, index, number)
        except (RuntimeError, TypeError):  # it is not known, or one value stands for all
            write(t, index, value)

    def element(t: torch.Tensor, index: Any) -> Any:
        if not _is_element(t, index):
            return read(t, index)
        there = twin_of(t)
        with torch._C._DisableTorchDispatch():
            found = None if there is None else read(there, index)
        if type(t) is not FakeTensor and found is not None:
            return found
        with stage.fake:
            fake = torch.empty((), dtype=t.dtype)
        if found is not None:
            stage.values.remember(fake, found)
        return fake

    torch.Tensor.__setitem__ = set_element
    torch.Tensor.__getitem__ = element


def _is_number(value: Any) -> bool:
    """Whether what is written is one number of the host that needs no gradient."""
    if type(value) in (int, float, bool):
        return True
    if type(value) is FakeTensor:
        if value.fake_device.type != "cpu":
            return False
    elif type(value) is not torch.Tensor or not value.is_cpu:
        return False
    return value.dim() == 0 and not value.requires_grad


def _is_element(t: torch.Tensor, index: Any) -> bool:
    """Whether this names one element of a host tensor that no gradient goes through."""
    if type(t) is FakeTensor:
        if t.fake_device.type != "cpu":
            return False
    elif type(t) is not torch.Tensor or not t.is_cpu:
        return False
    if t.requires_grad:
        return False
    at = index if type(index) is tuple else (index,)
    if len(at) != t.dim():
        return False
    for i, size in zip(at, t.shape):
        if isinstance(i, bool) or not isinstance(i, Integral) or not -size <= i < size:
            return False
    return True
