"""After a step that nobody watched: what shows by itself that choices leave too little room."""

import time
from typing import Dict, Optional, Tuple

from ..memory.floor import Teller
from .case import Case
from .cases import Cases
from .choices import Choice
from .means import Means
from .pace import Pace
from .search import roomier, together
from .telling import tell_choice

# Share of the limit that is left besides where the allocator finds no room for a request in step
# after step and gives back what it kept, or where nobody has seen how it does; and times its
# seconds that this may cost.
LOOSER, WORTH_LOOSER = 0.04, 1.1
LOOKS = 24  # steps in which that is looked for
FASTER = 0.98  # times its seconds in which steps must be done to keep what was tried for them


class Unwatched:
    """Knows the pace of the steps with the choices of now."""

    def __init__(self, means: Means, cases: Cases, teller: Teller) -> None:
        self._means, self._cases, self._teller = means, cases, teller
        self._pace = Pace()
        self._looks = 0  # how many of them were looked at
        # (choices, seconds of a step) while others are tried for speed
        self._before: Optional[Tuple[Dict[Case, Choice], float]] = None

    def settle(self, cases: Dict[Case, int]) -> None:
        """A request that failed meanwhile shows that a library lacked its work space, and an
        allocator that gives back what it kept in step after step has hardly any room to lay tensors
        out.
        """
        wall = self._teller.take_wall()
        if not (wall or self._looks < LOOKS) or not all(case.settled for case in cases):
            return
        module = next(iter(cases)).module()
        assert module is not None  # cases of models that are gone are not looked at
        around = self._means.around(module)
        self._looks += 1
        self._pace.note(time.perf_counter(), around.flushes())
        now, taken = together(cases, lambda c: c.choice), {case: case.choice for case in cases}
        better, seconds = taken, self._pace.seconds()
        if wall:
            self._before = None
            better = roomier(cases, taken, self._means.below(now, wall, around.limit))
        elif self._before is not None:
            better = self._the_faster(taken, seconds, *self._before)
        elif self._pace.is_short() and seconds is not None:
            better = roomier(cases, taken, now - LOOSER * around.limit, WORTH_LOOSER)
            self._before = (taken, seconds) if better is not taken else None
        if better is not taken:
            self._pace = Pace()
            self._cases.use(better)
            for case in cases:
                tell_choice(self._means, case, 0, around.limit)

    def _the_faster(
        self,
        taken: Dict[Case, Choice],
        seconds: Optional[float],
        before: Dict[Case, Choice],
        needed: float,
    ) -> Dict[Case, Choice]:
        """What was tried for speed, or the choices before where it is no faster. seconds: of a step
        with what was tried, once that is known; needed: before.
        """
        if seconds is None:
            return taken
        self._before = None
        if seconds <= FASTER * needed or taken.keys() != before.keys():
            return taken
        self._looks = LOOKS
        return before
