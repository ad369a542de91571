"""`samples = memroom.share(samples)`: data that DataLoader workers map instead of copying.

A Python list grows in every worker, because reading an object writes its reference count and so
copies its page. Here the data is serialised once into memory without reference counts. Elements
are decoded when they are asked for, and are ordinary objects of the asking process.
"""

import marshal
import operator
import os
from collections import abc
from typing import Any, Dict, Iterator, List, Optional

from . import encoding, lookup, stacking
from .segment import Segment, Writer, attach

AS_IS = (str, bytes, int, float, complex, bool, type(None), range)
WHOLE = 100  # elements; longer containers are abbreviated when printed


def share(data: Any, folder: Optional[str] = None) -> Any:
    """Returns data in a form that forked and spawned processes share: lists, tuples, dicts,
    NumPy arrays, pandas frames and series, Arrow tables, and mixtures of them. What comes back is
    read as before and cannot be changed. An iterator is read to its end: no list need exist.

    The memory is freed when the last process that uses it ends. folder puts the data in a file
    without a name there instead of in memory: slower at first, but it may be larger than memory.

    Elements come out as ordinary Python objects, copies of their own; arrays as read-only views;
    tensors as views whose changes stay in the process that made them.
    """
    if is_shared(data):
        return data
    if isinstance(data, AS_IS):
        return data  # nothing in it to copy but one reference count
    writer: Optional[Writer] = None
    try:
        writer = Writer(None if folder is None else os.fspath(folder))
        segment = writer.finish(encoding.write(writer, _container(data)))
    except BaseException as error:
        if writer is not None:
            writer.abandon()
        raise _explained(error, folder) from (None if isinstance(error, TypeError) else error)
    return node_at(segment, segment.root)


def is_shared(data: Any) -> bool:
    """Whether share returned this object."""
    return isinstance(data, (SharedList, SharedDict)) or bool(getattr(data, "_memroom_node", None))


def _container(data: Any) -> Any:
    """What can be written: iterators and other sequences as lists."""
    known = isinstance(data, (list, tuple, dict, abc.Iterator))
    if known or encoding.library_kind(data):
        return data
    if isinstance(data, abc.Mapping):
        return dict(data)
    if isinstance(data, abc.Set):
        raise encoding.CannotShare("a set has no place to look up; share dict.fromkeys(it)")
    if isinstance(data, abc.Sequence):
        return list(data)
    return data


def _explained(error: BaseException, folder: Optional[str]) -> BaseException:
    if isinstance(error, encoding.CannotShare):
        return encoding.CannotShare(
            "memroom.share: %s. Share the lists, dicts, arrays and tables that hold the data, such "
            "as dataset.samples = memroom.share(dataset.samples)" % error
        )
    if isinstance(error, OSError):
        where = "shared memory" if folder is None else folder
        return OSError(
            error.errno,
            "memroom.share: %s could not hold the data (%s). Name a folder on a disk with room: "
            "memroom.share(data, folder='...')" % (where, error.strerror),
        )
    return error


def node_at(segment: Segment, address: int) -> Any:
    """The container, array or table that was written at address."""
    description = encoding.describe(segment, address)
    kind = description[0]
    if kind in ("list", "tuple"):
        return SharedList(segment, address, description)
    if kind == "dict":
        return SharedDict(segment, address, description)
    from . import shared_types

    return shared_types.open_node(segment, address, description)


def restore(handle: Any, address: int) -> Any:
    """Called where a shared object is unpickled."""
    return node_at(attach(handle), address)


def _restore_slice(handle: Any, address: int, start: int, stop: int, step: int) -> Any:
    return restore(handle, address)._cut(range(start, stop, step))


def refuse(name: str, copy: str) -> Any:
    def refused(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            "this data is shared with other processes and cannot be changed (%s): change it "
            "before memroom.share(), or work on a copy, %s" % (name, copy)
        )

    refused.__name__ = name
    return refused


