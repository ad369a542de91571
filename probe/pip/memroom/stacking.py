"""Samples that are all alike. Each array of all samples lies in one stack, whose rows are read
several times faster than arrays that are described one by one; the keys of dicts are kept once.
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
FORM = 2  # marshal's, as for other elements


def raw_array(value: Any) -> bool:
    """An array or tensor that its dtype's name, its shape and its bytes describe."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and type(value) in (numpy.ndarray, numpy.memmap):
        plain = value.dtype.isbuiltin == 1 and value.dtype.kind in "biufc"
        return plain and value.size > 0 and value.ndim > 0
    return torch is not None and type(value) is torch.Tensor and simple_tensor(torch, value)


def simple_tensor(torch: Any, thing: Any) -> bool:
    return (
        thing.device.type == "cpu"
        and thing.layout is torch.strided
        and not thing.requires_grad
        and not thing.is_quantized
        and not thing.is_conj()
        and not thing.is_neg()
        and thing.numel() != 0
        and thing.dim() > 0
    )


# --- writing


def write(
    writer: Writer, things: Any, weigh: Callable[[Any, int], Optional[int]], most: int
) -> Any:
    """A description for getter(), or None where the samples differ, or gain nothing. weigh says
    how much the rest of a sample takes to decode; with more than most it must be a node.
    """
    kind = type(things[0]) if len(things) >= FEW else None
    if kind is None or set(map(type, things)) != {kind}:
        return None
    if kind is dict:
        keys = list(things[0])
        if any(list(thing) != keys for thing in things):
            return None
        shape: Any = keys
    elif kind is list or kind is tuple:
        keys = list(range(len(things[0])))
        if any(len(thing) != len(keys) for thing in things):
            return None
        shape = kind.__name__
    else:
        keys, shape = [None], "alone"
    if len(keys) > FIELDS:
        return None
    column = _whole if shape == "alone" else _part
    forms = [_array_form(column(things, key)) for key in keys]
    if kind is dict and weigh(keys, 0) is None or not (any(forms) or kind is dict):
        return None
    rest = [key for key, form in zip(keys, forms) if form is None]
    for thing in things if rest else ():
        weight = weigh([thing[key] for key in rest], 0)
        if weight is None or weight > most:
            return None
    numbers = _number_columns(things, rest)
    fields: List[Tuple[Any, ...]] = []
    for key, form in zip(keys, forms):
        if form is not None:
            fields.append((*form, *_write_stack(writer, column(things, key))))
        elif numbers is not None:
            fields.append((numbers[key].typecode, writer.write_aligned(numbers[key])))
        else:
            fields.append(("rest",))
    table = None
    if rest and numbers is None:
        starts = array.array("Q")
        for thing in things:
            starts.append(writer.write(marshal.dumps(tuple(thing[key] for key in rest), FORM)))
        table = writer.write_aligned(starts)
    return len(things), shape, fields, table


def _whole(things: Any, key: Any) -> Any:
    return iter(things)


def _part(things: Any, key: Any) -> Any:
    return (thing[key] for thing in things)


def _array_form(values: Any) -> Optional[Tuple[Any, ...]]:
    """("array" or "tensor", dtype, shape) where all values have the same; None otherwise."""
    found = None
    for value in values:
        if not raw_array(value):
            return None
        tensor = hasattr(value, "numpy")
        form = ("tensor" if tensor else "array", value.dtype, tuple(value.shape))
        if found is None:
            found = form
            if value.nbytes > ROW_BYTES:
                return None
        elif form != found:
            return None
    if found is None:
        return None
    kind, dtype, shape = found
    if kind == "tensor":
        torch = sys.modules["torch"]
        try:
            dtype = torch.empty(0, dtype=dtype).numpy().dtype
        except TypeError:
            return None  # NumPy has no such type: bfloat16
    return kind, dtype.str, shape


def _number_columns(things: Any, keys: List[Any]) -> Optional[Dict[Any, Any]]:
    if len(keys) > NUMBER_COLUMNS:
        return None
    columns = {}
    for key in keys:
        types = {type(thing[key]) for thing in things}
        code = "q" if types == {int} else "d" if types == {float} else ""
        try:
            columns[key] = array.array(code, (thing[key] for thing in things)) if code else None
        except OverflowError:
            return None  # an int of more than 64 bits
        if columns[key] is None:
            return None
    return columns


def _write_stack(writer: Writer, values: Any) -> Tuple[int, int]:
    """Writes the rows; gives the address of the first and the bytes from one to the next."""
    numpy = sys.modules["numpy"]
    where = stride = 0
    for value in values:
        plain = value.numpy() if hasattr(value, "numpy") else value
        raw = numpy.ascontiguousarray(plain).reshape(-1).view(numpy.uint8)
        if not stride:
            stride = raw.nbytes + -raw.nbytes % (ALIGN if raw.nbytes >= SMALL else 16)
            writer.write(bytes(-writer.at % ALIGN))
            where = writer.at
        writer.write(raw)
        writer.write(bytes(stride - raw.nbytes))
    return where, stride


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
        names["c%d" % number] = _column(segment, count, kind, how)
        values.append(("tensor(c%d[i])" if kind == "tensor" else "c%d[i]") % number)
        if kind == "tensor":
            import torch

            names["tensor"] = torch.from_numpy
    if isinstance(shape, list):
        names.update(("k%d" % number, key) for number, key in enumerate(shape))
        made = "{%s}" % ", ".join("k%d: %s" % pair for pair in enumerate(values))
    else:
        made = {"list": "[%s]", "tuple": "(%s,)", "alone": "%s"}[shape] % ", ".join(values)
    lines = ["def get(i):"]
    if rest:
        names["starts"] = segment.view[table : table + 8 * count].cast("Q")
        lines.append("    %s, = loads(view[starts[i]:])" % ", ".join(rest))
    exec("\n".join([*lines, "    return " + made]), names)
    return names["get"]


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
