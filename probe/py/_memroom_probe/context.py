"""How much of a card this process's CUDA context takes: the driver's part and the libraries' code,
which no allocator counts.

On a shared card the bytes in use say little about one process: others come and go. So the size is,
in this order:

1. what NVML attributes to this process, less what its allocator reserved;
2. the rise of the card's used bytes since before CUDA came up, where two readings at different
   times agree and a card of this kind can take so much: a neighbour that moves in between breaks
   the agreement, and one that does not can shift the figure only within these bounds;
3. what a card of this kind usually takes.

Nothing here touches the card: readings come in, a size goes out.
"""

from typing import Any, NamedTuple, Optional

MIB = 1 << 20
AGREE = 32 * MIB  # two readings of the same context differ by less


class Card(NamedTuple):
    """What this process's own driver calls say about a card."""

    total: int
    processors: int  # streaming multiprocessors
    threads: int  # resident on one of them at most

    def usual(self) -> int:
        """What training usually takes. The driver sets memory aside for every thread that can be
        resident, up to 2.4 KiB on the cards that were measured (plan/card.go has the figures);
        kernels and libraries came to 148 MiB on an H200. The upper end is taken: a process that is
        held to a limit must not exceed it.
        """
        return self.processors * self.threads * 2400 + 148 * MIB

    def least(self) -> int:
        """A context that has not loaded much yet."""
        return self.processors * self.threads * 1500

    def most(self) -> int:
        """With libraries that take memory of their own, such as NCCL."""
        return self.usual() + 512 * MIB


def card(properties: Any) -> Card:
    """The card that torch describes."""
    return Card(
        properties.total_memory,
        getattr(properties, "multi_processor_count", 0) or 128,
        getattr(properties, "max_threads_per_multi_processor", 0) or 2048,
    )


class Context:
    """The size of one context, as far as the readings up to now show it."""

    def __init__(self, card: Card) -> None:
        self.card = card
        self._last: Optional[int] = None
        self._measured: Optional[int] = None

    def size(self, attributed: Optional[int], rise: Optional[int], reserved: int) -> int:
        """attributed: by NVML to this process. rise: of the card's used bytes since before CUDA
        came up. None: not known.
        """
        if attributed is not None:
            return max(0, attributed - reserved)
        if rise is not None:
            own = rise - reserved
            again = self._last is not None and abs(own - self._last) <= AGREE
            if again and self.card.least() <= own <= self.card.most():
                self._measured = own
            self._last = own
        return self.card.usual() if self._measured is None else self._measured