class SharedList(abc.Sequence):
    """A list or tuple in shared memory. Slices are views."""

    def __init__(self, segment: Segment, address: int, description: Any) -> None:
        self._segment = segment
        self._address = address
        self._places: Optional[range] = None  # of a slice: which elements
        kind, self._length, form = description[:3]
        self._tuple = kind == "tuple"
        # From a place of the whole list, and from one of this slice, to the element. Both raise
        # an IndexError beyond the end, and know no negative places.
        self._whole = self._get = _getter(segment, self._length, form, description[3:])

    def _cut(self, places: range) -> "SharedList":
        part = object.__new__(type(self))
        part.__dict__.update(self.__dict__)
        part._places, part._length = places, len(places)
        whole = self._whole
        part._get = lambda place: whole(places[place])
        return part

    def __len__(self) -> int:
        answer: int = self._length
        return answer

    def __getitem__(self, index: Any) -> Any:
        # Every check here is paid for by every sample that is read.
        if type(index) is int and index >= 0:
            try:
                return self._get(index)
            except IndexError:
                if index < self._length:
                    raise  # an object of the user's own, while it is unpickled
                raise IndexError("%s index out of range" % self._name()) from None
        return self._get_other(index)

    def _get_other(self, index: Any) -> Any:
        """By a negative place, a slice, an array of places, or a number of another type."""
        if isinstance(index, slice):
            whole = self._places if self._places is not None else range(self._length)
            return self._cut(whole[index])
        if hasattr(index, "tolist") and getattr(index, "ndim", 0) == 1:
            return self._fancy(index)
        index = operator.index(index)
        if index < 0:
            index += self._length
        if not 0 <= index < self._length:
            raise IndexError("%s index out of range" % self._name())
        return self._get(index)

    def _fancy(self, index: Any) -> Any:
        """As an array of objects would be indexed: by an array of places or of truth values."""
        import numpy

        places = numpy.arange(len(self))[numpy.asarray(index)]
        found = numpy.empty(len(places), object)
        found[:] = [self[int(place)] for place in places]
        return found

    def __getitems__(self, indices: Any) -> List[Any]:
        """What torch's DataLoader calls for a whole batch."""
        if indices and 0 <= min(indices):
            return list(map(self._get, indices))
        return [self[index] for index in indices]

    def __iter__(self) -> Iterator[Any]:
        return map(self._whole, range(self._length) if self._places is None else self._places)

    def __reversed__(self) -> Iterator[Any]:
        return iter(self[::-1])

    def __contains__(self, thing: Any) -> bool:
        return any(element is thing or element == thing for element in self)

    def __eq__(self, other: Any) -> Any:
        if isinstance(other, SharedList):
            if self._tuple != other._tuple:
                return False
        elif not isinstance(other, tuple if self._tuple else list):
            return NotImplemented
        return len(self) == len(other) and all(a is b or a == b for a, b in zip(self, other))

    def __lt__(self, other: Any) -> Any:
        return self._plain() < _plain(other)

    def __le__(self, other: Any) -> Any:
        return self._plain() <= _plain(other)

    def __gt__(self, other: Any) -> Any:
        return self._plain() > _plain(other)

    def __ge__(self, other: Any) -> Any:
        return self._plain() >= _plain(other)

    def __hash__(self) -> int:
        if not self._tuple:
            raise TypeError("unhashable type: 'SharedList'")
        return hash(tuple(self))

    def __add__(self, other: Any) -> Any:
        return self._plain() + _plain(other)

    def __radd__(self, other: Any) -> Any:
        return other + self._plain()

    def __mul__(self, times: Any) -> Any:
        return self._plain() * times

    __rmul__ = __mul__

    def copy(self) -> List[Any]:
        return list(self)

    def _plain(self) -> Any:
        return tuple(self) if self._tuple else list(self)

    def _name(self) -> str:
        return "tuple" if self._tuple else "list"

    def __repr__(self) -> str:
        if self._length <= WHOLE:
            return repr(self._plain())
        first = ", ".join(repr(self[i]) for i in range(10))
        last = ", ".join(repr(self[i]) for i in range(-3, 0))
        text = "%s, ... %d more ..., %s" % (first, self._length - 13, last)
        return ("(%s)" if self._tuple else "[%s]") % text

    def __reduce__(self) -> Any:
        handle = self._segment.handle()
        if self._places is None:
            return restore, (handle, self._address)
        places = self._places
        return _restore_slice, (handle, self._address, places.start, places.stop, places.step)

    def __copy__(self) -> "SharedList":
        return self

    def __deepcopy__(self, memo: Any) -> "SharedList":
        return self


for _name in (
    "append clear extend insert pop remove reverse sort __setitem__ __delitem__ __iadd__ __imul__"
).split():
    setattr(SharedList, _name, refuse(_name, "list(samples)"))


def _plain(other: Any) -> Any:
    return other._plain() if isinstance(other, SharedList) else other


