"""Which calls wait for one backward pass together."""

from typing import Dict, Iterable, List

from .case import Case

MOST = 64  # companies that are remembered

Counts = Dict[Case, int]  # calls that wait for one backward pass: how many of each


class Companies:
    """Those that were seen. A rollout that becomes longer, or a term of the loss that begins after
    some epochs, brings one that nobody has planned for.
    """

    def __init__(self) -> None:
        self.known: List[Counts] = []  # none within another one

    def saw(self, companies: Iterable[Counts]) -> None:
        for counts in companies:
            if self.is_new(counts):
                others = [known for known in self.known if not _within(known, counts)]
                self.known = others[-MOST:] + [counts]

    def is_new(self, counts: Counts) -> bool:
        return not any(_within(counts, known) for known in self.known)

    def forget_gone(self) -> None:
        self.known = [k for k in self.known if all(c.module() is not None for c in k)]


def _within(counts: Counts, known: Counts) -> bool:
    return all(known.get(case, 0) >= count for case, count in counts.items())
