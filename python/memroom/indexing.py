"""`stream.indexed()`: rows by their numbers, as a map-style data set of torch has them."""

import operator
import os
import threading
from typing import Any, Dict, List, Optional

from .wire import Link


class Indexed:
    """Rows in the order of the files: data[7] is a dict of one row, data[3:9] and data[[7, 2]] are
    dicts of arrays, len(data) counts rows. DataLoader(data, batch_size=64, shuffle=True) takes it.
    """

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.link: Optional[Link] = None
        self.arrays: Any = None
        self.process = 0  # the connection is of one process: a forked worker makes its own
        self.lock = threading.Lock()

    def __getstate__(self) -> Any:
        return self.stream

    def __setstate__(self, stream: Any) -> None:
        self.__init__(stream)  # type: ignore[misc]

    def __len__(self) -> int:
        answer: int = self._connected().answer["rows"]
        return answer

    def __getitem__(self, wanted: Any) -> Dict[str, Any]:
        if isinstance(wanted, slice):
            return self._batch(range(*wanted.indices(len(self))))
        if hasattr(wanted, "__len__"):
            return self._batch(_numbers(wanted, len(self)))
        return self._rows([operator.index(wanted)])[0]

    def __getitems__(self, numbers: List[int]) -> List[Dict[str, Any]]:
        """The rows of a batch, for torch's DataLoader."""
        return self._rows(numbers)

    def _rows(self, numbers: Any) -> List[Dict[str, Any]]:
        batch = self._batch(numbers)
        return [{name: batch[name][i] for name in batch} for i in range(len(numbers))]

    def _batch(self, numbers: Any) -> Dict[str, Any]:
        rows = len(self)
        if any(not -rows <= number < rows for number in numbers):
            raise IndexError("there are %d rows" % rows)
        with self.lock:
            link = self._connected()
            try:
                _, _, count, spans, memory = link.pick([number % rows for number in numbers])
                batch = self.arrays(count, spans, memory, True)
            except BaseException:  # what was asked for may still come: not on this connection
                link.close()
                self.process = 0
                raise
        return self.stream._changed(batch)  # type: ignore[no-any-return]

    def _connected(self) -> Link:
        if self.link is None or self.process != os.getpid():
            self.link, self.arrays = self.stream._pick()
            self.process = os.getpid()
        return self.link


def _numbers(wanted: Any, rows: int) -> List[int]:
    """The numbers in a list or an array, or where an array of truth values is true."""
    import numpy

    given = numpy.asarray(wanted)
    if given.dtype == bool and given.shape == (rows,):
        given = numpy.flatnonzero(given)
    if given.ndim != 1 or given.size and given.dtype.kind not in "iu":
        raise IndexError(
            "rows are named by whole numbers, by a slice, or by one truth value for each of the %d "
            "rows, not by %s of shape %s" % (rows, given.dtype, given.shape)
        )
    numbers: List[int] = given.tolist()
    return numbers
