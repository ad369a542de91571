"""pandas frames and series over a shared block. They are what they were, cannot be changed, and
travel to other processes as a handle instead of a copy.

pandas reads a subclass more slowly than a frame of its own: whatever it finds there it makes twice.
So what is asked of a shared frame is answered by an ordinary one over the same columns, and a
single row or cell, which is what a data set's __getitem__ asks for, by the shortest way to it.
"""

from typing import Any

from .segment import Segment
from .sharing import refuse, restore

_made: Any = {}  # the two classes, which need pandas to be imported first
LABELS = (int, str)  # that an index looks up as one row, or refuses


def open_frame(segment: Segment, address: int, frame: Any) -> Any:
    import pandas

    name = "frame" if isinstance(frame, pandas.DataFrame) else "series"
    if name not in _made:
        base = pandas.DataFrame if name == "frame" else pandas.Series
        _made[name] = _frame_class(pandas, base)
    shared = _made[name](frame, copy=False)
    object.__setattr__(shared, "_memroom_node", (segment, address))
    return shared


def _frame_class(pandas: Any, base: Any) -> Any:
    class Shared(base):
        """A frame or series whose columns lie in shared memory. What is made of it is ordinary."""

        _internal_names = [*base._internal_names, "_memroom_node", "_memroom_readers"]
        _internal_names_set = set(_internal_names)

        @property
        def _constructor(self) -> Any:
            return base

        def _memroom_read(self) -> Any:
            """What answers for this frame, made anew where its data or labels are others now."""
            own = self.__dict__
            readers = own.get("_memroom_readers")
            if (
                readers is None
                or readers.manager is not own["_mgr"]
                or readers.attributes is not own.get("_attrs")
            ):
                readers = _Readers(base, own)
                object.__setattr__(self, "_memroom_readers", readers)
            return readers

        def __reduce__(self) -> Any:
            node = self.__dict__.get("_memroom_node")
            if node is None:
                return base(self).__reduce__()
            segment, address = node
            return restore, (segment.handle(), address)

        def __reduce_ex__(self, protocol: Any) -> Any:
            return self.__reduce__()

        def __getitem__(self, key: Any) -> Any:
            return self._memroom_read().plain[key]

        loc = property(lambda self: self._memroom_read().loc)
        iloc = property(lambda self: self._memroom_read().iloc)
        at = property(lambda self: self._memroom_read().at)
        iat = property(lambda self: self._memroom_read().iat)

    if base is pandas.DataFrame:
        Shared._constructor_sliced = property(lambda self: pandas.Series)
    else:
        Shared._constructor_expanddim = property(lambda self: pandas.DataFrame)
    for name in ("__setitem__", "__delitem__", "insert", "pop", "update"):
        if hasattr(base, name):
            setattr(Shared, name, refuse(name, "df.copy()"))
    Shared.__module__ = __name__
    Shared.__name__ = Shared.__qualname__ = "Shared" + base.__name__
    return Shared


class _Readers:
    """An ordinary frame over the same data, and its .loc, .iloc, .at and .iat for reading."""

    def __init__(self, base: Any, own: Any) -> None:
        self.plain = base.__new__(base)
        for name, value in own.items():
            if not name.startswith("_memroom"):
                object.__setattr__(self.plain, name, value)
        self.manager, self.attributes = own["_mgr"], own.get("_attrs")
        framed = self.plain.ndim == 2 and hasattr(base, "_ixs")
        self.loc = (_ByLabel if framed else _Reader)(self.plain, "loc")
        self.iloc = (_ByPlace if framed else _Reader)(self.plain, "iloc")
        self.at = (_ByLabel if framed else _Reader)(self.plain, "at")
        self.iat = (_ByPlace if framed else _Reader)(self.plain, "iat")


class _Reader:
    """df.loc and the like, for reading."""

    def __init__(self, plain: Any, name: str) -> None:
        self._plain, self._name = plain, name

    def __getitem__(self, key: Any) -> Any:
        return getattr(self._plain, self._name)[key]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._plain, self._name)(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(self._plain, self._name), name)

    __setitem__ = refuse("assignment", "df.copy()")


class _ByPlace(_Reader):
    """.iloc and .iat of a frame. pandas' own checks take longer than fetching a row or cell."""

    def __init__(self, plain: Any, name: str) -> None:
        super().__init__(plain, name)
        self._rows, self._columns = plain.shape
        self._values: Any = [None] * self._columns  # the arrays of columns that were asked for

    def __getitem__(self, key: Any) -> Any:
        if type(key) is int:
            if 0 <= key < self._rows and self._name == "iloc":
                return self._plain._ixs(key, axis=0)
        elif type(key) is tuple and len(key) == 2:
            row, column = key
            if (
                type(row) is int
                and type(column) is int
                and 0 <= row < self._rows
                and 0 <= column < self._columns
            ):
                return self._cell(row, column)
        return getattr(self._plain, self._name)[key]

    def _cell(self, row: int, column: int) -> Any:
        values = self._values[column]
        if values is None:
            values = self._values[column] = self._plain._ixs(column, axis=1)._values
        return values[row]


class _ByLabel(_ByPlace):
    """.loc and .at of a frame."""

    def __getitem__(self, key: Any) -> Any:
        label, column = key if type(key) is tuple and len(key) == 2 else (key, None)
        if type(label) in LABELS and type(column) in (int, str, type(None)):
            row = self._place(self._plain.index, label)
            if type(row) is int and column is None and self._name == "loc":
                if type(key) is not tuple:
                    return self._plain._ixs(row, axis=0)
            elif type(row) is int and column is not None:
                place = self._place(self._plain.columns, column)
                if type(place) is int:
                    return self._cell(row, place)
        return getattr(self._plain, self._name)[key]

    @staticmethod
    def _place(index: Any, label: Any) -> Any:
        """The one place of a label; something else where pandas has to decide."""
        try:
            return index.get_loc(label) if index.nlevels == 1 else None
        except (KeyError, TypeError):
            return None
