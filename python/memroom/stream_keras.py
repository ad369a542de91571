"""Streams for Keras and tf.data. Loaded only where they are used."""

from __future__ import annotations

import copy
import threading
from typing import TYPE_CHECKING, Any, Iterator

if TYPE_CHECKING:
    from .streaming import Stream


def tensorflow(stream: Stream) -> Any:
    import numpy
    import tensorflow

    signature = {}
    for column in stream.schema:
        if column["kind"] == "list":
            values = tensorflow.as_dtype(numpy.dtype(column["dtype"]))
            signature[column["name"]] = tensorflow.RaggedTensorSpec([None, None], values)
            continue
        shape = [None, *column.get("shape", ())]
        dtype: Any = tensorflow.string
        if column["kind"] == "fixed":
            plain = numpy.dtype(column["dtype"])
            # tensorflow has no times: they come as whole numbers of their unit
            dtype = tensorflow.int64 if plain.kind in "mM" else tensorflow.as_dtype(plain)
        signature[column["name"]] = tensorflow.TensorSpec(shape, dtype)

    lists = {c["name"]: c["dtype"] for c in stream.schema if c["kind"] == "list"}

    def batches() -> Iterator[Any]:
        for batch in stream:
            yield {
                name: _ragged(values, lists[name]) if name in lists else _plain(values)
                for name, values in batch.items()
            }

    return tensorflow.data.Dataset.from_generator(batches, output_signature=signature)


def _ragged(values: Any, dtype: str) -> Any:
    """Lists of different lengths; a missing one is empty."""
    import numpy
    import tensorflow

    rows = [numpy.empty(0, dtype) if v is None else v for v in values]
    flat = numpy.concatenate(rows) if rows else numpy.empty(0, dtype)
    return tensorflow.RaggedTensor.from_row_lengths(flat, [len(row) for row in rows])


def _plain(values: Any) -> Any:
    if values.dtype.kind in "mM":
        return values.astype("int64")
    if values.dtype == object:
        values[:] = [_text(v) for v in values]
    return values


def _text(value: Any) -> Any:
    """What tensorflow takes for a text: bytes where it is not UTF-8."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    return b"" if value is None else value


def keras(stream: Stream, x: Any, y: Any, stack: bool = False) -> Any:
    import keras as library

    pair = stream._pair(x, y, stack)

    class Data(library.utils.PyDataset):
        """Batches by their number; each epoch of the model is an epoch of the stream."""

        def __init__(self) -> None:
            super().__init__(workers=1)
            self.turns = Turns(stream)

        def __len__(self) -> int:
            return len(stream)

        def __getitem__(self, index: int) -> Any:
            return pair(self.turns.at(index))

        def on_epoch_end(self) -> None:
            self.turns.next_epoch()

    return Data()


class Turns:
    """Batches of the current epoch by their number, for callers that ask from several threads.
    Asking in order is quick; any other order opens the stream anew at that batch.
    """

    KEPT = 4  # batches that were just given: callers look at the first ones twice

    def __init__(self, stream: Stream) -> None:
        self.stream = copy.copy(stream)
        self.epoch = stream.epoch
        self.lock = threading.Lock()
        self.batches: Any = None
        self.position = 0
        self.recent: dict[int, dict[str, Any]] = {}

    def at(self, index: int) -> dict[str, Any]:
        with self.lock:
            if index in self.recent:
                return self.recent[index]
            if self.batches is None or index != self.position:
                self.stream._go_to(self.epoch, index * self.stream.world)
                self.batches = iter(self.stream)
            batch = next(self.batches, None)
            if batch is None:
                raise IndexError("there is no batch %d" % index)
            self.position = index + 1
            self.recent[index] = batch
            while len(self.recent) > self.KEPT:
                self.recent.pop(next(iter(self.recent)))
            answer: dict[str, Any] = batch
            return answer

    def next_epoch(self) -> None:
        with self.lock:
            self.epoch += 1
            self.batches = None
            self.recent.clear()
