"""Numbers that name places must name places that are there.

Arguments may hold numbers of places in the whole batch: negatives drawn from all samples, edges of
a graph. A trial with a part of the batch has fewer places. A CPU says so. A card ends in an
assertion, and no later call of the process works on it. So while a trial runs on a card, indices
are looked at before a kernel gets them.
"""

import contextlib
from typing import Any, Callable, ContextManager, Dict, Iterator, Tuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

SAY_SO = ("cpu", "meta")  # kinds of devices that report a bad index by themselves

# (indices, how many places there are, how far below zero they may be)
Checked = Iterator[Tuple[torch.Tensor, int, int]]


def checked(device: torch.device) -> ContextManager[Any]:
    """While this is entered, an index out of range is an error before it reaches the device."""
    return contextlib.nullcontext() if device.type in SAY_SO else _Looks()


class _Looks(TorchDispatchMode):
    supports_higher_order_operators = True  # they are run as they are

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        packet = getattr(func, "overloadpacket", None)
        look = _LOOKS.get(getattr(packet, "__name__", ""))
        if look is not None:
            for indices, places, below in look(*args):
                _refuse_outside(indices, places, below)
        return func(*args, **(kwargs or {}))


def _refuse_outside(indices: torch.Tensor, places: int, below: int) -> None:
    if not indices.numel():
        return
    least, most = torch.aminmax(indices)
    if int(most) >= places or int(least) < below:
        named = int(most) if int(most) >= places else int(least)
        raise IndexError("%d is named where there are %d" % (named, places))


def _along(tensor: torch.Tensor, dim: int, indices: torch.Tensor, *_: Any) -> Checked:
    """gather, scatter, index_select and what is like them."""
    yield indices, tensor.size(dim) if tensor.dim() else 1, 0


def _by_brackets(tensor: torch.Tensor, indices: Any, *_: Any) -> Checked:
    """tensor[...]: None leaves a dimension as it is, a mask takes as many as it has."""
    dim = 0
    for one in indices:
        if one is None:
            dim += 1
        elif one.dtype in (torch.bool, torch.uint8):
            dim += one.dim()
        else:
            yield one, tensor.size(dim), -tensor.size(dim)
            dim += 1


def _rows(table: torch.Tensor, indices: torch.Tensor, *_: Any) -> Checked:
    yield indices, table.size(0), 0


def _elements(tensor: torch.Tensor, indices: torch.Tensor, *_: Any) -> Checked:
    yield indices, tensor.numel(), -tensor.numel()


def _classes(
    scores: torch.Tensor, target: torch.Tensor, weight: Any, reduction: Any, ignored: int, *_: Any
) -> Checked:
    yield target[target != ignored], scores.size(min(1, scores.dim() - 1)), 0


_LOOKS: Dict[str, Callable[..., Checked]] = {
    **dict.fromkeys(("index", "index_put", "index_put_", "_index_put_impl_"), _by_brackets),
    **dict.fromkeys(
        (
            "gather",
            "index_select",
            *(
                name + end
                for end in ("", "_")
                for name in (
                    "scatter",
                    "scatter_add",
                    "scatter_reduce",
                    "index_add",
                    "index_copy",
                    "index_fill",
                    "index_reduce",
                )
            ),
        ),
        _along,
    ),
    **dict.fromkeys(("embedding", "_embedding_bag", "_embedding_bag_forward_only"), _rows),
    **dict.fromkeys(("take", "put", "put_"), _elements),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), _classes),
}
