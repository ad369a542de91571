"""One output of a whole batch, put together from the outputs of its micro-batches."""

from typing import Any, List

import torch

from .inputs import Cannot


class Joined:
    """One output tensor that is filled piece by piece, so that pieces and whole never exist twice.

    Each piece's data is copied to its place in the whole, and what goes on in its stead lies there:
    its own storage, and that of a tensor it may be a view of, is free at once unless the graph
    saved it. Where rows are interleaved (time and batch flattened into one dimension, time first)
    the whole is filled with the two apart.
    """

    def __init__(self, dim: Any, rows: Any, interleaved: Any = False) -> None:
        self.dim, self.rows, self.interleaved = dim, rows, interleaved
        self.filled = 0
        self.whole: Any = None
        self.pieces: List[Any] = []
        self.sizes: List[int] = []

    def add(self, piece: Any, of_rows: Any) -> None:
        apart = self._apart(piece.detach(), of_rows)
        dim = self.dim + self.interleaved
        length = apart.shape[dim]
        if self.whole is None:
            if length * self.rows % of_rows:
                raise Cannot("an output's length is not a multiple of the batch's")
            self.whole = _empty_like(apart, dim, length * self.rows // of_rows)
        place = self.whole.narrow(dim, self.filled, length)
        if place.shape != apart.shape or place.dtype != piece.dtype:
            raise Cannot(
                "micro-batches give outputs of different shapes: %s and %s"
                % (tuple(place.shape), tuple(apart.shape))
            )
        self.filled += length
        place.copy_(apart)
        self.pieces.append(
            _Place.apply([place], self.dim, self.interleaved, piece)
            if piece.requires_grad
            else place
        )
        self.sizes.append(length)

    def _apart(self, piece: Any, of_rows: Any) -> Any:
        if not self.interleaved:
            return piece
        if piece.shape[self.dim] % of_rows:
            raise Cannot("an output's length is not a multiple of the batch's")
        return piece.unflatten(self.dim, (-1, of_rows))

    def result(self) -> Any:
        if any(p.requires_grad for p in self.pieces):
            whole = _Whole.apply(
                [self.whole], self.dim + self.interleaved, self.sizes, *self.pieces
            )
        else:
            whole = self.whole
        self.pieces = []
        return whole.flatten(self.dim, self.dim + 1) if self.interleaved else whole


def parts_of(grad: torch.Tensor, dim: Any, sizes: Any, interleaved: Any) -> Any:
    """The gradient of a joined output as the gradients of its pieces."""
    if not interleaved:
        return grad.split(sizes, dim)
    return [
        part.flatten(dim, dim + 1)
        for part in grad.unflatten(dim, (-1, sum(sizes))).split(sizes, dim + 1)
    ]


def _empty_like(piece: Any, dim: Any, length: Any) -> Any:
    shape = list(piece.shape)
    shape[dim] = length
    channels_last = (
        piece.dim() == 4
        and not piece.is_contiguous()
        and piece.is_contiguous(memory_format=torch.channels_last)
    )
    return torch.empty(
        shape,
        dtype=piece.dtype,
        device=piece.device,
        memory_format=torch.channels_last if channels_last else torch.contiguous_format,
    )


class _Place(torch.autograd.Function):
    """A piece as it lies in the whole. The graph goes on to the piece, whose data nobody needs any
    longer.
    """

    @staticmethod
    def forward(ctx: Any, place: Any, dim: Any, interleaved: Any, piece: Any) -> Any:
        ctx.dim, ctx.interleaved = dim, interleaved
        # The same memory as a tensor of its own: autograd must not see a view of the whole.
        return torch.empty(0, dtype=piece.dtype, device=piece.device).set_(
            place[0].untyped_storage(), place[0].storage_offset(), place[0].shape, place[0].stride()
        )

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return None, None, None, grad.flatten(ctx.dim, ctx.dim + 1) if ctx.interleaved else grad


class _Whole(torch.autograd.Function):
    """The joined tensor as the result of its pieces; the gradient goes back to them as views."""

    @staticmethod
    def forward(ctx: Any, whole: Any, dim: Any, sizes: Any, *pieces: Any) -> Any:
        ctx.dim, ctx.sizes = dim, sizes
        return whole[0]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return (None, None, None) + tuple(grad.split(ctx.sizes, ctx.dim))
