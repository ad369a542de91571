"""How fast the steps with one choice are, and whether the allocator had to give back memory."""

import statistics
from typing import List, Optional

STEPS = 3  # that tell how fast a choice is


class Pace:
    """The steps since a choice was made. Their first one is not counted: algorithms are chosen in
    it, and memory is laid out.
    """

    def __init__(self) -> None:
        self._times: List[float] = []  # when each step began
        self._flushes: List[int] = []  # of the allocator, until then

    def note(self, time: float, flushes: int) -> None:
        """A step begins. time: seconds; flushes: how often the allocator has given back all that it
        kept.
        """
        self._times.append(time)
        self._flushes.append(flushes)

    def is_short(self) -> bool:
        """Whether the allocator gave back what it kept in each of the last two steps."""
        last = self._flushes[-3:]
        return len(last) == 3 and last[0] < last[1] < last[2]

    def seconds(self) -> Optional[float]:
        """Of a step; None where too few were seen."""
        each = [b - a for a, b in zip(self._times[1:], self._times[2:])]
        return statistics.median(each[-STEPS:]) if len(each) >= STEPS else None
