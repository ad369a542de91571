"""The batch inside a call: which tensors carry it, along which dimension, and how it is cut."""

import copy
from typing import Any, Callable, Dict, Iterable, List, Optional, Set, Tuple

import torch

from ..calls import tree


class Cannot(Exception):
    """This call cannot be cut into pieces; the message is the reason that the user reads."""


class Together(Cannot):
    """The same, because samples were seen to meet."""


_WHOLE = (torch.int64, torch.int32)


def is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def readings(args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    """The ways in which the arguments may carry a batch, the likeliest first: a function for
    each.
    """
    if _first_list(args, kwargs) is not None:
        return [lambda: Lists(args, kwargs)]
    found = []
    for dim in _dims(args, kwargs):
        found.append(lambda dim=dim: Inputs(args, kwargs, dim))
        found.append(lambda dim=dim: Inputs(args, kwargs, dim, square=False))
    return found


_told: Dict[Any, Any] = {}  # arguments of whole numbers beside a batch -> dimensions that may be it


def _dims(args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    """The dimensions that may be the batch. Whole numbers, one for each sample, tell which it is:
    classes, lengths, places in a sequence. Along the other one they would point beyond what is left
    of a sequence, which a recurrent layer or an index does not survive on a card, nor does any
    later call of the process. That is read once for calls of a kind: it waits for the card.
    """
    leaves = zip(tree.paths((args, kwargs)), tree.flatten((args, kwargs))[0])
    tensors = [(name, t) for name, t in leaves if is_tensor(t)]
    first = next((t for _, t in tensors if t.dim() > 1), None)
    if first is None or first.shape[0] == first.shape[1]:
        return (0, 1)
    found = [
        (name, t)
        for name, t in tensors + _lists_of_numbers(args, kwargs, first.shape[:2])
        if t.dim() == 1 and t.dtype in _WHOLE and len(t) in first.shape[:2]
    ]
    key = first.dtype, first.dim(), *((name, len(t) == first.shape[0]) for name, t in found)
    if key not in _told:
        dims = [_told_by(t, first) for _, t in found]
        _told[key] = next((d for d in dims if d), (0, 1))
    return _told[key]


def _lists_of_numbers(args: Any, kwargs: Any, lengths: Any) -> Any:
    """Those with an item for each sample, as (name, tensor)."""
    found: List[Any] = []

    def note(name: str, value: Any) -> bool:
        for rows in lengths:
            if _has_item_for_each(value, rows) and all(_is_whole(v) for v in value):
                found.append((name, torch.tensor(value)))
        return False

    _with_items(args, kwargs, note)
    return found


def _is_whole(value: Any) -> Any:
    """Whether a tensor can hold it: hashes may be larger."""
    return type(value) is int and abs(value) < 1 << 62


def _told_by(numbers: Any, first: Any) -> Any:
    """The dimension of the batch that whole numbers tell; None where they do not. Positions, 0, 1,
    2, ..., do not, and as many numbers as there are features are lengths only if the longest is the
    other dimension.
    """
    if _counts_up(numbers):
        return None
    if len(numbers) == first.shape[0]:
        return (0,)
    least, most = int(numbers.min()), int(numbers.max())
    return (1,) if least > 0 and most == first.shape[0] else None


def any_inputs(args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    """The likeliest reading; raises Cannot where there is none."""
    return readings(args, kwargs)[0]()


def _first_list(args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    """The list of tensors that is the batch, as in detection: images of different sizes."""
    first = args[0] if args else next(iter(kwargs.values()), None)
    if (
        isinstance(first, (list, tuple))
        and type(first) in (list, tuple)  # a PackedSequence is a tuple too
        and len(first) > 1
        and all(is_tensor(t) and t.dim() >= 2 for t in first)
    ):
        return first
    return None


def _select(tensor: torch.Tensor, dim: Any, rows: int) -> Any:
    """A copy of some rows that lies in memory as the tensor does: a kernel may copy what lies
    otherwise, and keep the copy, or take another algorithm.
    """
    if any(step == 0 for step in tensor.stride()):  # expanded
        return tensor.index_select(dim, rows)
    order = sorted(range(tensor.dim()), key=lambda d: (-tensor.stride(d), d))
    picked = tensor.permute(order).index_select(order.index(dim), rows)
    return picked.permute([order.index(d) for d in range(tensor.dim())])


class _Items:
    """A list with an item for each sample, as lengths or sentences; a leaf of the arguments."""

    def __init__(self, items: Any) -> None:
        self.items = items

    def pick(self, rows: Iterable[int]) -> Any:
        return type(self.items)(self.items[row] for row in rows)

    def split(self, sizes: Any) -> Any:
        ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
        return [self.items[end - size : end] for end, size in zip(ends, sizes)]


SHAPE = 4  # whole numbers in a tuple up to which they are a shape


def _has_item_for_each(value: Any, rows: int) -> bool:
    """Whether it is a list of as many numbers or texts as there are samples."""
    if type(value) not in (list, tuple) or len(value) != rows or rows < 2:
        return False
    if type(value) is tuple and len(value) <= SHAPE and all(type(v) is int for v in value):
        return False
    return all(type(v) in (int, float, str, bytes) for v in value)


def _with_items(args: Tuple[Any, ...], kwargs: Dict[str, Any], is_items: Any) -> Any:
    """The arguments with _Items in place of lists. is_items(name, list): which of them."""

    def walk(value: Any, at: Any) -> Any:
        if type(value) in (list, tuple) and is_items(at, value):
            return _Items(value)
        if type(value) in (list, tuple):
            return type(value)(walk(v, "%s.%d" % (at, i)) for i, v in enumerate(value))
        if type(value) is dict:
            return {key: walk(v, "%s.%s" % (at, key)) for key, v in value.items()}
        return value

    found = tuple(walk(a, str(i)) for i, a in enumerate(args))
    return found, {key: walk(v, str(key)) for key, v in kwargs.items()}


def _flatten(args_kwargs: Any) -> Any:
    """tree.flatten for arguments with _Items; rebuild puts lists in their places again."""
    leaves, rebuild = tree.flatten(args_kwargs)

    def plain(new: Any) -> Any:
        return rebuild([leaf.items if isinstance(leaf, _Items) else leaf for leaf in new])

    return leaves, plain


class Inputs:
    """The arguments of one call, with the dimension of each tensor that carries the batch (None:
    passed on whole).
    """

    def __init__(self, args: Any, kwargs: Any, dim: Any = 0, square: Any = True) -> None:
        """square: whether a square matrix as long as the batch is cut; an attention mask (length,
        length) is none of it.
        """
        self._read(args, kwargs)
        self._indices: Optional[Set[int]] = None
        self._refuse_opaque()
        self.rows = self._count_rows(dim)
        self._lists: Set[Any] = set()  # names of those with an item for each sample
        args, kwargs = _with_items(args, kwargs, self._is_list)
        if self._lists:
            self._read(args, kwargs)
        self.dims = [self._dim_of(leaf, dim) for leaf in self.leaves]
        self._times = [1] * len(self.leaves)  # rows of each argument for one of the batch
        if not square:
            self._leave_squares()

    def _read(self, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        self.leaves, self._rebuild = _flatten((args, kwargs))
        self.names = [name.split(".", 1)[1] for name in tree.paths((args, kwargs))]

    def _is_list(self, name: str, value: Any) -> bool:
        if not _has_item_for_each(value, self.rows):
            return False
        self._lists.add(name)
        return True

    def _refuse_opaque(self) -> None:
        for name, leaf in zip(self.names, self.leaves):
            if is_tensor(leaf):
                if (
                    leaf.is_sparse
                    or leaf.layout != torch.strided
                    or getattr(leaf, "is_nested", False)
                ):
                    raise Cannot(
                        "argument %s is a %s tensor, which has no samples to split"
                        % (name, leaf.layout)
                    )
            elif tree.holds_tensors(leaf, is_tensor):
                raise Cannot(
                    "argument %s is a %s, which holds tensors in a way that is not known"
                    % (name, type(leaf).__name__)
                )

    def _count_rows(self, dim: Any) -> Any:
        """The batch is as long as the first tensor that is no scalar; named inputs of transformers
        come before the rest.
        """
        first = None
        for name, leaf in zip(self.names, self.leaves):
            if is_tensor(leaf) and leaf.dim() > dim:
                if name in (
                    "input_ids",
                    "pixel_values",
                    "inputs_embeds",
                    "input_values",
                    "input_features",
                ):
                    return leaf.shape[dim]
                first = leaf.shape[dim] if first is None else first
        if first is None:
            raise Cannot("no argument is a tensor with a batch dimension")
        return first

    def _dim_of(self, leaf: Any, dim: Any) -> Any:
        if not is_tensor(leaf) or leaf.dim() == 0:
            return None
        if leaf.dim() > dim and leaf.shape[dim] == self.rows:
            return dim
        # A recurrent state is (layers, batch, hidden) beside (batch, time, features), lengths are
        # (batch,) beside (time, batch, features): the other dimension of the first two.
        other = 1 - dim
        if leaf.dim() > other and leaf.shape[other] == self.rows and (dim == 1 or leaf.dim() == 3):
            return other
        return None

    def _leave_squares(self) -> None:
        squares = [
            i
            for i, leaf in enumerate(self.leaves)
            if is_tensor(leaf)
            and leaf.dim() == 2
            and leaf.shape[0] == leaf.shape[1]
            and self.dims[i] is not None
        ]
        for i in squares:
            self.dims[i] = None
        if not squares or not any(d is not None for d in self.dims):
            raise Cannot("no argument is a tensor with a batch dimension")

    def with_several(self) -> Any:
        """The same, where arguments hold several rows for each one, as a query has several
        documents; None where none does. Which of them belong to a row is not known, so this is for
        measuring only.
        """
        first = next((t for t, d in zip(self.leaves, self.dims) if d == 0), None)
        times = [
            leaf.shape[0] // self.rows
            if first is not None
            and dim is None
            and is_tensor(leaf)
            and (leaf.dim(), leaf.dtype) == (first.dim(), first.dtype)
            and leaf.shape[0] > self.rows
            and leaf.shape[0] % self.rows == 0
            else 1
            for leaf, dim in zip(self.leaves, self.dims)
        ]
        if max(times, default=1) == 1:
            return None
        found = copy.copy(self)
        found._times = times
        return found

    def cut(self, sizes: Any) -> Any:
        """The calls' (args, kwargs), one for each size. A piece is a view; its gradient goes back
        through one split.
        """
        columns = [_split(leaf, sizes, dim) for leaf, dim in zip(self.leaves, self.dims)]
        return [self._rebuild(leaves) for leaves in zip(*columns)]

    def in_order(self, call: Callable[..., Any]) -> Any:
        """The call for pieces that lie in memory as the whole argument does. A piece of a later
        dimension is a view with gaps, which cuDNN's recurrent networks refuse as a state; it is
        copied when its turn comes.
        """
        gaps = [
            i
            for i, (leaf, dim) in enumerate(zip(self.leaves, self.dims))
            if dim and leaf.is_contiguous()
        ]
        if not gaps:
            return call

        def without_gaps(*args: Any, **kwargs: Any) -> Any:
            leaves, rebuild = tree.flatten((args, kwargs))
            for i in gaps:
                leaves[i] = leaves[i].contiguous()
            args, kwargs = rebuild(leaves)
            return call(*args, **kwargs)

        return without_gaps

    def pick(self, rows: Any) -> Any:
        """The call for a few rows, on copies: nothing the module does to them can reach the user's
        tensors. What may index rows points to the first one: an index of a row that is not there
        stops a card for good.
        """
        indices, leaves = self.indices(), []
        for i, (leaf, dim) in enumerate(zip(self.leaves, self.dims)):
            if is_tensor(leaf):
                leaf = leaf.detach()
                if self._times[i] > 1:
                    dim, rows_of = 0, list(range(self._times[i] * len(rows)))
                else:
                    rows_of = rows
                leaf = (
                    leaf.clone()
                    if dim is None
                    else _select(leaf, dim, torch.tensor(rows_of, device=leaf.device))
                )
                leaf = leaf.clamp_(max=0) if i in indices else leaf
            elif isinstance(leaf, _Items):
                leaf = leaf.pick(rows)
            leaves.append(leaf)
        return self._rebuild(leaves)

    def indices(self) -> Any:
        """Places of the arguments that may hold numbers of rows, such as a graph's edges: whole
        numbers of which the largest is that of one of the later rows. Read once: it waits for the
        card.
        """
        if self._indices is None:
            self._indices = {
                i
                for i in range(len(self.leaves))
                if self._may_index(i) and self.rows // 2 <= int(self.leaves[i].max()) < self.rows
            }
        return self._indices

    def _may_index(self, i: Any) -> Any:
        """Whole numbers that have something to index: an argument that is cut needs another one, of
        numbers or with fewer dimensions. Tokens beside labels of their own shape index no rows.
        """
        leaf = self.leaves[i]
        if not is_tensor(leaf) or leaf.dim() == 0 or not leaf.numel() or leaf.dtype not in _WHOLE:
            return False
        others = [
            t
            for j, (t, dim) in enumerate(zip(self.leaves, self.dims))
            if j != i and dim is not None
        ]
        return self.dims[i] is None or any(
            t.is_floating_point() or t.dim() < leaf.dim() for t in others
        )

    def refuse_indices(self) -> None:
        """An argument that is not cut itself and names rows would name other rows in a piece."""
        for i in self.indices():
            if self.dims[i] is None and not _counts_up(self.leaves[i]):
                raise Cannot(
                    (
                        "argument %s may hold the numbers of samples, as a graph's edges do, and a "
                        "piece has others"
                    )
                    % self.names[i]
                )

    def flat(self, args_kwargs: Any) -> Any:
        """(leaves, rebuild) of a piece."""
        if not self._lists:
            return tree.flatten(args_kwargs)
        args, kwargs = args_kwargs
        return _flatten(_with_items(args, kwargs, lambda name, _: name in self._lists))

    def elements_per_row(self) -> Any:
        """Of the largest argument: grows with the length of a sequence or the size of an image."""
        return max(
            (
                leaf.numel() // self.rows
                for leaf, dim in zip(self.leaves, self.dims)
                if dim is not None
            ),
            default=0,
        )

    def row_counter(self) -> Any:
        """A function that counts the rows of a piece, given the piece's leaves."""
        at = next(i for i, d in enumerate(self.dims) if d is not None)
        dim = self.dims[at]
        return lambda leaves: float(leaves[at].shape[dim])

    def signature(self) -> Any:
        """What a plan depends on: the structure and the batch's place in it, not the sizes."""
        return tuple(
            (name, leaf.dim() if is_tensor(leaf) else type(leaf).__name__, dim)
            for name, leaf, dim in zip(self.names, self.leaves, self.dims)
        )


class Lists:
    """The arguments of a call whose batch is a list with a tensor, or a dict of tensors, for each
    row.
    """

    def __init__(self, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        self._args, self._kwargs = args, kwargs
        self.rows = len(_first_list(args, kwargs))
        self.leaves = list(args) + list(kwargs.values())
        self.names = [str(i) for i in range(len(args))] + list(kwargs)
        self.dims = [None] * len(self.leaves)  # no leaf is one tensor with rows

    def _is_batch(self, value: Any) -> Any:
        return type(value) in (list, tuple) and len(value) == self.rows

    def _with(self, change: Any) -> Any:
        """The call with another list in the place of each one that carries the batch."""

        def part(value: Any) -> Any:
            return change(value) if self._is_batch(value) else value

        return tuple(part(a) for a in self._args), {k: part(v) for k, v in self._kwargs.items()}

    def cut(self, sizes: Any) -> Any:
        ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
        return [
            self._with(lambda value, begin=end - size, end=end: value[begin:end])
            for end, size in zip(ends, sizes)
        ]

    def in_order(self, call: Callable[..., Any]) -> Any:
        return call

    def refuse_indices(self) -> None:
        """Rows of a list cannot be named by another argument, as far as anybody has seen."""

    def pick(self, rows: Iterable[int]) -> Any:
        def copies(value: Any) -> Any:
            leaves, rebuild = tree.flatten([value[row] for row in rows])
            return type(value)(rebuild([t.detach().clone() if is_tensor(t) else t for t in leaves]))

        return self._with(copies)

    def flat(self, args_kwargs: Any) -> Any:
        """The leaves of a piece: its arguments, whatever they hold, because lists differ in
        length.
        """
        args, kwargs = args_kwargs
        names = list(kwargs)
        return list(args) + list(kwargs.values()), lambda leaves: (
            tuple(leaves[: len(args)]),
            dict(zip(names, leaves[len(args) :])),
        )

    def elements_per_row(self) -> Any:
        leaves = [t for t in tree.flatten((self._args, self._kwargs))[0] if is_tensor(t)]
        return sum(t.numel() for t in leaves) // self.rows

    def row_counter(self) -> Any:
        at = next(i for i, leaf in enumerate(self.leaves) if self._is_batch(leaf))
        return lambda leaves: float(len(leaves[at]))

    def signature(self) -> Any:
        return tuple((name, self._is_batch(leaf)) for name, leaf in zip(self.names, self.leaves))


def _counts_up(leaf: Any) -> bool:
    """Whether these are positions, 0, 1, 2, ...: no numbers of rows."""
    last = leaf.reshape(-1, leaf.shape[-1])
    return bool((last == torch.arange(leaf.shape[-1], dtype=leaf.dtype, device=leaf.device)).all())


def _split(leaf: Any, sizes: Any, dim: Any) -> Any:
    if isinstance(leaf, _Items):
        return leaf.split(sizes)
    return [leaf] * len(sizes) if dim is None else leaf.split(sizes, dim)


def even(rows: int, size: Any) -> Any:
    """Sizes of pieces of at most size rows, as even as they can be."""
    count = -(-rows // size)
    return [rows // count + (i < rows % count) for i in range(count)]