def _getter(segment: Segment, length: int, form: str, rest: Any) -> Any:
    """A function from a place to the element there."""
    view = segment.view
    if form in ("q", "d"):
        numbers: Any = view[rest[0] : rest[0] + 8 * length]
        return numbers.cast(form).__getitem__
    if form == "texts":
        starts = view[rest[0] : rest[0] + 8 * length].cast("Q")
        loads = marshal.loads
        return lambda i: loads(view[starts[i] :])  # marshal finds the end by itself
    if form == "stacked":
        return stacking.getter(segment, rest[0])
    return elements(segment, length, *rest)


def elements(segment: Segment, length: int, table: int, kinds: Any) -> Any:
    view = segment.view
    bounds = view[table : table + 16 * length].cast("Q")
    how, value = kinds
    if how == "same" and value == encoding.PLAIN:
        loads = marshal.loads
        return lambda i: loads(view[bounds[2 * i] :])  # marshal finds the end by itself
    if how == "same":
        decode = encoding.decoder(segment, value, node_at)
        return lambda i: decode(bounds[2 * i], bounds[2 * i + 1])
    decoders = [encoding.decoder(segment, kind, node_at) for kind in range(5)]
    kind_of = view[value : value + length]
    return lambda i: decoders[kind_of[i]](bounds[2 * i], bounds[2 * i + 1])


class SharedDict(abc.Mapping):
    """A dict in shared memory."""

    def __init__(self, segment: Segment, address: int, description: Any) -> None:
        self._segment = segment
        self._address = address
        _, self._length, keys, table, form, *values = description
        self._keys = node_at(segment, keys)
        self._get = _getter(segment, self._length, form, values)
        self._slots: Any = None
        self._places: Any = None
        if table is not None:
            size = 1 << (2 * self._length).bit_length()
            self._slots = segment.view[table : table + 8 * size].cast("Q")

    def _find(self, key: Any) -> int:
        if self._slots is not None:
            return lookup.find(self._slots, self._keys, key)
        if self._places is None:
            self._places = {k: place for place, k in enumerate(self._keys)}
        answer: int = self._places.get(key, -1)
        return answer

    def __getitem__(self, key: Any) -> Any:
        place = self._find(key)
        if place < 0:
            raise KeyError(key)
        return self._get(place)

    def __contains__(self, key: Any) -> bool:
        return self._find(key) >= 0

    def __len__(self) -> int:
        answer: int = self._length
        return answer

    def __iter__(self) -> Iterator[Any]:
        return iter(self._keys)

    def __reversed__(self) -> Iterator[Any]:
        answer: Iterator[Any] = reversed(self._keys)
        return answer

    def keys(self) -> Any:
        return abc.KeysView(self)

    def values(self) -> Any:
        return _Values(self)

    def items(self) -> Any:
        return _Items(self)

    def __eq__(self, other: Any) -> Any:
        if not isinstance(other, (dict, SharedDict)):
            return NotImplemented
        if len(self) != len(other):
            return False
        return all(key in other and _same(value, other[key]) for key, value in self.items())

    __hash__ = None  # type: ignore[assignment]

    def __or__(self, other: Any) -> Any:
        return {**self, **other}

    def __ror__(self, other: Any) -> Any:
        return {**other, **self}

    def copy(self) -> Dict[Any, Any]:
        return dict(self.items())

    def __repr__(self) -> str:
        if self._length <= WHOLE:
            return repr(self.copy())
        first = ", ".join(
            "%r: %r" % (self._keys[place], self._get(place)) for place in range(min(10, len(self)))
        )
        return "{%s, ... %d more}" % (first, self._length - 10)

    def __reduce__(self) -> Any:
        return restore, (self._segment.handle(), self._address)

    def __copy__(self) -> "SharedDict":
        return self

    def __deepcopy__(self, memo: Any) -> "SharedDict":
        return self


for _name in "clear pop popitem setdefault update __setitem__ __delitem__ __ior__".split():
    setattr(SharedDict, _name, refuse(_name, "dict(samples)"))


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    equal = a == b
    return bool(equal.all()) if hasattr(equal, "all") else bool(equal)


class _Values(abc.ValuesView):
    """In order, without looking each key up."""

    _mapping: SharedDict

    def __iter__(self) -> Iterator[Any]:
        return map(self._mapping._get, range(len(self._mapping)))

    def __reversed__(self) -> Iterator[Any]:
        return map(self._mapping._get, range(len(self._mapping) - 1, -1, -1))


class _Items(abc.ItemsView):
    _mapping: SharedDict

    def __iter__(self) -> Iterator[Any]:
        return zip(self._mapping._keys, self._mapping.values())

    def __reversed__(self) -> Iterator[Any]:
        return zip(reversed(self._mapping._keys), reversed(self._mapping.values()))
