"""NumPy arrays and Arrow tables over a shared block. An array is an ndarray as before; both cannot
be changed, and travel to other processes as a handle instead of a copy. Loaded only where such an
object is met.
"""

from typing import Any

from . import encoding
from .segment import Segment
from .shared_frames import open_frame
from .sharing import restore

_made: Any = {}  # classes that need a library to be imported first


def open_node(segment: Segment, address: int, description: Any) -> Any:
    kind, *rest = description
    if kind == "array":
        return _open_array(segment, address, *rest)
    if kind == "arrow":
        return SharedTable(segment, address, *rest)
    start, end = rest[0]
    return open_frame(segment, address, encoding.decode_buffers(segment, start, end))


def _open_array(
    segment: Segment, address: int, dtype: Any, shape: Any, order: str, where: int, size: int
) -> Any:
    import numpy

    if "array" not in _made:
        _made["array"] = _array_class(numpy)
    raw = segment.view[where : where + size]
    flat = numpy.frombuffer(raw, dtype) if size else numpy.empty(0, dtype)
    array = flat.reshape(shape[::-1]).T if order == "F" else flat.reshape(shape)
    shared = array.view(_made["array"])
    shared.flags.writeable = False
    shared._memroom_node = (segment, address)
    return shared


def _array_class(numpy: Any) -> Any:
    class SharedArray(numpy.ndarray):
        """A read-only array in shared memory. Parts of it are ordinary read-only arrays."""

        _memroom_node: Any = None  # (segment, address); views and results have none

        def __array_finalize__(self, source: Any) -> None:
            self._memroom_node = None

        def __array_wrap__(self, array: Any, context: Any = None, scalar: bool = False) -> Any:
            plain = numpy.asarray(array)
            return plain[()] if scalar else plain

        def __getitem__(self, index: Any) -> Any:
            return numpy.asarray(self)[index]

        def __reduce_ex__(self, protocol: Any) -> Any:
            if self._memroom_node is None:
                return numpy.asarray(self).__reduce_ex__(protocol)
            segment, address = self._memroom_node
            return restore, (segment.handle(), address)

        def __deepcopy__(self, memo: Any) -> Any:
            return numpy.array(self)

    SharedArray.__module__ = __name__
    SharedArray.__qualname__ = "SharedArray"
    return SharedArray


class SharedTable:
    """An Arrow table or record batch over shared memory: everything it is asked is answered by the
    real one, which `.table` gives where its very type is needed.
    """

    def __init__(self, segment: Segment, address: int, start: int, end: int, batch: bool) -> None:
        import pyarrow

        self._memroom_node = (segment, address)
        whole = pyarrow.ipc.open_stream(pyarrow.py_buffer(segment.view[start:end])).read_all()
        if batch:
            batches = whole.to_batches()
            empty = pyarrow.RecordBatch.from_pylist([], schema=whole.schema)
            self.table = batches[0] if batches else empty
        else:
            self.table = whole

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and not name.startswith("__arrow") or name == "table":
            raise AttributeError(name)
        return getattr(self.table, name)

    def __getitem__(self, key: Any) -> Any:
        return self.table[key]

    def __len__(self) -> int:
        answer: int = self.table.num_rows
        return answer

    def __eq__(self, other: Any) -> Any:
        return self.table.equals(other.table if isinstance(other, SharedTable) else other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self.table)

    def __dataframe__(self, *args: Any, **kwargs: Any) -> Any:
        return self.table.__dataframe__(*args, **kwargs)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return self.table.__array__(*args, **kwargs)

    def __reduce__(self) -> Any:
        segment, address = self._memroom_node
        return restore, (segment.handle(), address)

    def __deepcopy__(self, memo: Any) -> "SharedTable":
        return self
