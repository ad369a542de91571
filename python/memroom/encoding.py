"""Python objects as bytes in a shared block, and back. A container becomes a node: a table of where
its elements are. An element is a blob that is decoded when it is asked for, or a node of its own
where it is large, an array or a table.
"""

import array
import functools
import io
import marshal
import pickle
import struct
import sys
import types
from collections import abc
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from . import stacking
from .segment import ALIGN, Segment, Writer

# Kinds of elements. marshal is the fastest for what Python itself is made of.
PLAIN, PICKLED, BUFFERS, NODE, FLAT = 0, 1, 2, 3, 4
FORM = 2  # marshal's: the newer ones look for repeated objects, which makes reading slower
LARGE = 8192  # objects; a nested container with more is a node, not decoded whole
NODE_BYTES = 256 << 10  # a nested array above this is a node, so that it travels by handle
DEEP = 50  # levels
NUMBERS = frozenset((int, float, bool, type(None), complex))
ATOMS = NUMBERS | {str, bytes}
CONTAINERS = frozenset((list, tuple, dict))
BUFFER_HEAD = struct.Struct("<II")  # number of buffers, length of the pickle
BUFFER = struct.Struct("<QQ")  # address, size; the top bit of the size: may be written to
WRITABLE = 1 << 63
ADDRESS = struct.Struct("<Q")
TEXT_LENGTH = struct.Struct("<I")
LONG_TEXT = 1 << 28  # characters; marshal's length has 31 bits, and a character takes up to 4 bytes


class CannotShare(TypeError):
    """The object, or something in it, cannot be put into shared memory."""


# --- writing


def write(writer: Writer, thing: Any) -> int:
    """Writes a container, array or table as a node and returns its address."""
    if isinstance(thing, dict):
        return _write_dict(writer, thing)
    if isinstance(thing, (list, tuple)):
        return _write_sequence(writer, thing)
    if isinstance(thing, abc.Iterator):
        count, *where = _write_elements(writer, thing)
        return _describe(writer, ("list", count, "objects", *where))
    kind = library_kind(thing)
    if kind == "array":
        return _write_array(writer, thing)
    if kind == "arrow":
        return _write_arrow(writer, thing)
    if kind == "frame":
        return _describe(writer, ("frame", write_values(writer, _shareable_frame(thing))))
    raise CannotShare(_unknown(thing))


def _unknown(thing: Any) -> str:
    """What to do with an object that is no container we know."""
    name = type(thing).__name__
    numpy, arrow = (sys.modules.get(module) for module in ("numpy", "pyarrow"))
    if numpy is not None and isinstance(thing, numpy.ndarray):
        return (
            "%s means more than its numbers, which would be lost: share numpy.asarray(it), and a "
            "mask or a unit beside it" % name
        )
    if arrow is not None and isinstance(thing, (arrow.Array, arrow.ChunkedArray)):
        return '%s is a column without a table: share pyarrow.table({"values": it})' % name
    if hasattr(thing, "share_memory_"):
        return (
            "one %s is no container, and forked workers do not copy it: leave it as it is, or call "
            "its share_memory_()" % name
        )
    if hasattr(thing, "to_arrow"):
        return "%s cannot be shared itself: share it.to_arrow()" % name
    return "%s cannot be shared as a whole" % name


def library_kind(thing: Any) -> str:
    """Which library's container this is, found without importing any."""
    numpy, pandas, arrow = (sys.modules.get(name) for name in ("numpy", "pandas", "pyarrow"))
    if numpy is not None and isinstance(thing, numpy.ndarray):
        # Other kinds of arrays (masked ones, ones with units) are more than their numbers.
        plain = type(thing) in (numpy.ndarray, numpy.memmap) or hasattr(thing, "_memroom_node")
        return "array" if plain else ""
    if pandas is not None and isinstance(thing, (pandas.DataFrame, pandas.Series)):
        return "frame"
    if arrow is not None and isinstance(thing, (arrow.Table, arrow.RecordBatch)):
        return "arrow"
    return ""


def _describe(writer: Writer, description: Tuple[Any, ...]) -> int:
    text = pickle.dumps(description, 4)
    address = writer.write(struct.pack("<I", len(text)))
    writer.write(text)
    return address


