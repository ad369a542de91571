"""After a step: the cheapest choices that fit together, with what the step really needed."""

import dataclasses
import gc
from typing import TYPE_CHECKING, Any, Dict, FrozenSet, Optional, Set, Tuple

from ..memory import room
from ..memory.floor import Teller
from ..memory.promises import promises
from .case import Case
from .cases import Cases, gradients_of
from .company import Companies, Counts
from .derived import Derived
from .forecast import UNSEEN, Forecast
from .means import BELOW, ROOM_TO_GROW, Means
from .search import (
    AGAIN,
    Taken,
    cheaper,
    cheapest,
    cheapest_if_equal,
    half_way,
    least,
    roomier,
    runs_twice,
    together,
)
from .step import Step
from .telling import tell_choice
from .traits import amplifies, has_several_optimizers
from .unmeasured import Unmeasured
from .unwatched import LOOSER, Unwatched

if TYPE_CHECKING:  # it is loaded where it was asked for
    from ..measure.worst import Worst

MOST_KINDS = 6  # of steps in one loop
# Share of the limit from which on the way from the first, frugal step to what fits is gone in two
# steps: the further a choice is from what was seen, the more may what is predicted be wrong.
FAR = 0.1
LOOSENINGS = 2  # how often what a first choice left over may be used

# Which calls wait together -> (they, bytes they may be predicted for)
Rooms = Dict[FrozenSet[Case], Tuple[Counts, float]]


@dataclasses.dataclass
class _Watched:
    """A step that was watched, and the room that there is for its calls."""

    means: Means
    step: Step
    cases: Counts
    forecast: Forecast
    first: bool  # not all of these have been settled
    new: bool  # these calls are seen together for the first time, and others may follow
    budget: float  # bytes to plan with
    results: float  # bytes of results that the loop lets go when it has the next ones
    stays: float  # bytes that calls keep of which nothing is known beforehand
    old: float  # bytes of gradients of the step before that lie beside the next passes

    def now(self) -> float:
        """Bytes that what is done now was predicted to need."""
        return together(self.cases, lambda c: c.choice)

    def beside(self) -> float:
        """Bytes that are there whatever is chosen: held now, with optimizer state that is still to
        come. Gradients that are there already are counted with the choices, and so are results.
        """
        held = self.step.around.held() + self.means.state_to_come() - self.results
        answer: float = held - gradients_of(self.cases) + self.stays + self.old + self.means.outside
        return answer

    def always(self) -> float:
        """The same, with what predictions were too low by."""
        return self.beside() + self.forecast.missed()

    def room_left(self) -> float:
        """Bytes that the choices may be predicted to need."""
        hidden = any(case.optional for case in self.cases)
        return self.forecast.room_for(self.budget - self.beside(), hidden)


