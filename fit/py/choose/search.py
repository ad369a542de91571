"""The cheapest choices that fit together."""

from typing import Callable, Dict, List, Optional, Sequence

from .case import Case
from .choices import Choice
from .company import Counts

Taken = Dict[Case, Choice]

# Why small differences grow where a backward pass is run with create_graph.
AGAIN = "its gradients are differentiated again"

NEARLY = 1.05  # times the least that counts as the least
AT_THE_WALL = 1.01  # the same where nothing is predicted to fit: there the last bytes count

WORTH = 1.35  # times its seconds that it may cost to give a library its work space
WORTH_MORE = 2.5  # the same where a training amplifies what another algorithm rounds otherwise

ALIKE = 1.03  # times the least price at which the kind that is in use is kept
GAIN = 0.97  # times its price from which on another choice is worth a change

FRUGAL = 0.4  # share of the room that a call may take in the first step
FRUGAL_EQUAL = 0.8  # the same for a call and two like it, where results are equal to the bit


def largest(case: Case) -> Choice:
    return case.candidates[0] if case.candidates else case.choice


def together(cases: Counts, chosen: Callable[[Case], Choice]) -> float:
    """Bytes at the worst moment when these calls wait for one backward pass: what stays of all of
    them, and what the neediest one needs on top.
    """
    picked = [(chosen(case), count) for case, count in cases.items()]
    return sum(c.stays * count for c, count in picked) + max(
        [c.needs - c.stays for c, _ in picked], default=0
    )


def frugal(
    candidates: Sequence[Choice],
    free: float,
    really_free: Optional[float] = None,
    spacious: bool = False,
) -> Choice:
    """For a step in which more calls may follow: the cheapest way that leaves them room, or the one
    that needs least. What is equal to the bit may leave less room, for two calls like it; what
    changes nothing may not. really_free: bytes, where free is what one dares to take; spacious: of
    what is equal to the bit the one that needs least, because libraries take other algorithms
    where their work spaces do not fit.
    """
    candidates = _near(candidates, free)
    few = [
        c
        for c in candidates
        if c.needs <= free
        and c.with_late(True).needs <= FRUGAL * free
        or c.bitwise
        and c.remedies()
        and with_others(c) <= free
    ]
    # One step costs little. What it rounds otherwise would stay in the weights for good.
    bitwise = [c for c in few if c.bitwise]
    equal = least(bitwise, with_others) if spacious and bitwise else _fastest(bitwise)
    if equal is None and really_free is not None:
        equal = _least_equal(candidates, really_free)
    nearly = NEARLY if any(c.needs <= free for c in candidates) else AT_THE_WALL
    return equal or _fastest(few) or least(candidates, with_others, nearly)


def equal_for_first_step(
    candidates: Sequence[Choice], free: float, amplifies: str
) -> Optional[Choice]:
    """Where a training amplifies rounding, or pieces draw other random numbers: what is equal to
    the bit and needs least, as long as there is room for it and for what stays of one more call;
    else None. Where gradients are differentiated again nothing that runs twice, if there is another
    way.
    """
    equal = [c for c in candidates if c.bitwise and c.remedies()]
    once = [c for c in equal if not runs_twice(c)]
    equal = once if once and amplifies == AGAIN else equal
    if not (amplifies or any(c.coarse for c in candidates)):
        return None
    fitting = [c for c in _near(equal, free) if c.needs + c.stays <= free]
    return least(fitting, with_others) if fitting else None


def _near(candidates: Sequence[Choice], free: float) -> Sequence[Choice]:
    """What sends nothing to host memory, where something of it is equal to the bit and leaves room
    for what stays of a call like it: the first step would wait until the kernel has found as many
    pages and pinned them. A forward pass that runs out is made again with less.
    """
    here = [c for c in candidates if not c.offload]
    equal = [c for c in here if c.bitwise and c.remedies()]
    room = [c for c in equal if c.needs + c.stays <= free]
    return here if room else candidates


def _least_equal(candidates: Sequence[Choice], free: float) -> Optional[Choice]:
    """What is equal to the bit and needs least, where that leaves room for two calls like it."""
    equal = [c for c in candidates if c.bitwise and c.remedies()]
    fitting = [c for c in equal if with_others(c) <= FRUGAL_EQUAL * free]
    return least(fitting, with_others) if fitting else None


def runs_twice(choice: Choice) -> bool:
    """Whether something is computed again in the backward pass."""
    return bool(choice.checkpoint) or choice.whole


def with_others(choice: Choice) -> float:
    """Bytes for this call and for what stays of two more that wait for the same backward pass.
    Results beside the loss are put together of one call at a time, where they are read at all.
    """
    return choice.needs + 2 * choice.with_late(True).stays


def _fastest(candidates: Sequence[Choice]) -> Optional[Choice]:
    return min(candidates, key=lambda c: c.price, default=None)


def least(
    candidates: Sequence[Choice], needs: Callable[[Choice], float], nearly: float = NEARLY
) -> Choice:
    """The fastest of those that need about the least: a hundred pieces for the last few bytes are
    worth nobody's while.
    """
    fewest = min(needs(c) for c in candidates)
    return min([c for c in candidates if needs(c) <= nearly * fewest], key=lambda c: c.price)