def describe(segment: Segment, address: int) -> Tuple[Any, ...]:
    """What was written about the node at address."""
    (size,) = struct.unpack_from("<I", segment.view, address)
    answer: Tuple[Any, ...] = pickle.loads(segment.view[address + 4 : address + 4 + size])
    return answer


def _write_sequence(writer: Writer, thing: Any) -> int:
    name = "tuple" if isinstance(thing, tuple) else "list"
    return _describe(writer, (name, len(thing), *_write_all(writer, thing)))


def _write_all(writer: Writer, thing: Any) -> Tuple[Any, ...]:
    """Writes the elements of a list or tuple; returns their form and where they are."""
    types = set(map(type, thing))
    numbers = _as_numbers(types, thing)
    if numbers is not None:
        return numbers.typecode, writer.write_aligned(numbers)
    if types == {str} or types == {bytes}:
        form = "str" if types == {str} else "bytes"
        if max(map(len, thing)) < LONG_TEXT:
            return "texts", _write_texts(writer, thing, form)
    stacked = stacking.write(writer, thing, _weigh, LARGE)
    if stacked is not None:
        return "stacked", stacked
    return ("objects", *_write_elements(writer, thing)[1:])


def _as_numbers(types: Set[Any], thing: Any) -> "Optional[array.array[Any]]":
    try:
        if types == {int}:
            return array.array("q", thing)
        return array.array("d", thing) if types == {float} else None
    except OverflowError:
        return None  # an int of more than 64 bits


def _write_texts(writer: Writer, thing: Any, form: str) -> int:
    """As marshal would: its reader is quicker than a call of str(). Written by hand, because
    marshal marks interned texts, and reading those looks each one up.
    """
    starts = array.array("Q")
    mark = b"u" if form == "str" else b"s"
    for text in thing:
        raw = text.encode("utf-8", "surrogatepass") if form == "str" else text
        starts.append(writer.write(mark + TEXT_LENGTH.pack(len(raw))))
        writer.write(raw)
    return writer.write_aligned(starts)


def _write_elements(writer: Writer, things: Any) -> Tuple[int, int, Any]:
    """Writes elements one after another. Returns their number, the address of the table of their
    bounds, and their kind, or the address of a table of kinds where they differ.
    """
    bounds, kinds = array.array("Q"), bytearray()
    encode = _Encoder(writer)
    for index, thing in enumerate(things):
        try:
            kind, data = encode(thing)
        except CannotShare as error:
            raise CannotShare("element %d: %s" % (index, error)) from None
        start = writer.write(data)
        bounds.append(start)
        bounds.append(writer.at)
        kinds.append(kind)
    table = writer.write_aligned(bounds)
    if not kinds or kinds.count(kinds[0]) == len(kinds):
        return len(kinds), table, ("same", kinds[0] if kinds else PLAIN)
    return len(kinds), table, ("each", writer.write(kinds))


class _Encoder:
    def __init__(self, writer: Writer) -> None:
        self.writer = writer

    def __call__(self, thing: Any) -> Tuple[int, bytes]:
        weight = _weigh(thing, 0)
        if type(thing) in CONTAINERS and (weight is None or weight > LARGE):
            if weight is None:
                weight = _count(thing, 0)
            if weight > LARGE:
                return NODE, ADDRESS.pack(write(self.writer, thing))
            return self.flat(thing) or self.pickled(thing)
        if weight is not None:
            return PLAIN, marshal.dumps(thing, FORM)
        kind = library_kind(thing)
        if kind and (kind != "array" or thing.nbytes > NODE_BYTES):
            return NODE, ADDRESS.pack(write(self.writer, thing))
        return self.flat(thing) or self.pickled(thing)

    def flat(self, thing: Any) -> Optional[Tuple[int, bytes]]:
        """A sample as most people have it: a tuple, list or dict of numbers, texts, arrays and
        tensors, or one of these alone. Quicker to read than a pickle.
        """
        kind = type(thing)
        if kind is dict:
            keys, values = list(thing), list(thing.values())
        elif kind is list or kind is tuple:
            keys, values = None, list(thing)
        else:
            keys, values = None, [thing]
        for place, value in enumerate(values):
            if stacking.raw_array(value):
                continue
            if _weigh(value, 0) is None:
                return None
        arrays = []
        for place, value in enumerate(values):
            if stacking.raw_array(value):
                values[place] = None
                arrays.append((place, *self.array(value)))
        shape = keys if kind is dict else 0 if kind is tuple else 1 if kind is list else 2
        return FLAT, marshal.dumps((shape, values, arrays), FORM)

    def array(self, value: Any) -> Tuple[Any, ...]:
        """Writes the contents: where they are, how many bytes, the dtype, the shape."""
        if hasattr(value, "numpy"):
            raw = value.contiguous().reshape(-1).view(sys.modules["torch"].uint8).numpy()
            name, size = str(value.dtype)[6:], value.numel()
            return self.writer.write_aligned(raw), raw.nbytes, "", name, tuple(value.shape), size
        numpy = sys.modules["numpy"]
        raw = numpy.ascontiguousarray(value).reshape(-1).view(numpy.uint8)
        where = self.writer.write_aligned(raw)
        return where, raw.nbytes, value.dtype.str, "", value.shape, value.size

    def pickled(self, thing: Any) -> Tuple[int, bytes]:
        data, buffers = _pickle(thing)
        if not buffers:
            return PICKLED, data
        return BUFFERS, _place(self.writer, data, buffers)


