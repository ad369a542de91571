"""What feeding the model costs in memory: batches that wait in data loaders, shuffle and cache
buffers of tf.data, results that datasets' map has not written yet.

Each of them is told when its size is first known, with the arguments that make it so large.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import types
from typing import TYPE_CHECKING, Any, Callable, Dict, Tuple

from .. import compiled, guard, link
from . import holders, host, steps, wrapping

if TYPE_CHECKING:
    import torch

# hears of a call after it: the object, the call's arguments and its named ones
Tell = Callable[[Any, Tuple[Any, ...], Dict[str, Any]], object]

MOST_LOADERS = 16
MEASURABLE = 32 << 20  # bytes: what else comes with the first batch is less
NOTICEABLE = 96 << 10  # bytes of a cache: as much is called a leak
MEASURED = 3  # batches of a loader that are measured: the largest counts


@dataclasses.dataclass(frozen=True)
class Loader:
    """What a loader of torch is told with."""

    source: str
    workers: int
    prefetch: int
    pinned: bool
    persistent: bool
    count: int  # samples a batch
    file: str
    line: int


# id of an iterator of torch's DataLoader -> its loader's facts, batches left
waiting: dict[int, tuple[Loader, int]] = {}
# (file, line, workers, prefetch) of a loader -> bytes of a batch that were reported
_batches: dict[tuple[str, int, int, int], int] = {}
# (file, line, "shuffle" or "cache") -> elements and bytes of each that were reported
_buffers: dict[tuple[str, int, str], tuple[int, int]] = {}
# "shuffle" or "cache" -> the last such buffer, where it is measured while it fills: a size is not
# known, or it grows like a leak meanwhile
_unsized: dict[str, dict[str, Any]] = {}
filling: dict[str, int] = {}  # meanwhile: the iterator's batches, and the heap before
# what datasets' map was called with, inherited by its forked processes
_mapping: dict[str, Any] = {}


def hook_torch(module: Any) -> None:
    """Hooks torch.utils.data.dataloader: an iterator begins."""
    original = module._BaseDataLoaderIter.__init__

    @compiled.left_alone
    @functools.wraps(original)
    def __init__(
        self: Any, loader: torch.utils.data.DataLoader[Any], *args: Any, **kwargs: Any
    ) -> None:
        original(self, loader, *args, **kwargs)
        _begins(self, loader)

    module._BaseDataLoaderIter.__init__ = __init__


@guard.hook("loader begins", heavy=True)
def _begins(iterator: Any, loader: torch.utils.data.DataLoader[Any]) -> None:
    if len(waiting) >= MOST_LOADERS:
        waiting.clear()
    workers = int(loader.num_workers)
    file, line = _line()
    facts = Loader(
        source="DataLoader",
        workers=workers,
        prefetch=int(getattr(loader, "prefetch_factor", None) or 2) if workers else 1,
        pinned=bool(getattr(loader, "pin_memory", False)) and _has_card(),
        persistent=bool(getattr(loader, "persistent_workers", False)),
        count=int(getattr(loader, "batch_size", None) or 0),
        file=file,
        line=line,
    )
    waiting[id(iterator)] = facts, MEASURED
    data = loader.dataset
    if type(data).__module__.startswith("torch."):  # a Subset
        data = getattr(data, "dataset", data)
    if workers == 0:
        holders.made(data)


def _has_card() -> bool:
    torch: Any = sys.modules.get("torch")
    try:
        return bool(torch.cuda.is_initialized())
    except Exception:
        return False


@guard.hook("batch measured", heavy=True)
def batch(iterator: Any, data: object) -> None:
    """An iterator of a DataLoader has given a batch."""
    found = waiting.get(id(iterator))
    if found is None:
        return
    facts, left = found
    if left <= 1:
        del waiting[id(iterator)]
    else:
        waiting[id(iterator)] = facts, left - 1
    held = holders.look(0.02, roots=[("batch", data, ("", 0, None))])
    size = sum(h.host + h.card for h in held.values())
    key = (facts.file, facts.line, facts.workers, facts.prefetch)
    if size > 1.1 * _batches.get(key, 0):
        _batches[key] = size
        copies = 2 if facts.pinned else 1
        total = size * max(1, facts.workers) * facts.prefetch * copies
        link.send("feeding", dict(vars(facts), each=size, total=total))


def hook_tf_data(module: Any) -> None:
    """Hooks tensorflow.python.data.ops.dataset_ops: buffers of whole elements."""
    cls = module.DatasetV2
    for name in ("shuffle", "cache"):
        _after(cls, name, functools.partial(_buffered, name))


def _after(cls: type, name: str, tell: Tell) -> None:
    def around(original: Any) -> Any:
        def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            tell(self, args, kwargs)
            return result

        return wrapped

    wrapping.once(cls, name, around)


@guard.hook("buffer", heavy=True)
def _buffered(name: str, dataset: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    size, elements = _element(dataset.element_spec), int(dataset.cardinality())
    if name == "cache":
        if args and args[0] or kwargs.get("filename"):
            return  # a cache in a file
        count = max(0, elements)
    else:
        count = args[0] if args else kwargs.get("buffer_size", 0)
        count = int(count)
        if elements > 0:
            count = min(count, elements)
    file, line = _line()
    if _buffers.get((file, line, name)) != (count, size):
        _buffers[file, line, name] = (count, size)
        facts = {"source": "tf.data " + name, "count": count, "file": file, "line": line}
        link.send("feeding", dict(facts, each=size, total=count * size))
        if count * size == 0 or name == "cache":
            _unsized[name] = facts


def hook_tf_iterators(loop: steps.Loop, module: Any) -> None:
    """Hooks tensorflow.python.data.ops.iterator_ops: where the size of a buffer's elements is not
    known, what it takes is measured while it fills.
    """
    cls = module.OwnedIterator
    _after(cls, "__init__", _fills)
    original = cls.__next__

    @functools.wraps(original)
    def __next__(self: Any) -> Any:
        if loop.resting:
            element = original(self)
        else:
            before, loop.phase = loop.phase, "load"
            began = guard.now()
            try:
                element = original(self)
            finally:
                loop.wait_ns += guard.now() - began
                loop.phase = before
                guard.ledger.spent_ns += 2 * guard.NOTE_NS
        if filling:
            filled()
        return element

    cls.__next__ = __next__


@guard.hook("iterator begins", heavy=True)
def _fills(iterator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if _unsized and (args or kwargs.get("dataset") is not None):
        filling.update(batches=0, next=1, level=host.heap())


@guard.hook("buffers fill", heavy=True)
def filled() -> None:
    """An iterator has given a batch, or a step has used one. A shuffle buffer is full before the
    first; a cache grows until all have passed.
    """
    filling["batches"] += 1
    if filling["batches"] < filling["next"]:
        return
    filling["next"] = 1 + filling["batches"] * 5 // 4
    now, first = host.heap(), filling["batches"] == 1
    buffer = _unsized.get("shuffle" if first else "cache")
    grown = now - filling["level"]
    if first or grown < 0:  # what was there before may go while it fills
        filling["level"] = now
    if buffer is None or grown < (MEASURABLE if first else NOTICEABLE):
        return
    count = buffer["count"] if first else 0
    told = dict(buffer, each=grown // count if count else 0, total=grown)
    link.send("feeding", dict(told, count=count, measured=True, batches=filling["batches"]))


def _element(spec: Any) -> int:
    """Bytes of one element by its specification; 0 where a length is not known."""
    total = 0
    tensorflow: Any = sys.modules.get("tensorflow")
    for part in tensorflow.nest.flatten(spec):
        shape, dtype = getattr(part, "shape", None), getattr(part, "dtype", None)
        if shape is None or dtype is None or shape.rank is None or not shape.is_fully_defined():
            return 0
        total += shape.num_elements() * dtype.size
    return total


def hook_datasets(module: Any) -> None:
    """Hooks datasets.arrow_dataset: what map is called with."""
    cls = module.Dataset
    original = cls.map

    @functools.wraps(original)
    def map(self: Any, *args: Any, **kwargs: Any) -> Any:
        _map_begins(args, kwargs)
        try:
            return original(self, *args, **kwargs)
        finally:
            _mapping.clear()

    cls.map = map


@guard.hook("map begins", heavy=True)
def _map_begins(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    file, line = _line()
    _mapping.update(
        workers=int(kwargs.get("num_proc") or 1),
        count=int(kwargs.get("writer_batch_size") or 1000),
        file=file,
        line=line,
    )


def hook_arrow_writer(module: Any) -> None:
    """Hooks datasets.arrow_writer: the size of a row. Rows wait as Python objects, which are
    larger than what is written.
    """
    _after(module.ArrowWriter, "write", _waits)
    _after(module.ArrowWriter, "write_table", _written)


def _waits(writer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if _mapping and not getattr(writer, "_memroom_told", False):
        _measure_row(writer, args[0] if args else kwargs.get("example"))


@guard.hook("row", heavy=True)
def _measure_row(writer: Any, example: object) -> None:
    held = holders.look(0.02, roots=[("row", example, ("", 0, None))])
    _tell_rows(writer, sum(h.host for h in held.values()), 1)


@guard.hook("rows written", heavy=True)
def _written(writer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    table: Any = args[0] if args else kwargs.get("pa_table")
    rows = getattr(table, "num_rows", 0)
    if _mapping and rows and not getattr(writer, "_memroom_told", False):
        _tell_rows(writer, table.nbytes // rows, rows)


def _tell_rows(writer: Any, each: int, rows: int) -> None:
    writer._memroom_told = True
    total = each * max(_mapping["count"], rows) * _mapping["workers"]
    link.send("feeding", dict(_mapping, source="datasets map", each=each, total=total))


def _line() -> tuple[str, int]:
    """The program's line that is at work."""
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        if holders.is_users(frame.f_code.co_filename):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return "", 0