class Settling:
    """Owns the step that is under way, and knows those that were seen. worst: knows the longest
    batch, where that was asked for.
    """

    def __init__(
        self,
        means: Means,
        cases: Cases,
        teller: Teller,
        unmeasured: Unmeasured,
        derived: Derived,
        worst: Optional["Worst"] = None,
    ) -> None:
        self._means, self._cases, self._teller = means, cases, teller
        self._unmeasured, self._derived, self._worst = unmeasured, derived, worst
        self._unwatched = Unwatched(means, cases, teller)
        self.step = Step()
        self.varies = False  # batches were seen to differ
        # Which calls wait together, and how many of each -> Forecast
        self._forecasts: Dict[FrozenSet[Tuple[Case, int]], Forecast] = {}
        self._seen: Set[FrozenSet[Case]] = set()  # the sets of calls that were seen together
        self._rooms: Rooms = {}
        self._companies = Companies()  # that whole steps were done with
        self._more = False  # steps are to come that need more than those that were seen
        self._loosened = 0  # how often what was left over has been used

    def forget_gone(self) -> None:
        """What is known of models that are gone: a script may train one after the other."""

        def there(cases: Any) -> bool:
            return all(case.module() is not None for case in cases)

        self._rooms = {key: known for key, known in self._rooms.items() if there(key)}
        self._seen = {key for key in self._seen if there(key)}
        self._companies.forget_gone()
        self._forecasts = {
            key: known for key, known in self._forecasts.items() if there(c for c, _ in key)
        }

    def is_more_than_ever(self, case: Case) -> bool:
        """Whether one more call of this module makes a company that no step was done with."""
        return self._companies.is_new(self.step.company(case))

    def settle(self) -> None:
        """Takes the cheapest choices that fit together. Once that is done it only ever tightens, so
        that it cannot swing.
        """
        step, self.step = self.step, Step()
        self.step.outside = self._means.outside
        promises.kept()
        self._companies.saw(step.companies.known)
        stays, new = 0.0, self._may_be_followed_by_others(step)
        if new:
            self.step.observe(step.around, gradients_of(step.together))
        elif step.around is not None and step.around.is_card:
            stays = self._unmeasured.settle(
                [case for case in step.together if case.unmeasured and not case.settled], step
            )
        if step.around is not None and not all(case.settled for case in step.together):
            # imports that the first calls set off may leave cycles with frames in them, and the
            # frames hold tensors, and models that are gone
            gc.collect()
        cases = {
            case: count
            for case, count in step.together.items()
            if case.candidates and case.module() is not None
        }
        if not cases:
            return
        self._see_what_is_read(cases, step)
        if step.around is None:
            self._unwatched.settle(cases)
            return
        for mark in step.marks:
            if not any(mark.choice is ran for ran in mark.case.ran):
                mark.case.ran.append(mark.choice)
        self._choose(self._watched(step, cases, stays, new))

    def _see_what_is_read(self, cases: Counts, step: Step) -> None:
        """Large results beside a loss that nobody reads are left out of what calls are planned to
        need; those that are read are put together in each call, instead of computed when they are
        read, and calls are planned for that.
        """
        for case in cases:
            plan = case.plan
            if plan is None or not (plan.reads or plan.left_out):
                continue
            late = not plan.reads
            plan.assembles = not late
            case.dear = [c.with_late(late) for c in case.dear]
            known = {id(c): c.with_late(late) for c in (case.choice, *case.candidates)}
            if all(known[id(c)] is c for c in case.candidates):
                continue
            case.candidates = [known[id(c)] for c in case.candidates]
            choice, around = known[id(case.choice)], step.around
            if around is None:
                around = self._means.around(case.module())
                self.step.observe(around, gradients_of(cases))
            free = self._means.free(around, around.held())
            if not late and choice.needs > free:
                fitting = [c for c in case.candidates if c.needs <= free] or case.candidates
                choice = least(fitting, lambda c: c.needs)
            case.settled = False
            self._cases.use({case: choice})

    def _may_be_followed_by_others(self, step: Step) -> bool:
        """Whether these calls are seen waiting together for the first time in a loop with several
        optimizers. A network that is trained by one of them may be called with others for the next
        one, and needs less room alone: nothing is loosened before the loop has come round.
        """
        together = frozenset(step.together)
        if step.around is None or together in self._seen or len(self._seen) >= MOST_KINDS:
            return False
        self._seen.add(together)
        return has_several_optimizers()

    def _watched(self, step: Step, cases: Counts, stays: float, new: bool) -> _Watched:
        first = not all(case.settled for case in cases)
        if first:
            for case in cases:
                case.amplifies = case.amplifies or amplifies()
        forecast = self._read(cases, step)
        # Results that the loop holds are there while the next call runs. Where that has the loss
        # inside, they count; where the loss comes later, they are gone by then.
        results = 0 if any(case.has_loss for case in cases) else step.results_alive()
        budget = self._means.budget(step.around.limit) * (ROOM_TO_GROW if self.varies else 1)
        # A loop that sets gradients to zero after its forward pass has those of the step before in
        # it. The first step has none to show that.
        old = gradients_of(cases) if not step.gradients else 0
        return _Watched(self._means, step, cases, forecast, first, new, budget, results, stays, old)

    def _read(self, cases: Counts, step: Step) -> Forecast:
        """The Forecast for these calls, with what the step that was watched took."""
        forecast = self._forecasts.setdefault(frozenset(cases.items()), Forecast(UNSEEN))
        predicted = real = step.predicted()
        seen = None
        if not step.around.is_card:
            real = max(predicted, step.peak_of_passes() - step.held_before)
        else:
            real = step.peak_of_passes() - step.held_before - step.outside
            # A library takes a work space where there is room, and does without where there is not.
            real = max(real - max(case.optional for case in cases), min(real, predicted))
            seen = real
            # What a loss is taken to need may be too much. The rest was measured.
            real = max(real, predicted - sum(case.beside for case in cases))
        forecast.read(predicted, real, seen, step.kinds())
        return forecast

    def _choose(self, seen: _Watched) -> None:
        free, now, limit = seen.room_left(), seen.now(), seen.step.around.limit
        wall = self._teller.take_wall()
        # The next batch may be a little longer.
        slack = 0 if self.varies else (1 - room.SAFETY) / 2 * limit
        # What was seen to fit need not be predicted to, by what another kind of choice took.
        ran = not seen.first and not self.varies and seen.step.around.is_card
        ran = ran and seen.forecast.took(now) <= seen.budget - seen.beside()
        self._rooms[frozenset(seen.cases)] = seen.cases, max(free, now) if ran else free
        if not wall and (ran or now <= free + slack):
            if seen.new:
                return
            if not seen.first:
                left = seen.budget - seen.beside()
                self._loosen(seen.cases, seen.step, seen.forecast, left, seen.beside())
                return
        always = seen.always()
        far = seen.first and seen.step.around.is_card and len(seen.forecast.seen) == 1
        far = far and free - now > FAR * limit
        taken, free, always = self._cheapest(self._with_more_to_come(seen), free, always)
        taken = self._or_what_ran(seen, taken, free, now)
        if wall:
            taken = roomier(seen.cases, taken, min(free, self._means.below(now, wall, limit)))
        if not seen.first and all(case.choice is choice for case, choice in taken.items()):
            return
        self._derived.settle(free - together(seen.cases, taken.__getitem__))
        self._take(seen, taken, always, far)

    def _with_more_to_come(self, seen: _Watched) -> _Watched:
        """Where an attempt did some steps as they are and then ran out, as with a rollout that
        becomes longer or a loss that begins after an epoch, more calls will wait together: twice as
        many, is the guess. What needs more than there is was not among those steps.
        """
        as_it_is = together(seen.cases, lambda c: c.candidates[0])
        self._more = (
            self._means.later
            and seen.step.around.is_card
            and not self.varies  # a longer batch is seen before it runs
            and seen.beside() + as_it_is <= seen.step.around.limit
        )
        if not self._more:
            return seen
        return dataclasses.replace(seen, cases={case: 2 * n for case, n in seen.cases.items()})

    def _cheapest(self, seen: _Watched, free: float, always: float) -> Tuple[Taken, float, float]:
        """The choices, and the room for them and what is there besides, which are others once
        optimizer state has been sent away for them.
        """
        cases = seen.cases
        if self._means.failed:
            free = min(free, BELOW * together(cases, lambda c: c.candidates[0]))
        taken = cheapest_if_equal(cases, free)
        lacks = together(cases, taken.__getitem__) > free or self._means.is_equal_without_state(
            [case.candidates for case in cases if case.amplifies],
            free,
            any(case.amplifies for case in cases),
        )
        if lacks and self._means.send_state_away(seen.step.around):
            free = seen.room_left()
            always, taken = seen.always(), cheapest_if_equal(cases, free)
        if together(cases, taken.__getitem__) > free:
            dear = cheapest(cases, free, lambda case: [*case.candidates, *case.dear])
            taken = dear if together(cases, dear.__getitem__) <= free else taken
        return taken, free, always

    def _or_what_ran(self, seen: _Watched, taken: Taken, free: float, now: float) -> Taken:
        """What was chosen, made to fit in other steps, or what is done now where that is better."""
        cases = seen.cases
        taken = self._fitting_elsewhere(cases, taken, free, now)
        ran = (
            free < now <= together(cases, taken.__getitem__)
        )  # nothing fits for sure, and this did
        ran = ran and any(case.choice.remedies() for case in cases)
        if ran or self._ran_equal(cases, taken, seen.step):
            return {case: case.choice for case in cases}
        return taken

    def _fitting_elsewhere(self, cases: Counts, taken: Taken, free: float, now: float) -> Taken:
        """Choices with which the other steps fit too that were seen with some of these calls; at
        the least those of now, with which they did.
        """
        for share in (0.75, 0.5, 0.25):
            if _fits(taken, self._rooms) or free <= now:
                return taken
            taken = cheapest_if_equal(cases, now + share * (free - now))
        return taken if _fits(taken, self._rooms) else {case: case.choice for case in cases}

    def _ran_equal(self, cases: Counts, taken: Taken, step: Step) -> bool:
        """Whether the step that was watched ran through with what is equal to the bit, where that
        matters, and what was chosen now is not, or runs twice what is differentiated again. What
        was seen to fit need not be predicted to: a library takes what memory there is, and does
        with less. Half of the usual reserve is left, because the next step may need more. On a CPU
        running out is the end: the whole reserve is left, and batches must not differ there.
        """
        if not any(case.amplifies for case in cases):
            return False
        if not step.around.is_card and self.varies:
            return False
        if not all(case.choice.bitwise for case in cases):
            return False
        worse = [
            not choice.bitwise
            or case.amplifies == AGAIN
            and runs_twice(choice)
            and not runs_twice(case.choice)
            for case, choice in taken.items()
        ]
        limit = step.around.limit
        most = (1 + room.SAFETY) / 2 * limit if step.around.is_card else self._means.budget(limit)
        return any(worse) and step.peak_of_passes() + self._means.state_to_come() <= most

    def _take(self, seen: _Watched, taken: Taken, always: float, far: bool) -> None:
        """From the next step on; half of the way first where it is far."""
        cases, around = seen.cases, seen.step.around
        middle = half_way(cases, taken) if far else None
        self._cases.use(middle or taken)
        if seen.first:
            self.step.observe(around, gradients_of(cases))
        if middle:
            return  # the next step is watched too
        total = always + seen.now()
        for case in cases:
            tell_choice(self._means, case, int(total), around.limit)
            case.settled = True
        if seen.first and self._worst:
            self._worst.save([case.module() for case in cases])

    def _loosen(
        self, cases: Counts, step: Step, forecast: Forecast, left: float, beside: float
    ) -> None:
        """The first choice leaves room for what nobody has seen yet. After a step with it, what is
        left is used for cheaper choices that are no less exact. left: bytes for the choices;
        beside: bytes that are there whatever is chosen. On a CPU running out is the end, and where
        batches differ the next one may be longer.
        """
        around = step.around
        if self._more:
            return
        if self._loosened >= LOOSENINGS or self._means.factor < 1 or self.varies or self._worst:
            return
        if not around.is_card or not all(case.settled for case in cases):
            return
        if any(case.optional for case in cases):
            return  # how much of a peak was a work space that a library does without is not known
        most = step.predicted() + around.limit - around.kept()
        free = min(forecast.room_for_more(left, alike=False), most)
        more = min(forecast.room_for_more(left), most)
        if self._means.failed:
            whole = BELOW * together(cases, lambda c: c.candidates[0])
            free, more = min(free, whole), min(more, whole)
        if any(case.wants_spaces for case in cases):
            more = free  # what one step took says little of what others will
        # Of another kind nobody has seen how the allocator lays it out.
        taken = cheaper(cases, free - LOOSER * around.limit, more)
        others = {key: known for key, known in self._rooms.items() if key != frozenset(cases)}
        if taken is None or not _fits(taken, others):
            return
        self._loosened += 1
        self._cases.use(taken)
        self.step.observe(around, gradients_of(cases))
        total = beside + forecast.missed() + together(cases, lambda c: c.choice)
        for case in cases:
            tell_choice(self._means, case, int(total), around.limit)


def _fits(chosen: Taken, rooms: Rooms) -> bool:
    """Whether the steps fit with these choices that were seen with some of the same calls."""
    return all(
        together(cases, lambda c: chosen.get(c, c.choice)) <= most
        for cases, most in rooms.values()
        if not chosen.keys().isdisjoint(cases)
    )