def _weigh(thing: Any, depth: int) -> Optional[int]:
    """How much it takes to decode the object: 1 an object, 1 for 4 KiB of text. None where marshal
    does not know every type in it. Stops counting when it is large.
    """
    kind = type(thing)
    if kind in ATOMS:
        return 1 + (len(thing) >> 12) if kind is str or kind is bytes else 1
    if kind not in CONTAINERS or depth > DEEP:
        return None  # deep or circular: pickle can do that
    total = 1
    for part in (thing.keys(), thing.values()) if kind is dict else (thing,):
        types = set(map(type, part))
        if types <= NUMBERS:
            total += len(part)
            continue
        for element in part:
            weight = _weigh(element, depth + 1)
            if weight is None:
                return None
            total += weight
            if total > LARGE:
                break
    return total


def _count(thing: Any, depth: int) -> int:
    """The same measure for objects that marshal does not know; arrays are mapped, so they are 1."""
    kind = type(thing)
    if kind is str or kind is bytes:
        return 1 + (len(thing) >> 12)
    if kind not in CONTAINERS or depth > DEEP:
        return 1
    total = 1
    for element in thing.values() if kind is dict else thing:
        total += _count(element, depth + 1)
        if total > LARGE:
            break
    return total


class _Pickler(pickle.Pickler):
    """Keeps the contents of arrays and tensors out of the pickle, to be mapped."""

    def __init__(
        self, file: Any, buffers: List[Tuple[Any, bool]], met: Optional[Set[Any]] = None
    ) -> None:
        super().__init__(file, 5, buffer_callback=self.take)
        self.buffers, self.met = buffers, met
        self.tensors: Dict[int, Any] = {}

    def take(self, buffer: Any) -> bool:
        raw = buffer.raw() if hasattr(buffer, "raw") else memoryview(buffer)
        self.buffers.append((raw, id(buffer) in self.tensors))
        return False

    def reducer_override(self, thing: Any) -> Any:
        if self.met is not None:
            self.met.add(kind_of(thing))
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if numpy is not None and type(thing) in (numpy.ndarray, numpy.memmap):
            return NotImplemented if thing.dtype.hasobject else self.array(numpy, thing)
        if (
            torch is not None
            and type(thing) is torch.Tensor
            and stacking.simple_tensor(torch, thing)
        ):
            return self.tensor(torch, thing)
        return NotImplemented

    def array(self, numpy: Any, thing: Any) -> Any:
        order = "F" if thing.flags.f_contiguous and not thing.flags.c_contiguous else "C"
        flat = numpy.ascontiguousarray(thing.T if order == "F" else thing)
        if flat.nbytes == 0:
            return numpy.empty, (thing.shape, thing.dtype)
        raw = pickle.PickleBuffer(flat.reshape(-1).view(numpy.uint8))
        return _array, (raw, thing.dtype, thing.shape, order)

    def tensor(self, torch: Any, thing: Any) -> Any:
        if thing.numel() == 0:
            return _empty_tensor, (tuple(thing.shape), thing.dtype)
        raw = thing.contiguous().reshape(-1).view(torch.uint8).numpy()
        buffer = pickle.PickleBuffer(raw)
        self.tensors[id(buffer)] = buffer
        return _tensor, (buffer, thing.dtype, tuple(thing.shape))


