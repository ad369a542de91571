"""Random numbers of pieces of a batch: each piece draws for the whole batch and takes its part.

Dropout fills a tensor as large as the batch. A piece that drew for itself would drop other values.
Here every operation that draws sees a tensor as large as for the whole batch, from the same state
of the generator, and the piece takes what lies at its place: the numbers are those that the
untouched program draws, and the generator ends where it would end there. Which dimension carries
the batch is seen on a few samples, and the numbers are compared there before anybody relies on it.
"""

import contextlib
import dataclasses
import threading
from typing import Any, Dict, Iterator, List, Optional, Tuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..calls import tree
from .inputs import Cannot, is_tensor

# Names of operations: those that fill a tensor in place, those that draw for each element of one,
# and those that are told a size.
_FILL = {"bernoulli_", "uniform_", "normal_", "exponential_", "random_", "cauchy_", "log_normal_"}
_FILL |= {"geometric_"}
_LIKE = {"native_dropout", "bernoulli", "rand_like", "randn_like", "randint_like", "multinomial"}
_LIKE |= {"poisson"}
_PROBABLE = {"bernoulli", "multinomial", "poisson"}  # what they are given must be probabilities
_SIZED = {"rand", "randn", "randint", "normal"}
# Attention draws by an offset into the generator's stream that grows with every sample.
_BY_OFFSET = {
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
}

_local = threading.local()
_names: Dict[Any, str] = {}  # operation -> its name where it draws, else ""


def _name(func: Any) -> str:
    """The name of an operation that draws random numbers; "" for every other."""
    known = _names.get(func)
    if known is None:
        draws = torch.Tag.nondeterministic_seeded in func.tags
        known = _names[func] = func._schema.name.split("::")[1] if draws else ""
    return known


