"""The batch inside a call: which tensors carry it, along which dimension, how it is cut and how results are joined."""
import torch

from . import tree


class Cannot(Exception):
    """This call cannot be cut into pieces; the message is the reason that the user reads."""


def is_tensor(value):
    return isinstance(value, torch.Tensor)


class Inputs:
    """The arguments of one call, with the dimension of each tensor that carries the batch (None: passed on whole)."""

    def __init__(self, args, kwargs, dim=0):
        self.leaves, self._rebuild = tree.flatten((args, kwargs))
        self.names = [name.split(".", 1)[1] for name in tree.paths((args, kwargs))]
        self._refuse_opaque()
        self.rows = self._count_rows(dim)
        self.dims = [self._dim_of(leaf, dim) for leaf in self.leaves]

    def _refuse_opaque(self):
        for name, leaf in zip(self.names, self.leaves):
            if is_tensor(leaf):
                if leaf.is_sparse or leaf.layout != torch.strided or getattr(leaf, "is_nested", False):
                    raise Cannot("argument %s is a %s tensor, which has no rows to cut" % (name, leaf.layout))
            elif tree.holds_tensors(leaf, is_tensor):
                raise Cannot("argument %s is a %s, which holds tensors in a way that is not known" % (name, type(leaf).__name__))

    def _count_rows(self, dim):
        """The batch is as long as the first tensor that is no scalar; named inputs of transformers come before the rest."""
        first = None
        for name, leaf in zip(self.names, self.leaves):
            if is_tensor(leaf) and leaf.dim() > dim:
                if name in ("input_ids", "pixel_values", "inputs_embeds", "input_values", "input_features"):
                    return leaf.shape[dim]
                first = leaf.shape[dim] if first is None else first
        if first is None:
            raise Cannot("no argument is a tensor with a batch dimension")
        return first

    def _dim_of(self, leaf, dim):
        if not is_tensor(leaf) or leaf.dim() == 0:
            return None
        if leaf.dim() > dim and leaf.shape[dim] == self.rows:
            return dim
        # A recurrent state is (layers, batch, hidden) beside (batch, time, features), lengths are (batch,) beside
        # (time, batch, features): the other dimension of the first two.
        other = 1 - dim
        if leaf.dim() > other and leaf.shape[other] == self.rows and (dim == 1 or leaf.dim() == 3):
            return other
        return None

    def cut(self, sizes):
        """The calls' (args, kwargs), one for each size. A piece is a view; its gradient goes back through one split."""
        columns = [[leaf] * len(sizes) if dim is None else _split(leaf, sizes, dim) for leaf, dim in zip(self.leaves, self.dims)]
        return [self._rebuild(leaves) for leaves in zip(*columns)]

    def pick(self, rows):
        """The call for a few rows, on copies: nothing the module does to them can reach the user's tensors."""
        leaves = []
        for leaf, dim in zip(self.leaves, self.dims):
            if is_tensor(leaf):
                leaf = leaf.detach()
                leaf = leaf.clone() if dim is None else leaf.index_select(dim, torch.tensor(rows, device=leaf.device))
            leaves.append(leaf)
        return self._rebuild(leaves)

    def elements_per_row(self):
        """Of the largest argument: grows with the length of a sequence or the size of an image."""
        return max((leaf.numel() // self.rows for leaf, dim in zip(self.leaves, self.dims) if dim is not None), default=0)

    def signature(self):
        """What a plan depends on: the structure and the batch's place in it, not the sizes."""
        return tuple((name, leaf.dim() if is_tensor(leaf) else type(leaf).__name__, dim)
                     for name, leaf, dim in zip(self.names, self.leaves, self.dims))


def _split(leaf, sizes, dim):
    return leaf.split(sizes, dim)


def even(rows, size):
    """Sizes of pieces of at most size rows, as even as they can be."""
    count = -(-rows // size)
    return [rows // count + (i < rows % count) for i in range(count)]


class Joined:
    """One output tensor that is filled piece by piece, so that pieces and whole never exist twice.

    Each piece's data is copied to its place in the whole, and the piece, which autograd still needs as a node of the
    graph, is pointed there: its own storage is free at once unless the graph saved it.
    """

    def __init__(self, dim, rows):
        self.dim, self.rows, self.filled = dim, rows, 0
        self.whole, self.pieces = None, []

    def add(self, piece, of_rows, inputs):
        length = piece.shape[self.dim]
        if self.whole is None:
            if length * self.rows % of_rows:
                raise Cannot("an output's length is not a multiple of the batch's")
            self.whole = _empty_like(piece, self.dim, length * self.rows // of_rows)
        place = self.whole.narrow(self.dim, self.filled, length)
        if place.shape != piece.shape or place.dtype != piece.dtype:
            raise Cannot("pieces of the batch give outputs of different shapes: %s and %s" % (tuple(place.shape), tuple(piece.shape)))
        self.filled += length
        with torch.no_grad():
            place.copy_(piece)
            if piece.grad_fn is not None and not any(piece is i for i in inputs):
                piece.data = place
        self.pieces.append(piece if piece.requires_grad else place)

    def result(self):
        if not any(p.requires_grad for p in self.pieces):
            return self.whole
        return _Whole.apply([self.whole], self.dim, *self.pieces)


def _empty_like(piece, dim, length):
    shape = list(piece.shape)
    shape[dim] = length
    channels_last = piece.dim() == 4 and not piece.is_contiguous() and piece.is_contiguous(memory_format=torch.channels_last)
    return torch.empty(shape, dtype=piece.dtype, device=piece.device,
                       memory_format=torch.channels_last if channels_last else torch.contiguous_format)


class _Whole(torch.autograd.Function):
    """The joined tensor as the result of its pieces; the gradient goes back to them as views."""

    @staticmethod
    def forward(ctx, whole, dim, *pieces):
        ctx.dim, ctx.sizes = dim, [p.shape[dim] for p in pieces]
        return whole[0]

    @staticmethod
    def backward(ctx, grad):
        return (None, None) + tuple(grad.split(ctx.sizes, ctx.dim))