def _array(raw: Any, dtype: Any, shape: Tuple[int, ...], order: str) -> Any:
    import numpy

    flat = numpy.frombuffer(raw, dtype)
    return flat.reshape(shape[::-1]).T if order == "F" else flat.reshape(shape)


def _empty_tensor(shape: Tuple[int, ...], dtype: Any) -> Any:
    import torch

    return torch.empty(shape, dtype=dtype)


def _tensor(raw: Any, dtype: Any, shape: Tuple[int, ...]) -> Any:
    import torch

    return torch.frombuffer(raw, dtype=dtype).reshape(shape)


def kind_of(thing: Any) -> Any:
    """The function or class that a pickle of the thing names."""
    return thing if isinstance(thing, (type, types.FunctionType)) else type(thing)


def _pickle(thing: Any, met: Optional[Set[Any]] = None) -> Tuple[bytes, List[Tuple[Any, bool]]]:
    out, buffers = io.BytesIO(), []  # type: Tuple[io.BytesIO, List[Tuple[Any, bool]]]
    try:
        _Pickler(out, buffers, met).dump(thing)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
        raise CannotShare("a %s cannot be shared: %s" % (type(thing).__name__, error)) from None
    return out.getvalue(), buffers


def _place(writer: Writer, data: bytes, buffers: List[Tuple[Any, bool]]) -> bytes:
    """Writes the buffers, and returns a blob that says where they are."""
    parts = [BUFFER_HEAD.pack(len(buffers), len(data))]
    for raw, writable in buffers:
        where = writer.write_aligned(raw)
        parts.append(BUFFER.pack(where, raw.nbytes | (WRITABLE if writable else 0)))
    return b"".join(parts) + data


def write_values(writer: Writer, thing: Any, met: Optional[Set[Any]] = None) -> Tuple[int, int]:
    """Writes any object for decode_buffers: what pickle makes of it, and its arrays and tensors
    beside that. Returns where it begins and ends; the classes and functions in it go to met.
    """
    data, buffers = _pickle(thing, met)
    blob = _place(writer, data, buffers)
    return writer.write(blob), writer.at


def _write_dict(writer: Writer, thing: Dict[Any, Any]) -> int:
    from . import lookup

    keys = list(thing)
    found = lookup.table(keys)
    table = writer.write_aligned(found) if found is not None else None
    key_node = _write_sequence(writer, keys)
    values = _write_all(writer, list(thing.values()))
    return _describe(writer, ("dict", len(thing), key_node, table, *values))