def roomier(cases: Counts, taken: Taken, free: float, worth: float = WORTH) -> Taken:
    """Choices that need no more than free and are equal to the bit, as those taken are, where they
    cost not much more; else those taken. worth: times the seconds that they may cost. What is of
    the kind that is in use comes first, because steps have shown how wrong predictions of that are.
    """
    if not all(c.bitwise for c in taken.values()):
        return taken
    found = cheapest(cases, free, lambda case: [c for c in case.candidates if c.bitwise])
    alike = cheapest(cases, free, lambda case: _alike(case, taken[case]))
    if together(cases, alike.__getitem__) <= free and _price(alike) <= ALIKE * _price(found):
        found = alike
    dear = _price(found) > worth * _price(taken)
    return taken if dear or together(cases, found.__getitem__) > free else found


def _price(taken: Taken) -> float:
    return sum(c.price for c in taken.values())


def _alike(case: Case, choice: Choice) -> List[Choice]:
    return [c for c in case.candidates if c.bitwise and c.kind == choice.kind] or [choice]


def cheaper(cases: Counts, free: float, more: float) -> Optional[Taken]:
    """Choices that cost clearly less than those of now and are no less exact, where there are any;
    else None. free: bytes that they may need together; more: bytes that the one case may need with
    more of the kind that is in use.
    """
    now = {case: case.choice for case in cases}
    if not all(case.candidates for case in cases):
        return None

    def exact_enough(case: Case) -> List[Choice]:
        some = _equal_where_it_matters(case)
        return [c for c in some if c.bitwise or not case.choice.bitwise] or [case.choice]

    found = cheapest(cases, free, exact_enough)
    found = found if together(cases, found.__getitem__) <= free else now
    (case, count), *others = cases.items()
    if not others and count == 1 and case.choice.kind:
        some = [c for c in exact_enough(case) if c.kind == case.choice.kind and c.needs <= more]
        found = {case: min([*some, found[case]], key=lambda c: c.price)}
    return found if _price(found) < GAIN * _price(now) else None


def spacious(plain: List[Choice], roomy: List[Choice], free: float, amplifies: str) -> List[Choice]:
    """Of two lists of the same choices, the one with room for libraries' work spaces, where that
    fits and does not cost much more.
    """
    fits = [c for c in roomy if c.bitwise and c.needs <= free]
    before = [c for c in plain if c.needs <= free]
    if not fits or not before:
        return plain
    most = (WORTH_MORE if amplifies else WORTH) * min(c.price for c in before)
    return roomy if min(c.price for c in fits) <= most else plain


def cheapest_if_equal(cases: Counts, free: float) -> Taken:
    """The same, with choices that are equal to the bit where a training amplifies rounding, as long
    as they fit.
    """
    if any(case.amplifies for case in cases):
        taken = cheapest(cases, free, _equal_where_it_matters)
        if together(cases, taken.__getitem__) <= free:
            return taken
    return cheapest(cases, free)


def half_way(cases: Counts, taken: Taken) -> Optional[Taken]:
    """The cheapest choices that need no more than the middle between what is done now and those
    taken, of the same kinds where these are kinds that go more or less far; None where there are
    none between.
    """
    now, then = together(cases, lambda c: c.choice), together(cases, taken.__getitem__)
    equal = all(choice.bitwise for choice in taken.values())

    def between(case: Case) -> List[Choice]:
        some = [c for c in case.candidates if c.bitwise or not equal]
        alike = [c for c in some if c.kind and c.kind == taken[case].kind]
        return alike or [c for c in some if c.remedies()] or some

    found = cheapest(cases, (now + then) / 2, between)
    fits = together(cases, found.__getitem__) <= (now + then) / 2
    return None if not fits or all(found[case] is taken[case] for case in taken) else found


def _all(case: Case) -> List[Choice]:
    return case.candidates


def _equal_where_it_matters(case: Case) -> List[Choice]:
    """Where gradients are differentiated again, what a second run computes is kept for that, so
    that only host memory helps, as far as there is any.
    """
    if not case.amplifies:
        return case.candidates
    equal = [c for c in case.candidates if c.bitwise]
    once = [c for c in equal if not runs_twice(c)]
    return once if case.amplifies == AGAIN and any(c.offload for c in once) else equal


def cheapest(cases: Counts, free: float, of: Callable[[Case], List[Choice]] = _all) -> Taken:
    """The choices with the least seconds that fit together: bytes get a price, which rises until
    they do. of: the choices that a case may take.
    """
    price = 0.0
    dearest = max(c.price for case in cases for c in of(case)) or 1.0
    for _ in range(80):
        taken = {
            case: min(
                of(case),
                key=lambda c: c.price + price * c.needs + price * (cases[case] - 1) * c.stays,
            )
            for case in cases
        }
        if together(cases, taken.__getitem__) <= free:
            return _relaxed(cases, taken, free, of)
        price = price * 1.6 or 1e-6 * dearest / max(1.0, together(cases, largest))
    # Nothing fits: what needs least beside the others that wait, and not what changes nothing.
    others = sum(cases.values()) - 1
    return {
        case: least(
            [c for c in of(case) if c.remedies()] or of(case),
            lambda c: c.needs + others * c.stays,
            AT_THE_WALL,
        )
        for case in cases
    }


def _relaxed(cases: Counts, taken: Taken, free: float, of: Callable[[Case], List[Choice]]) -> Taken:
    """What the steps of the price left over, one case after the other."""
    for case in cases:
        for candidate in sorted(of(case), key=lambda c: c.price):
            if candidate.price >= taken[case].price:
                break
            if together(cases, {**taken, case: candidate}.__getitem__) <= free:
                taken[case] = candidate
                break
    return taken
