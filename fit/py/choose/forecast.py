"""How far what was predicted and what a step really took are apart.

A prediction reckons with straight lines through measurements of a few samples. The first steps show
how wrong it is: once as a difference, and from two steps with different choices also by how much
the difference grows with what is predicted.
"""

import math
from typing import Dict, List, Optional, Tuple

MOST = 1.0  # bytes that may be missing for each byte that is predicted, at the most
# The same, taken until a second choice has been seen. A UNet, whose gradients wait for the other
# end of its skip connections, missed 0.1 to 0.3.
UNSEEN = 0.15
FLAT = 0.5  # bytes more that were taken for each byte more that was predicted, at the least
APART = 0.1  # share by which two readings must be apart to tell how it grows


class Forecast:
    """The readings of one kind of step: the same calls that wait for one backward pass. unseen:
    bytes to reckon with for each byte beyond the one reading there is.
    """

    def __init__(self, unseen: float = 0.0) -> None:
        self.unseen = unseen
        self.seen: List[Tuple[float, float]] = []  # (predicted, real) bytes, smallest first
        self._last = (0.0, 0.0)  # the last one, with what the step took where that is less
        self._took: Dict[str, List[Tuple[float, float]]] = {}  # of each kind, what steps took

    def read(
        self, predicted: float, real: float, seen: Optional[float] = None, kind: str = ""
    ) -> None:
        """Notes what a step was predicted to take, and what it is taken to have taken. seen: what
        it took, where that may be less because it was of one kind; kind: that of its choices.
        """
        took = real if seen is None else min(real, seen)
        flat = any(
            took - less < FLAT * (predicted - lower)
            for lower, less in self._took.get(kind, [])
            if lower < predicted
        )
        self.seen.append((predicted, real))
        self.seen.sort()
        self._took.setdefault(kind, []).append((predicted, took))
        # Where more was predicted and no more taken, the peak was at another moment, which says
        # nothing of this one.
        self._last = predicted, real if flat else took

    def took(self, predicted: float) -> float:
        """Bytes that the last step took, where it was predicted to need so many; else infinity."""
        return self._last[1] if self._last[0] == predicted else math.inf

    def missed(self) -> float:
        """Bytes by which a prediction was too low at the most; below 0 where none was."""
        return max(real - predicted for predicted, real in self.seen)

    def room_for(self, free: float, hidden: bool = False) -> float:
        """The bytes that a choice may be predicted to need where so many are free. hidden: what
        was taken beyond what was predicted may have been a work space that a library does without,
        so that no reading tells how wrong a prediction is.
        """
        predicted = self.seen[-1][0]
        rest = free - predicted - self.missed()
        # Beyond the last reading it may be wrong by more; below it is taken to be wrong by as much.
        found = predicted + (rest / (1 + self._grows()) if rest > 0 else rest)
        return min(found, free / (1 + self.unseen)) if hidden else found

    def room_for_more(self, free: float, alike: bool = True) -> float:
        """The same once a choice has been seen, with what is not known about more than that. alike:
        for a choice of the kind that was seen last: what was predicted too much for that is
        predicted too much for more of it.
        """
        predicted, real = self._last
        real = real if alike else max(real, predicted + self.missed())
        rest = free - real
        return predicted + (rest / (1 + max(self._grows(), self.unseen)) if rest > 0 else rest)

    def _grows(self) -> float:
        """Bytes that are missing more for each byte more that is predicted."""
        (low, real_low), (high, real_high) = self.seen[0], self.seen[-1]
        if high - low < APART * high:
            return self.unseen / len(self.seen)
        return min(MOST, max(0.0, (real_high - high - real_low + low) / (high - low)))