def _write_array(writer: Writer, thing: Any) -> int:
    import numpy

    if thing.dtype.hasobject:
        if thing.ndim != 1 or thing.dtype.names:
            raise CannotShare(
                "an array of Python objects with %d dimensions cannot be shared: give it a "
                "numeric or string dtype, or share a list" % thing.ndim
            )
        return _write_sequence(writer, list(thing))
    plain = numpy.asarray(thing)
    order = "F" if plain.flags.f_contiguous and not plain.flags.c_contiguous else "C"
    turned = plain.T if order == "F" else plain
    writer.write(bytes(-writer.at % ALIGN))
    where = writer.at
    step = max(1, (16 << 20) // max(1, turned[:1].nbytes)) if turned.ndim else 1
    for start in range(0, len(turned) if turned.ndim else 1, step):
        part = turned[start : start + step] if turned.ndim else turned
        if part.nbytes:
            writer.write(numpy.ascontiguousarray(part).reshape(-1).view(numpy.uint8))
    return _describe(writer, ("array", plain.dtype, plain.shape, order, where, plain.nbytes))


def _write_arrow(writer: Writer, thing: Any) -> int:
    import pyarrow

    batch = isinstance(thing, pyarrow.RecordBatch)
    table = pyarrow.Table.from_batches([thing]) if batch else thing.unify_dictionaries()
    writer.write(bytes(-writer.at % ALIGN))
    start = writer.at
    with pyarrow.ipc.new_stream(pyarrow.PythonFile(_Sink(writer), "w"), table.schema) as out:
        out.write_table(table)
    return _describe(writer, ("arrow", start, writer.at, batch))


class _Sink(io.RawIOBase):
    """The block as pyarrow's output file."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.writer.write(data)
        return memoryview(data).nbytes

    def tell(self) -> int:
        return self.writer.at


def _shareable_frame(frame: Any) -> Any:
    """Columns of Python strings as Arrow strings: objects would be a copy in every process."""
    import pandas

    if isinstance(frame, pandas.Series):
        shared = _shareable_frame(frame.to_frame("x"))
        return shared["x"].rename(frame.name)
    changed = {}
    for place, dtype in enumerate(frame.dtypes):
        if str(dtype) != "object" or not len(frame):
            continue
        column = frame.iloc[:, place]
        if pandas.api.types.infer_dtype(column, skipna=True) == "string":
            changed[place] = _strings(pandas, column)
        if changed.get(place) is None:
            changed.pop(place, None)
            _say_objects(frame.columns[place])
    if not changed:
        return frame
    columns = [changed.get(place, frame.iloc[:, place]) for place in range(frame.shape[1])]
    result = pandas.concat(columns, axis=1)
    result.columns = frame.columns
    return result


def _strings(pandas: Any, column: Any) -> Any:
    for dtype in ("str", "string[pyarrow]") if pandas.__version__ >= "3" else ("string[pyarrow]",):
        try:
            turned = column.astype(dtype)
            if "pyarrow" in repr(type(turned.array)).lower() or hasattr(turned.array, "_pa_array"):
                return turned
        except (ImportError, TypeError, ValueError):
            continue
    return None


def _say_objects(name: Any) -> None:
    import warnings

    warnings.warn(
        "memroom.share: column %r holds Python objects, so each process that reads it has a copy "
        "of its own. Give it a numeric, string or Arrow type, or share df.to_dict('records')"
        % (name,),
        stacklevel=4,
    )


# --- reading


def decode_plain(segment: Segment, start: int, end: int) -> Any:
    return marshal.loads(segment.view[start:end])


def decode_pickled(segment: Segment, start: int, end: int) -> Any:
    return pickle.loads(segment.view[start:end])


def decode_buffers(segment: Segment, start: int, end: int) -> Any:
    view = segment.view
    count, _ = BUFFER_HEAD.unpack_from(view, start)
    at = start + 8
    buffers = []
    for _ in range(count):
        where, size = BUFFER.unpack_from(view, at)
        at += 16
        if size & WRITABLE:
            buffers.append(segment.private[where : where + size - WRITABLE])
        else:
            buffers.append(view[where : where + size])
    return pickle.loads(view[at:end], buffers=buffers)


def decode_flat(segment: Segment, start: int, end: int) -> Any:
    view = segment.view
    shape, values, arrays = marshal.loads(view[start:end])
    for place, where, size, dtype, name, dimensions, count in arrays:
        if dtype:
            array = _numpy().frombuffer(view, dtype, count, where)
            values[place] = array if len(dimensions) == 1 else array.reshape(dimensions)
        else:
            torch = _torch()
            raw = segment.private[where : where + size]
            values[place] = torch.frombuffer(raw, dtype=getattr(torch, name)).reshape(dimensions)
    if shape == 0:
        return tuple(values)
    if shape == 1:
        return values
    return values[0] if shape == 2 else dict(zip(shape, values))


@functools.lru_cache(maxsize=None)
def _numpy() -> Any:
    import numpy

    return numpy


@functools.lru_cache(maxsize=None)
def _torch() -> Any:
    import torch

    return torch


def decoder(segment: Segment, kind: int, node: Callable[[Segment, int], Any]) -> Any:
    """A function (start, end) -> the element."""
    if kind == PLAIN:
        view, loads = segment.view, marshal.loads
        return lambda start, end: loads(view[start:end])
    if kind == NODE:
        return lambda start, end: node(segment, ADDRESS.unpack_from(segment.view, start)[0])
    decode = {PICKLED: decode_pickled, BUFFERS: decode_buffers, FLAT: decode_flat}[kind]
    return functools.partial(decode, segment)
