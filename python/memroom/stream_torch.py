"""Streams as torch data sets. Loaded only where torch is used."""

from typing import Any, Dict, Iterator, List, Tuple

import torch
from torch.utils.data import IterableDataset, get_worker_info

from .passes import Passes

ALIGN = 64  # bytes at which each column of a block begins
FEW = 3  # tensors; as many are sent one by one as quickly as in a block


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
        if stream.passes is None:
            stream.passes = Passes()

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        if worker is None:
            for batch in self.stream._iterate(0, 1):
                yield _tensors(batch)
            return
        seed = int(worker.seed - worker.id) & (1 << 64) - 1 or 1
        self._agree(seed, self.number)
        if _plain(self.stream):
            yield from self.stream._iterate(worker.id, worker.num_workers, _arranger)
            return
        for batch in self.stream._iterate(worker.id, worker.num_workers):
            yield _packed(_tensors(batch))

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


def _each(state: Dict[str, Any], stream: Any) -> List[Tuple[Dict[str, Any], Any]]:
    """The states of the streams that a state is of: one, or those that are mixed."""
    if "streams" in state:
        return list(zip(state["streams"], stream.streams))
    return [(state, stream)]


def _tensors(value: Any) -> Any:
    """The arrays of a batch as tensors, whatever a user's map() has made of it."""
    if isinstance(value, dict):
        return {name: _tensors(one) for name, one in value.items()}
    if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
        return type(value)(_tensors(one) for one in value)
    if type(value).__module__ == "numpy" and getattr(value, "shape", ()) != ():
        if value.dtype.kind in "biufc" and value.dtype.isnative:
            return torch.from_numpy(value) if value.flags.writeable else torch.tensor(value)
    return value  # texts, lists and times have no tensor


class Block:
    """A batch on its way out of a worker, where it becomes a dict again: all its tensors travel as
    one. One by one, each of 26 columns takes a file descriptor and a hundred microseconds. It is no
    dict itself, because the DataLoader would take it apart before it is sent.
    """

    __slots__ = ("whole", "layout", "rest")

    def __init__(self, whole: Any, layout: List[Any], rest: Dict[str, Any]) -> None:
        self.whole = whole  # bytes in shared memory
        self.layout = layout  # name, offset, bytes, dtype and shape of each tensor
        self.rest = rest  # what has no tensor; the tensors' names are there too, in their order

    def __reduce__(self) -> Any:
        return _unpacked, (self.whole, self.layout, self.rest)


def _unpacked(whole: Any, layout: List[Any], rest: Dict[str, Any]) -> Dict[str, Any]:
    for name, at, size, dtype, shape in layout:
        rest[name] = whole[at : at + size].view(dtype).view(shape)
    return rest


def _shared(size: int) -> Any:
    whole = torch.empty(0, dtype=torch.uint8)
    return whole.set_(torch.UntypedStorage._new_shared(max(size, 1)))


def _packed(batch: Any) -> Any:
    """The batch as a block, where that is quicker and this torch has what it takes."""
    if type(batch) is not dict or not hasattr(torch, "UntypedStorage"):
        return batch
    layout: List[Any] = []
    rest, end = {}, 0
    for name, value in batch.items():
        rest[name] = value
        if type(value) is torch.Tensor:
            rest[name] = None
            size = value.numel() * value.element_size()
            layout.append((name, end, size, value.dtype, tuple(value.shape)))
            end += -(-size // ALIGN) * ALIGN
    if len(layout) <= FEW:
        return batch
    whole = _shared(end)
    for name, at, size, dtype, shape in layout:
        whole[at : at + size].view(dtype).view(shape).copy_(batch[name])
    return Block(whole, layout, rest)


def _plain(stream: Any) -> bool:
    """Whether the columns can be sent as the server has laid them out: numbers alone, and nothing
    that a user's function would see."""
    if getattr(stream, "_changes", True) or not hasattr(torch, "UntypedStorage"):
        return False
    return len(stream.schema) > FEW and all(
        c["kind"] == "fixed" and _number(c["dtype"]) is not None for c in stream.schema
    )


def _number(dtype: str) -> Any:
    import numpy

    plain = numpy.dtype(dtype)
    if plain.kind not in "biufc" or not plain.isnative:
        return None
    try:
        return torch.from_numpy(numpy.empty(0, plain)).dtype
    except TypeError:
        return None


def _arranger(columns: List[Dict[str, Any]]) -> Any:
    """A function that copies a batch out of the server's memory in one piece."""
    import numpy

    known = [(c["name"], _number(c["dtype"]), tuple(c.get("shape", ()))) for c in columns]
    names = [c["name"] for c in columns]

    def block(rows: int, spans: Any, memory: memoryview, _: bool) -> Block:
        end = max(spans[at] + spans[at + 1] for at in range(0, len(spans), 2))
        whole = _shared(end)
        whole.numpy()[:end] = numpy.frombuffer(memory[:end], "u1")
        layout = [
            (name, spans[2 * i], spans[2 * i + 1], dtype, (rows, *shape))
            for i, (name, dtype, shape) in enumerate(known)
        ]
        return Block(whole, layout, dict.fromkeys(names))

    return block
