"""Streams for Keras and tf.data. Loaded only where they are used."""

from typing import Any, Iterator

from .streaming import Stream, Turns


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
