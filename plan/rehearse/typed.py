"""The old types of tensors on a card: `torch.cuda.FloatTensor(2, 3)`,
`x.type(torch.cuda.LongTensor)`, and their names as text. torch's own ask the driver for a card.
"""

from __future__ import annotations

from typing import Any

import torch

DTYPES = {
    "BFloat16Tensor": torch.bfloat16,
    "BoolTensor": torch.bool,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "DoubleTensor": torch.float64,
    "FloatTensor": torch.float32,
    "HalfTensor": torch.float16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "ShortTensor": torch.int16,
}
_PREFIX = "torch.cuda."


class Typed(type):
    """The type of such a type: it makes tensors, and knows them."""

    dtype: torch.dtype
    is_cuda = True

    def __call__(cls, *args: Any, **named: Any) -> torch.Tensor:
        place = {"dtype": cls.dtype, "device": named.get("device") or "cuda"}
        if len(args) == 1 and isinstance(args[0], torch.Tensor):
            return args[0].to(**place)
        if len(args) == 1 and not isinstance(args[0], (int, torch.Size)):
            return torch.tensor(args[0], **place)
        whole = len(args) == 1 and isinstance(args[0], torch.Size)
        return torch.empty(args[0] if whole else args or (0,), **place)

    def __instancecheck__(cls, thing: object) -> bool:
        return isinstance(thing, torch.Tensor) and thing.is_cuda and thing.dtype == cls.dtype


def install() -> None:
    types = {name: Typed(name, (), {"dtype": dtype}) for name, dtype in DTYPES.items()}
    for name, kind in types.items():
        kind.__module__ = _PREFIX[:-1]
        setattr(torch.cuda, name, kind)
    _conversions(types)
    _default(types)


def _known(types: dict[str, Typed], kind: object) -> Typed | None:
    """The type that is meant, by itself or by its name; None for those of the host."""
    if isinstance(kind, str) and kind.startswith(_PREFIX):
        return types.get(kind[len(_PREFIX) :])
    return kind if isinstance(kind, Typed) else None


def _conversions(types: dict[str, Typed]) -> None:
    original = torch.Tensor.type

    def convert(t: torch.Tensor, dtype: Any = None, *args: Any, **named: Any) -> Any:
        kind = _known(types, dtype)
        if kind is None:
            return original(t, dtype, *args, **named)
        return t.to(device=t.device if t.is_cuda else "cuda", dtype=kind.dtype)

    torch.Tensor.type = convert


def _default(types: dict[str, Typed]) -> None:
    original = torch.set_default_tensor_type

    def set_default(kind: Any) -> None:
        known = _known(types, kind)
        torch.set_default_device("cuda" if known is not None else None)
        if known is not None:
            torch.set_default_dtype(known.dtype)
        else:
            original(kind)

    torch.set_default_tensor_type = set_default
