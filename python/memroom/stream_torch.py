"""Streams as torch data sets. Loaded only where torch is used."""

import copy
import functools
import mmap
import os
import pickle
import sys
import weakref
from typing import Any, Dict, Iterator, List, Set, Tuple

import numpy
import torch
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    default_collate,
    default_convert,
    get_worker_info,
)
from torch.utils.data._utils.fetch import _BaseDatasetFetcher
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from .passes import Passes
from .wire import FeedError

ALIGN = 64  # bytes at which each tensor of a piece begins
FORMS = 64  # ways to lay out a batch that are kept
LENT = 16  # pieces that may be read where they lie; batches in others are copied


def dataset(stream: Any) -> Any:
    return Batches(stream)


class Batches(IterableDataset):
    """Batches as tensors. Workers of a DataLoader take turns, so that the loader gives batches in
    the stream's order whatever their number is.
    """

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.number = 0  # passes that this process has begun
        self.loaded = False  # a state was loaded here and not read from yet
        self.outlet: Any = None  # of a worker
        if stream.passes is None:
            stream.passes = Passes()

    def __iter__(self) -> Iterator[Any]:
        return self._batches(_collating(sys._getframe(1).f_locals.get("self")))

    def _batches(self, collating: bool) -> Iterator[Any]:
        """The batches; where somebody's function looks at them in the worker, as they are."""
        worker = get_worker_info()
        if worker is None:
            for batch in self.stream._iterate(0, 1):
                yield _tensors(batch)
            return
        seed = int(worker.seed - worker.id) & (1 << 64) - 1 or 1
        self._agree(seed, self.number)
        if self.outlet is None and hasattr(os, "memfd_create"):
            self.outlet = Outlet()
        outlet = None if collating else self.outlet
        for batch in self.stream._iterate(worker.id, worker.num_workers):
            tensors = _tensors(batch)
            yield outlet.packed(tensors) if outlet else tensors

    def _agree(self, seed: int, number: int) -> None:
        """All workers of a pass read the same epoch, and the next pass the next one."""
        stream = self.stream
        if not stream._fresh:  # it was read from before, here or by the process that started us
            stream._go_to(stream.epoch + 1)
        epoch = stream.passes.begin(seed, number, stream.epoch, self.loaded)
        if epoch != stream.epoch:
            stream._go_to(epoch)
        self.number, self.loaded = number + 1, False

    def __len__(self) -> int:
        return len(self.stream)

    def set_epoch(self, epoch: int) -> None:
        self.stream.set_epoch(epoch)

    def state_dict(self) -> Dict[str, Any]:
        """Of the whole stream; in a worker, of that worker's share."""
        worker = get_worker_info()
        state = self.stream.state_dict()
        if worker is not None:
            for one, stream in _each(state, self.stream):
                one["batch"], one["done"] = stream._start, stream._done
            state["workers"] = worker.num_workers
        answer: Dict[str, Any] = state
        return answer

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        worker = get_worker_info()
        workers = 1 if worker is None else worker.num_workers
        if state.get("workers", workers) != workers:
            raise ValueError(
                "this state was taken in one of %d workers, there are %d: use the state of the "
                "stream itself, stream.state_at(batches)" % (state["workers"], workers)
            )
        self.stream.load_state_dict(state)
        for one, stream in _each(state, self.stream):
            stream._done = int(one.get("done", 0))
        self.loaded = worker is not None


class Direct(_SingleProcessDataLoaderIter):
    """What a DataLoader iterates with where its workers would only hand batches on: the server has
    made them. Torch's queues take longer for each than reading it takes, and workers memory."""

    def __init__(self, loader: Any) -> None:
        alone = copy.copy(loader)
        alone.num_workers = 0
        super().__init__(alone)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self.__init__(loader)  # type: ignore[misc]  # with persistent_workers, for the next pass


def _needless(loader: Any) -> bool:
    """Whether workers would have nothing to do, and nobody could see them."""
    data = loader.dataset
    return (
        isinstance(data, Batches)
        and loader.num_workers > 0
        and loader.collate_fn is default_convert
        and loader.worker_init_fn is None
        and not loader.timeout
        and _plain(data.stream)
    )


def _iterator(loader: Any) -> Any:
    return Direct(loader) if _needless(loader) else _torchs(loader)


_torchs = DataLoader._get_iterator
DataLoader._get_iterator = _iterator


def _collating(fetcher: Any) -> bool:
    """Whether what a DataLoader takes from us goes to a function before it is sent."""
    if not isinstance(fetcher, _BaseDatasetFetcher):
        return True
    if fetcher.collate_fn is default_collate:
        raise ValueError(
            "the batches of a stream are made already, and a DataLoader would make batches of "
            "batches: write DataLoader(stream.torch(), batch_size=None, num_workers=...), and how "
            "many rows a batch has in memroom.Stream(..., batch_size=1024)"
        )
    return fetcher.collate_fn is not default_convert


def _each(state: Dict[str, Any], stream: Any) -> List[Tuple[Dict[str, Any], Any]]:
    """The states of the streams that a state is of: one, or those that are mixed."""
    if "streams" in state:
        return list(zip(state["streams"], stream.streams))
    return [(state, stream)]


