"""What an operation on fake tensors returns, remembered by the form of its arguments. A training
loop asks the same thousands of times, and torch's own memory of it takes several times as long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._mode_utils import no_dispatch

if TYPE_CHECKING:
    from torch._ops import OpOverload
    from torch._subclasses.fake_tensor import FakeTensorMode

NUMBERS = (int, float, bool, str, type(None))


class _Unlike(Exception):
    """A value whose form does not say what comes of it."""


def of_call(
    func: OpOverload, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...] | None:
    """The form of a call; None where a result may depend on more than that. What is written in
    place stays as it is, whatever a float among the arguments says.
    """
    if "out" in kwargs:
        return None
    whole = name[-1] == "_"
    try:
        named = tuple((k, _of(v, whole)) for k, v in kwargs.items()) if kwargs else ()
        return (func, tuple(_of(a, whole) for a in args), named)
    except (_Unlike, RuntimeError):
        return None


def _of(value: Any, whole: bool) -> Any:
    kind = type(value)
    if kind is FakeTensor:
        if value.constant is not None or value.dtype.is_complex or value.is_neg():
            raise _Unlike
        return (
            value.shape,
            value.stride(),
            value.storage_offset(),
            value.dtype,
            value.fake_device,
        )
    if kind in NUMBERS:  # 1, 1.0 and True are equal
        return (kind, None if whole and kind is float else value)
    if kind in (list, tuple):
        return tuple(_of(v, whole) for v in value)
    if kind is torch.device and value.type == "cuda" and value.index is None:
        raise _Unlike  # the current one
    if kind in (torch.device, torch.dtype, torch.layout, torch.memory_format):
        return value
    raise _Unlike


def selected(t: FakeTensor, dim: int, index: int) -> Any:
    """The form of one row, of which a set of samples has thousands; None where there is none."""
    if not -t.dim() <= dim < t.dim() or not -t.shape[dim] <= index < t.shape[dim]:
        return None
    offset = t.storage_offset() + index % t.shape[dim] * t.stride(dim)
    dim %= t.dim()
    shape, stride = (v[:dim] + v[dim + 1 :] for v in (t.shape, t.stride()))
    return (True, shape, stride, offset, t.dtype, t.fake_device)


def learnt(args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
    """How to make these results again; None where that is not known."""
    held = {
        t.untyped_storage()._cdata
        for v in (*args, *kwargs.values())
        for t in (v if isinstance(v, (list, tuple)) else (v,))
        if isinstance(t, torch.Tensor)
    }
    if type(out) in (list, tuple):
        forms = [_learnt(args, held, t) for t in out]
        return None if None in forms else (type(out), forms)
    return _learnt(args, held, out)


NOTHING = (None,)


def _learnt(args: tuple[Any, ...], held: set[int], t: Any) -> Any:
    if t is None:
        return NOTHING
    for i, a in enumerate(args):
        if a is t:
            return (i,)
    if type(t) is not FakeTensor or t.constant is not None or t.requires_grad:
        return None
    if t.dtype.is_complex or t.is_neg() or t.layout is not torch.strided:
        return None
    storage = t.untyped_storage()
    is_view = bool(args) and type(args[0]) is FakeTensor
    is_view = is_view and storage._cdata == args[0].untyped_storage()._cdata
    form = (is_view, t.shape, t.stride(), t.storage_offset(), t.dtype, t.fake_device)
    if is_view:
        return form
    last = sum((n - 1) * stride for n, stride in zip(t.shape, t.stride())) if t.numel() else -1
    if storage._cdata in held or form[3] or storage.nbytes() != (last + 1) * t.itemsize:
        return None
    held.add(storage._cdata)
    return form


def made(known: Any, mode: FakeTensorMode, args: tuple[Any, ...]) -> Any:
    """The results of a call whose form is known."""
    with no_dispatch():
        if isinstance(known[0], type):
            return known[0](_made(one, mode, args) for one in known[1])
        return _made(known, mode, args)


def _made(known: Any, mode: FakeTensorMode, args: tuple[Any, ...]) -> Any:
    if len(known) == 1:
        return None if known is NOTHING else args[known[0]]
    is_view, shape, stride, offset, dtype, device = known
    if is_view:
        t = torch.empty(0, dtype=dtype, device="meta")
        t.set_(args[0].untyped_storage(), offset, shape, stride)
    else:
        t = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
    return FakeTensor(mode, t, device)
