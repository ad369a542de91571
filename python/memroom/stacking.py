"""Samples that are all alike. Each array of all samples lies in one stack, whose rows are read
several times faster than arrays that are described one by one; the keys of dicts are kept once.
Arrays whose sizes differ, and those that some samples lack, lie one after another, with a table
of where each begins.
"""

import array
import marshal
import sys
from typing import Any, Callable, Dict, List, Optional, Tuple

from .segment import ALIGN, SMALL, Segment, Writer

FEW = 16  # samples; fewer are not worth a stack
ROW_BYTES = 256 << 10  # a larger array is a node of its own, so that it travels by handle
NUMBER_COLUMNS = 4  # more numbers than this are read quicker together, by marshal
FIELDS = 64  # of a sample; more are not what a function is written for
DEEP = 4  # containers in one another
FORM = 2  # marshal's, as for other elements


def raw_array(value: Any) -> bool:
    """An array or tensor that its dtype's name, its shape and its bytes describe."""
    return stackable(value) and (value.numel() if hasattr(value, "numpy") else value.size) > 0


def stackable(value: Any) -> bool:
    """The same, or one without elements: a picture in which nothing was found."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and type(value) in (numpy.ndarray, numpy.memmap):
        return value.dtype.isbuiltin == 1 and value.dtype.kind in "biufc" and value.ndim > 0
    return torch is not None and type(value) is torch.Tensor and simple_tensor(torch, value)


def simple_tensor(torch: Any, thing: Any) -> bool:
    return (
        thing.device.type == "cpu"
        and thing.layout is torch.strided
        and not thing.requires_grad
        and not thing.is_quantized
        and not thing.is_conj()
        and not thing.is_neg()
        and thing.dim() > 0
    )


# --- writing


def write(
    writer: Writer, things: Any, weigh: Callable[[Any, int], Optional[int]], most: int
) -> Any:
    """A description for getter(), or None where the samples differ, or gain nothing. weigh says
    how much the rest of a sample takes to decode; with more than most it must be a node.
    """
    if len(things) < FEW:
        return None
    columns: List[Tuple[Tuple[Any, ...], Any]] = []
    shape = _shape(things, (), columns, weigh)
    if shape is None or len(columns) > FIELDS:
        return None
    arrays = any(form is not None for _, form in columns)
    if not arrays and not isinstance(things[0], dict):
        return None
    rest = [path for path, form in columns if form is None]
    for thing in things if rest else ():
        weight = weigh([_at(thing, path) for path in rest], 0)
        if weight is None or weight > most:
            return None
    numbers = _number_columns(things, rest)
    fields: List[Tuple[Any, ...]] = []
    for path, form in columns:
        if form is not None:
            write_column = _write_ragged if None in form[2] else _write_stack
            fields.append((*form, *write_column(writer, _column_of(things, path), form)))
        elif numbers is not None:
            fields.append((numbers[path].typecode, writer.write_aligned(numbers[path])))
        else:
            fields.append(("rest",))
    table = None
    if rest and numbers is None:
        starts = array.array("Q")
        for thing in things:
            values = tuple(_at(thing, path) for path in rest)
            starts.append(writer.write(marshal.dumps(values, FORM)))
        table = writer.write_aligned(starts)
    return len(things), shape, fields, table


def _at(thing: Any, path: Tuple[Any, ...]) -> Any:
    for key in path:
        thing = thing[key]
    return thing


def _column_of(things: Any, path: Tuple[Any, ...]) -> Any:
    """The values of one field of all samples."""
    if not path:
        return iter(things)
    if len(path) == 1:
        key = path[0]
        return (thing[key] for thing in things)
    return (_at(thing, path) for thing in things)


def _shape(things: Any, path: Tuple[Any, ...], columns: List[Any], weigh: Any) -> Any:
    """How all samples are built at path: the number of a column, or a dict, list or tuple of such,
    whose fields are appended to columns. None where they are not alike.
    """
    form = _array_form(_column_of(things, path))
    if form is None:
        parts = _parts(things, path, weigh)
        if parts is not None:
            kind, keys = parts
            inner = []
            for key in keys:
                part = _shape(things, (*path, key), columns, weigh)
                if part is None or len(columns) > FIELDS:
                    return None
                inner.append(part)
            return kind, keys, inner
        if not path:
            return None
    columns.append((path, form))
    return len(columns) - 1


def _parts(things: Any, path: Tuple[Any, ...], weigh: Any) -> Optional[Tuple[str, List[Any]]]:
    """("dict", "list" or "tuple", keys) of containers that are alike in all samples, and worth
    taking apart: the samples themselves, and what holds arrays. marshal reads others faster.
    """
    first = _at(things[0], path)
    kind = type(first)
    if kind not in (dict, list, tuple) or len(path) >= DEEP:
        return None
    if path and not any(_holds_array(_at(thing, path), 0) for thing in things[:FEW]):
        return None
    if any(type(value) is not kind for value in _column_of(things, path)):
        return None
    keys = list(first) if kind is dict else list(range(len(first)))
    if len(keys) > FIELDS:
        return None
    if kind is dict:
        if weigh(keys, 0) is None:
            return None
        if any(list(value) != keys for value in _column_of(things, path)):
            return None
    elif any(len(value) != len(keys) for value in _column_of(things, path)):
        return None
    return kind.__name__, keys


def _holds_array(value: Any, depth: int) -> bool:
    if stackable(value):
        return True
    if type(value) not in (dict, list, tuple) or depth >= DEEP:
        return False
    inner = value.values() if type(value) is dict else value
    return any(_holds_array(part, depth + 1) for part in inner)


def _array_form(values: Any) -> Optional[Tuple[Any, ...]]:
    """("array" or "tensor", dtype, shape) where all values have the same type and as many
    dimensions; a length that differs is None in the shape, and so is the first where some samples
    have None for their array. None where they differ in more.
    """
    kind = dtype = None
    shape: List[Optional[int]] = []
    lacking = False
    for value in values:
        if value is None:
            lacking = True
            continue
        if not stackable(value) or value.nbytes > ROW_BYTES:
            return None
        form = "tensor" if hasattr(value, "numpy") else "array"
        if kind is None:
            kind, dtype, shape = form, value.dtype, list(value.shape)
        elif form != kind or value.dtype != dtype or value.ndim != len(shape):
            return None
        elif tuple(value.shape) != tuple(shape):
            shape = [a if a == b else None for a, b in zip(shape, value.shape)]
    if kind is None:
        return None
    if lacking or 0 in shape:
        shape[0] = None
    if kind == "tensor":
        torch = sys.modules["torch"]
        try:
            dtype = torch.empty(0, dtype=dtype).numpy().dtype
        except TypeError:
            return None  # NumPy has no such type: bfloat16
    return kind, dtype.str, tuple(shape)  # type: ignore[union-attr]


def _number_columns(things: Any, paths: List[Any]) -> Optional[Dict[Any, Any]]:
    if len(paths) > NUMBER_COLUMNS:
        return None
    columns = {}
    for path in paths:
        types = set(map(type, _column_of(things, path)))
        code = "q" if types == {int} else "d" if types == {float} else ""
        try:
            columns[path] = array.array(code, _column_of(things, path)) if code else None
        except OverflowError:
            return None  # an int of more than 64 bits
        if columns[path] is None:
            return None
    return columns


def _bytes_of(value: Any) -> Any:
    numpy = sys.modules["numpy"]
    plain = value.numpy() if hasattr(value, "numpy") else value
    return numpy.ascontiguousarray(plain).reshape(-1).view(numpy.uint8)


def _write_stack(writer: Writer, values: Any, form: Any) -> Tuple[int, int]:
    """Writes the rows; returns the address of the first and the bytes from one to the next."""
    where = stride = 0
    for value in values:
        raw = _bytes_of(value)
        if not stride:
            stride = raw.nbytes + -raw.nbytes % (ALIGN if raw.nbytes >= SMALL else 16)
            writer.write(bytes(-writer.at % ALIGN))
            where = writer.at
        writer.write(raw)
        writer.write(bytes(stride - raw.nbytes))
    return where, stride


def _write_ragged(writer: Writer, values: Any, form: Any) -> Tuple[Any, ...]:
    """Writes the arrays one after another. Returns the address of the first, the number of rows of
    all, the address of the table of where each begins (counted in rows where the first length
    alone differs, else in bytes; one more at the end), tables of the lengths that differ, and one
    of which samples have no array.
    """
    shape = form[2]
    by_rows = None not in shape[1:]
    writer.write(bytes(-writer.at % ALIGN))
    where, rows = writer.at, 0
    starts, missing = array.array("Q", [0]), bytearray()
    lengths = [array.array("Q") for _ in shape]
    for value in values:
        missing.append(value is None)
        if value is not None and value.nbytes:
            writer.write(_bytes_of(value))
        rows += 0 if value is None else value.shape[0]
        starts.append(rows if by_rows else writer.at - where)
        for axis, table in enumerate(lengths):
            table.append(0 if value is None else value.shape[axis])
    tables = [
        writer.write_aligned(table) if length is None and not by_rows else None
        for length, table in zip(shape, lengths)
    ]
    lacking = writer.write(missing) if any(missing) else None
    return where, rows, writer.write_aligned(starts), tables, lacking


# --- reading


def getter(segment: Segment, description: Any) -> Callable[[int], Any]:
    """A function from a place to the sample there, made for these fields: a loop over them would
    take longer than reading them. The text of the function holds none of the data.
    """
    count, shape, fields, table = description
    names: Dict[str, Any] = {"view": segment.view, "loads": marshal.loads}
    values, rest = [], []
    for number, (kind, *how) in enumerate(fields):
        if kind == "rest":
            rest.append("r%d" % number)
            values.append(rest[-1])
            continue
        if kind in ("array", "tensor") and None in how[1]:
            value, lacking = _ragged(segment, count, kind, how, number, names)
        else:
            names["c%d" % number] = _column(segment, count, kind, how)
            value, lacking = "c%d[i]" % number, ""
        if kind == "tensor":
            import torch

            names["tensor"] = torch.from_numpy
            value = "tensor(%s)" % value
        values.append(value + lacking)
    made = _built(shape, values, names)
    lines = ["def get(i):"]
    if not values:
        names["places"] = range(count)
        lines.append("    places[i]")  # a place that is not there is an IndexError
    if rest:
        names["starts"] = segment.view[table : table + 8 * count].cast("Q")
        lines.append("    %s, = loads(view[starts[i]:])" % ", ".join(rest))
    exec("\n".join([*lines, "    return " + made]), names)
    answer: Callable[[int], Any] = names["get"]
    return answer


def _built(shape: Any, values: List[str], names: Dict[str, Any]) -> str:
    """The text that builds a sample of its values. The keys of dicts are put into names."""
    if isinstance(shape, int):
        return values[shape]
    kind, keys, inner = shape
    parts = [_built(part, values, names) for part in inner]
    if kind == "dict":
        for place, key in enumerate(keys):
            name = "k%d" % len(names)
            names[name] = key
            parts[place] = "%s: %s" % (name, parts[place])
    form = {"dict": "{%s}", "list": "[%s]", "tuple": "(%s,)" if parts else "(%s)"}[kind]
    return form % ", ".join(parts)


def _column(segment: Segment, count: int, kind: str, how: Any) -> Any:
    if kind in ("q", "d"):
        (where,) = how
        return segment.view[where : where + 8 * count].cast(kind)  # type: ignore[call-overload]
    import numpy

    dtype, shape, where, stride = how
    inner = numpy.empty(shape, dtype).strides
    # A tensor knows no read-only memory: writing to it changes this process's copy of the page.
    memory = segment.private if kind == "tensor" else segment.view
    return numpy.ndarray((count, *shape), dtype, memory, where, (stride, *inner))


def _ragged(
    segment: Segment, count: int, kind: str, how: Any, number: int, names: Dict[str, Any]
) -> Tuple[str, str]:
    """The text that reads one of the arrays that _write_ragged wrote, and what comes after it where
    a sample may have none. What the text speaks of is put into names.
    """
    import numpy

    dtype, shape, where, rows, starts, tables, lacking = how
    memory = segment.private if kind == "tensor" else segment.view
    names["s%d" % number] = segment.view[starts : starts + 8 * (count + 1)].cast("Q")
    if None not in shape[1:]:
        names["c%d" % number] = numpy.ndarray((rows, *shape[1:]), dtype, memory, where)
        value = "c%d[s%d[i]:s%d[i + 1]]" % (number, number, number)
    else:
        lengths = []
        for axis, length in enumerate(shape):
            if length is None:
                name, table = "l%d_%d" % (number, axis), tables[axis]
                names[name] = segment.view[table : table + 8 * count].cast("Q")
                lengths.append(name + "[i]")
            else:
                lengths.append(str(length))
        names.update(ndarray=numpy.ndarray)
        names["t%d" % number], names["m%d" % number] = numpy.dtype(dtype), memory
        value = "ndarray((%s,), t%d, m%d, %d + s%d[i])" % (
            *(", ".join(lengths), number, number, where, number),
        )
    if lacking is None:
        return value, ""
    names["n%d" % number] = segment.view[lacking : lacking + count]
    return value, " if not n%d[i] else None" % number