def _drawn(func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    """A tensor of the shape that an operation draws for, or that shape; None where it draws
    nothing.
    """
    name = _name(func)
    if not name or name == "_fused_sdp_choice":
        return None
    if _dropout_p(func, args, kwargs) == 0:
        return None
    if name == "randperm":
        return (args[0],)
    if name in _SIZED and not (args and is_tensor(args[0])):
        return tuple(args[_size_at(func)]) if len(args) > _size_at(func) else None
    return next((a for a in args if is_tensor(a)), ())


def _size_at(func: Any) -> int:
    return next((i for i, a in enumerate(func._schema.arguments) if a.name == "size"), 99)


def _dropout_p(func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Optional[float]:
    """The probability by which attention drops, where the operation has one."""
    for i, a in enumerate(func._schema.arguments):
        if a.name == "dropout_p":
            return float(args[i] if i < len(args) else kwargs.get("dropout_p", 0.0))
    return None


@dataclasses.dataclass(frozen=True)
class Place:
    """Where the batch lies in what an operation draws for."""

    dim: Optional[int]  # None: it draws the same for any number of samples
    each: int = 1  # elements of that dimension for a sample
    order: Tuple[int, ...] = ()  # dimensions as they lie in memory, the outermost first
    static: Tuple[int, ...] = ()  # the shape, with 0 for that dimension


class Draws:
    """What a module draws. row: the most bytes that drawing for one sample takes for a moment."""

    def __init__(self) -> None:
        self.sequence: List[Tuple[str, int, Place]] = []  # name, dimensions, place, as they came
        self.row = 0.0

    def place(
        self,
        name: str,
        shape: Tuple[int, ...],
        order: Optional[Tuple[int, ...]],
        rows: int,
        at: int,
    ) -> Place:
        """Where the batch lies in what the operation draws for that comes as number at; raises
        Cannot where that cannot be told.
        """
        some = [p for n, dims, p in self.sequence if n == name and dims == len(shape)]
        some = [p for p in some if p.dim is None or _lies_so(p.order, order, shape)]
        if len({(p.dim, p.order) for p in some}) > 1:
            some = [p for p in some if _fits(p, shape, rows)]
        if len({(p.dim, p.order) for p in some}) > 1 and at < len(self.sequence):
            some = [p for p in some if p is self.sequence[at][2]]
        if not some:
            raise Cannot("which samples the random numbers of %s belong to is not known" % name)
        if some[0].dim is not None and shape[some[0].dim] % rows:
            raise Cannot("the random numbers of %s cannot be divided among the samples" % name)
        return some[0]


def _lies_so(
    order: Tuple[int, ...], now: Optional[Tuple[int, ...]], shape: Tuple[int, ...]
) -> bool:
    """Whether a tensor lies in memory as it did. One sample alone tells nothing of its place."""
    return now is not None and [d for d in order if shape[d] > 1] == [
        d for d in now if shape[d] > 1
    ]


def _fits(place: Place, shape: Tuple[int, ...], rows: int) -> bool:
    if place.dim is None:
        return place.static == shape
    return shape[place.dim] == place.each * rows and place.static == _static(shape, place.dim)


def _static(shape: Tuple[int, ...], dim: int) -> Tuple[int, ...]:
    return (*shape[:dim], 0, *shape[dim + 1 :])


class Recorder(TorchDispatchMode):
    """Notes what is drawn while it is entered: (name, shape, order, bytes of an element)."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: List[Tuple[str, Tuple[int, ...], Optional[Tuple[int, ...]], int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        what = _drawn(func, args, kwargs or {})
        if is_tensor(what):
            noted = tuple(what.shape), _order(what), what.element_size()
            self.seen.append((_name(func), *noted))
        elif what is not None:
            self.seen.append((_name(func), what, tuple(range(len(what))), 4))
        return func(*args, **(kwargs or {}))


def _order(tensor: torch.Tensor) -> Optional[Tuple[int, ...]]:
    """Its dimensions as they lie in memory; None where it has gaps."""
    order = sorted(range(tensor.dim()), key=lambda d: (-tensor.stride(d), d))
    size = 1
    for d in reversed(order):
        if tensor.shape[d] > 1 and tensor.stride(d) != size:
            return None
        size *= tensor.shape[d]
    return tuple(order)


def compare(counts: Tuple[int, ...], records: List[Recorder]) -> Optional[Draws]:
    """What three runs on so many samples drew; None where no place of the batch explains it."""
    a, b, ab = (r.seen for r in records)
    if not len(a) == len(b) == len(ab):
        return None
    draws = Draws()
    for x, y, both in zip(a, b, ab):
        place = _place_of(counts, (x, y, both))
        if place is None:
            return None
        draws.sequence.append((x[0], len(x[1]), place))
        if place.dim is not None:
            times = {"native_dropout": 3, "multinomial": 3}.get(x[0], 2 if x[0] in _LIKE else 1)
            size = times * torch.Size(both[1]).numel() * both[3] / counts[2]
            draws.row = max(draws.row, 0 if x[0] in _BY_OFFSET else size)
    return draws


def _place_of(counts: Tuple[int, ...], seen: Any) -> Optional[Place]:
    """The Place of one operation that was seen three times."""
    (name, *_), shapes, orders = seen[0], [s[1] for s in seen], {s[2] for s in seen}
    if len({s[0] for s in seen}) > 1 or len({len(s) for s in shapes}) > 1:
        return None
    apart = [d for d in range(len(shapes[0])) if len({s[d] for s in shapes}) > 1]
    if not apart:
        return Place(None, static=shapes[0])
    dim = apart[0]
    each = {s[dim] / n for s, n in zip(shapes, counts)}
    known = name in _FILL | _LIKE | _SIZED | _BY_OFFSET
    if len(apart) > 1 or len(each) > 1 or len(orders) > 1 or None in orders or not known:
        return None
    if name in _BY_OFFSET and dim != 0 or next(iter(each)) % 1:
        return None
    return Place(dim, int(next(iter(each))), next(iter(orders)), _static(shapes[0], dim))


class AsWhole(TorchDispatchMode):
    """While this is entered, what is drawn for some samples is the part of what is drawn for all
    of them. start: the first of the samples; rows: how many; total: of the batch.
    """

    def __init__(self, draws: Draws, start: int, rows: int, total: int) -> None:
        super().__init__()
        self.draws, self.start, self.rows, self.total = draws, start, rows, total
        self.at = 0  # operations that have drawn in this call

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        what = _drawn(func, args, kwargs)
        if what is None:
            return func(*args, **kwargs)
        name, shape = _name(func), tuple(what.shape if is_tensor(what) else what)
        order = _order(what) if is_tensor(what) else tuple(range(len(shape)))
        place = self.draws.place(name, shape, order, self.rows, self.at)
        self.at += 1
        if place.dim is None:
            return func(*args, **kwargs)
        if name in _BY_OFFSET:
            return self._by_offset(func, what, args, kwargs)
        if not is_tensor(what):
            at = _size_at(func)
            size = list(what)
            size[place.dim] = size[place.dim] // self.rows * self.total
            drawn = func(*args[:at], size, *args[at + 1 :], **kwargs)
            return self._mine(drawn, place).clone()
        whole = self._as_large(what, place)
        if name in _PROBABLE:
            whole.fill_(1)
        self._mine(whole, place).copy_(what)
        drawn = func(*(whole if a is what else a for a in args), **kwargs)
        if name in _FILL:
            return what.copy_(self._mine(whole, place))
        leaves, rebuild = tree.flatten(drawn)
        return rebuild([self._mine(t, place).clone() for t in leaves])

    def _as_large(self, tensor: torch.Tensor, place: Any) -> torch.Tensor:
        """A tensor for the whole batch that lies in memory as this one does."""
        shape = list(tensor.shape)
        shape[place.dim] = shape[place.dim] // self.rows * self.total
        lies = tensor.new_empty([shape[d] for d in place.order])
        return lies.permute([place.order.index(d) for d in range(len(shape))])

    def _mine(self, whole: torch.Tensor, place: Any) -> torch.Tensor:
        each = whole.shape[place.dim] // self.total
        return whole.narrow(place.dim, self.start * each, self.rows * each)

    def _by_offset(self, func: Any, query: torch.Tensor, args: Any, kwargs: Any) -> Any:
        """The offset of a sample grows by as much as one sample moves the generator on."""
        begin = torch.cuda.get_rng_state(query.device)
        result = func(*args, **kwargs)
        moved = _offset(torch.cuda.get_rng_state(query.device)) - _offset(begin)
        if moved % self.rows or moved // self.rows % 4:
            raise Cannot("the random numbers of attention cannot be divided among the samples")
        each = moved // self.rows
        if self.start:
            torch.cuda.set_rng_state(_moved(begin, self.start * each), query.device)
            result = func(*args, **kwargs)
        torch.cuda.set_rng_state(_moved(begin, self.total * each), query.device)
        return result


def _offset(state: torch.Tensor) -> int:
    """Of a card's generator: the second of the two numbers that its state is."""
    return int(state[8:16].view(torch.int64))


def _moved(state: torch.Tensor, by: int) -> torch.Tensor:
    state = state.clone()
    state[8:16].view(torch.int64).add_(by)
    return state


def current() -> Optional[AsWhole]:
    """What this thread draws by, for a second run: again(current())."""
    return getattr(_local, "mode", None)


@contextlib.contextmanager
def again(mode: Optional[AsWhole]) -> Iterator[None]:
    """Draws by mode, where this thread does not already."""
    before = current()
    if mode is None or mode is before:
        yield
        return
    _local.mode = mode
    try:
        with mode:
            yield
    finally:
        _local.mode = before


def of_piece(call: Any, draws: Optional[Draws], start: int, rows: int, total: int) -> Any:
    """The call of one piece."""
    if draws is None:
        return call
    mode = AsWhole(draws, start, rows, total)

    def drawing(*args: Any, **kwargs: Any) -> Any:
        mode.at = 0
        with again(mode):
            return call(*args, **kwargs)

    return drawing