def _tensors(value: Any) -> Any:
    """The arrays of a batch as tensors, whatever a user's map() has made of it."""
    if type(value).__module__ == "numpy" and getattr(value, "shape", ()) != ():
        if value.dtype.kind in "biufc" and value.dtype.isnative:
            return torch.from_numpy(value) if value.flags.writeable else torch.tensor(value)
    return _through(value, _tensors)  # texts, lists and times have no tensor


class Outlet:
    """Memory in which batches leave a worker: pieces that are written again once the other side has
    read them. Torch's own way takes new memory, a file descriptor and a handshake for each tensor.
    """

    def __init__(self) -> None:
        self.pieces: List[Tuple[Tuple[int, int, int], Any]] = []

    def piece(self, size: int) -> Tuple[Tuple[int, int, int], memoryview]:
        """A piece that nobody reads: what the other side finds it by, and its memory."""
        for name, memory in self.pieces:
            if memory[0] == 0 and len(memory) >= ALIGN + size:
                break
        else:
            fd = os.memfd_create("memroom-batch", os.MFD_CLOEXEC)
            os.ftruncate(fd, 1 << (ALIGN + size).bit_length())
            name, memory = (os.getpid(), fd, os.fstat(fd).st_ino), mmap.mmap(fd, 0)
            self.pieces.append((name, memory))
        memory[0] = 1
        return name, memoryview(memory)[ALIGN:]

    def packed(self, batch: Any) -> Any:
        """The batch on its way out; without tensors it is sent as it is."""
        tensors: List[Any] = []
        shape = _taken(batch, tensors)
        if not tensors:
            return batch
        layout, end = [], 0
        for one in tensors:
            layout.append((end, one.numel(), one.dtype, tuple(one.shape)))
            end += -(-one.numel() * one.element_size() // ALIGN) * ALIGN
        name, memory = self.piece(end)
        for place, one in zip(layout, tensors):
            if one.numel():
                _tensor(memory, *place).copy_(one)
        return Block(name, end, pickle.dumps((layout, shape)))


class Place(int):
    """Stands for a tensor in the shape of a batch, by its number."""


class Block:
    """A batch in a piece of memory; where it arrives it is the batch again. It is no dict or tuple,
    because the DataLoader would take it apart before it is sent.
    """

    __slots__ = ("parts",)

    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __reduce__(self) -> Any:
        return _unpacked, self.parts


_pieces: Dict[Tuple[int, int, int], Any] = {}  # of workers, as they were opened here
_lent: Set[Tuple[int, int, int]] = set()  # those that tensors lie in


def _unpacked(name: Tuple[int, int, int], size: int, form: bytes) -> Any:
    """The batch, in the piece itself until nobody refers to it any more."""
    memory = _pieces.get(name)
    if memory is None:
        for other in [one for one in _pieces if not os.path.exists("/proc/%d" % one[0])]:
            del _pieces[other]
        try:
            with open("/proc/%d/fd/%d" % name[:2], "r+b") as file:
                memory = _pieces[name] = mmap.mmap(file.fileno(), 0)
        except FileNotFoundError:
            raise FeedError(
                "memroom: worker %d of the DataLoader ended before its batch was read. Was it "
                "killed, because memory was short?" % name[0]
            ) from None
    content: Any = numpy.frombuffer(memory, numpy.uint8, size, ALIGN)
    if len(_lent) < LENT:
        _lent.add(name)
        weakref.finalize(content, _given_back, os.getpid(), name, memory).atexit = False
    else:  # somebody keeps batches: each piece is a descriptor of the worker
        content = content.copy()
        memory[0] = 0
    layout, shape = _form(form)
    return _placed(shape, [_tensor(content, *place) for place in layout])


def _given_back(owner: int, name: Tuple[int, int, int], memory: Any) -> None:
    if os.getpid() == owner:  # what a fork has inherited is still read by us
        _lent.discard(name)
        memory[0] = 0


@functools.lru_cache(maxsize=FORMS)
def _form(form: bytes) -> Any:
    """Where the tensors of a batch lie and what it is made of. Most batches of a pass have the
    same, and unpickling it takes longer than all else."""
    return pickle.loads(form)


def _tensor(memory: Any, at: int, count: int, dtype: Any, sizes: Any) -> Any:
    """A tensor on this memory. It is no view of another tensor, which would take three times as
    long and not let a gradient flow through what is changed in place."""
    if not count:
        return torch.empty(sizes, dtype=dtype)
    flat = torch.frombuffer(memory, dtype=dtype, count=count, offset=at)
    return flat if len(sizes) == 1 else flat.view(sizes)


def _taken(value: Any, tensors: List[Any]) -> Any:
    """The shape of a batch, its tensors moved into a list."""
    if type(value) is torch.Tensor:
        tensors.append(value)
        return Place(len(tensors) - 1)
    return _through(value, lambda one: _taken(one, tensors))


def _placed(shape: Any, tensors: List[Any]) -> Any:
    if type(shape) is Place:
        return tensors[shape]
    return _through(shape, lambda one: _placed(one, tensors))


def _through(value: Any, function: Any) -> Any:
    """A dict, tuple or list with each value replaced; anything else as it is."""
    if isinstance(value, dict):
        return {name: function(one) for name, one in value.items()}
    if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
        return type(value)(function(one) for one in value)
    return value


def _plain(stream: Any) -> bool:
    """Whether batches are numbers alone, and no function of a user's makes something of them."""
    if not all(getattr(change, "ours", False) for change in getattr(stream, "_changes", [None])):
        return False
    return all(c["kind"] == "fixed" for c in stream.schema)
