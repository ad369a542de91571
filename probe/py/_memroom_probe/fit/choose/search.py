"""The cheapest choices that fit together."""

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


def largest(case):
    return case.candidates[0] if case.candidates else case.choice


def together(cases, chosen):
    """Bytes at the worst moment when these calls wait for one backward pass: what stays of all of
    them, and what the neediest one needs on top.
    """
    picked = [(chosen(case), count) for case, count in cases.items()]
    return sum(c.stays * count for c, count in picked) + max(
        [c.needs - c.stays for c, _ in picked], default=0
    )


def frugal(candidates, free, really_free=None, spacious=False):
    """For a step in which more calls may follow: the cheapest way that leaves them room, or the one
    that needs least. What is equal to the bit may leave less room, for two calls like it; what
    changes nothing may not. really_free: bytes, where free is what one dares to take; spacious: of
    what is equal to the bit the one that needs least, because libraries take other algorithms
    where their work spaces do not fit.
    """
    few = [
        c
        for c in candidates
        if c.needs <= FRUGAL * free or c.bitwise and c.remedies() and with_others(c) <= free
    ]
    # One step costs little. What it rounds otherwise would stay in the weights for good.
    bitwise = [c for c in few if c.bitwise]
    equal = least(bitwise, with_others) if spacious and bitwise else _fastest(bitwise)
    if equal is None and really_free is not None:
        equal = _least_equal(candidates, really_free)
    return equal or _fastest(few) or least(candidates, with_others)


def equal_for_first_step(candidates, free, amplifies):
    """Where a training amplifies rounding, or pieces differ by more than that: what is equal to
    the bit and needs least, as long as there is room for it and for what stays of one more call;
    else None. Where gradients are differentiated again nothing that runs twice, if there is another
    way.
    """
    equal = [c for c in candidates if c.bitwise and c.remedies()]
    once = [c for c in equal if not runs_twice(c)]
    equal = once if once and amplifies == AGAIN else equal
    if not (amplifies or any(c.coarse for c in candidates)) or not equal:
        return None
    taken = least(equal, with_others)
    return taken if taken.needs + taken.stays <= free else None


def _least_equal(candidates, free):
    """What is equal to the bit and needs least, where that leaves room for two calls like it."""
    equal = [c for c in candidates if c.bitwise and c.remedies()]
    taken = least(equal, with_others) if equal else None
    return taken if taken is not None and with_others(taken) <= FRUGAL_EQUAL * free else None


def runs_twice(choice):
    """Whether something is computed again in the backward pass."""
    return bool(choice.checkpoint) or choice.whole


def with_others(choice):
    """Bytes for this call and for what stays of two more that wait for the same backward pass."""
    return choice.needs + 2 * choice.stays


def _fastest(candidates):
    return min(candidates, key=lambda c: c.price) if candidates else None


def least(candidates, needs, nearly=NEARLY):
    """The fastest of those that need about the least: a hundred pieces for the last few bytes are
    worth nobody's while.
    """
    least = min(needs(c) for c in candidates)
    return _fastest([c for c in candidates if needs(c) <= nearly * least])


def roomier(cases, taken, free, worth=WORTH):
    """Choices that need no more than free and are equal to the bit, as those taken are, where they
    cost not much more; else those taken. worth: times the seconds that they may cost. What is of
    the kind that is in use comes first, because steps have shown how wrong predictions of that are.
    """
    if not all(c.bitwise for c in taken.values()):
        return taken
    found = cheapest(cases, free, lambda case: [c for c in case.candidates if c.bitwise])
    alike = cheapest(cases, free, lambda case: _alike(case, taken[case]))
    if together(cases, alike.get) <= free and _price(alike) <= ALIKE * _price(found):
        found = alike
    dear = _price(found) > worth * _price(taken)
    return taken if dear or together(cases, found.get) > free else found


def _price(taken):
    return sum(c.price for c in taken.values())


def _alike(case, choice):
    return [c for c in case.candidates if c.bitwise and c.kind == choice.kind] or [choice]


def cheaper(cases, free, more):
    """Choices that cost clearly less than those of now and are no less exact, where there are any;
    else None. free: bytes that they may need together; more: bytes that the one case may need with
    more of the kind that is in use.
    """
    now = {case: case.choice for case in cases}
    if not all(case.candidates for case in cases):
        return None

    def exact_enough(case):
        some = _equal_where_it_matters(case)
        return [c for c in some if c.bitwise or not case.choice.bitwise] or [case.choice]

    found = cheapest(cases, free, exact_enough)
    found = found if together(cases, found.get) <= free else now
    (case, count), *others = cases.items()
    if not others and count == 1 and case.choice.kind:
        some = [c for c in exact_enough(case) if c.kind == case.choice.kind and c.needs <= more]
        found = {case: min([*some, found[case]], key=lambda c: c.price)}
    return found if _price(found) < GAIN * _price(now) else None


def spacious(plain, roomy, free, amplifies):
    """Of two lists of the same choices, the one with room for libraries' work spaces, where that
    fits and does not cost much more.
    """
    fits = [c for c in roomy if c.bitwise and c.needs <= free]
    before = [c for c in plain if c.needs <= free]
    if not fits or not before:
        return plain
    most = (WORTH_MORE if amplifies else WORTH) * _fastest(before).price
    return roomy if _fastest(fits).price <= most else plain


def cheapest_if_equal(cases, free):
    """The same, with choices that are equal to the bit where a training amplifies rounding, as long
    as they fit.
    """
    if any(case.amplifies for case in cases):
        taken = cheapest(cases, free, _equal_where_it_matters)
        if together(cases, taken.get) <= free:
            return taken
    return cheapest(cases, free)


def half_way(cases, taken):
    """The cheapest choices that need no more than the middle between what is done now and those
    taken, of the same kinds where these are kinds that go more or less far; None where there are
    none between.
    """
    now, then = together(cases, lambda c: c.choice), together(cases, taken.get)
    equal = all(choice.bitwise for choice in taken.values())

    def between(case):
        some = [c for c in case.candidates if c.bitwise or not equal]
        alike = [c for c in some if c.kind and c.kind == taken[case].kind]
        return alike or [c for c in some if c.remedies()] or some

    found = cheapest(cases, (now + then) / 2, between)
    fits = together(cases, found.get) <= (now + then) / 2
    return None if not fits or all(found[case] is taken[case] for case in taken) else found


def _all(case):
    return case.candidates


def _equal_where_it_matters(case):
    """Where gradients are differentiated again, what a second run computes is kept for that, so
    that only host memory helps, as far as there is any.
    """
    if not case.amplifies:
        return case.candidates
    equal = [c for c in case.candidates if c.bitwise]
    once = [c for c in equal if not runs_twice(c)]
    return once if case.amplifies == AGAIN and any(c.offload for c in once) else equal


def cheapest(cases, free, of=_all):
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
        if together(cases, taken.get) <= free:
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


def _relaxed(cases, taken, free, of):
    """What the steps of the price left over, one case after the other."""
    for case in cases:
        for candidate in sorted(of(case), key=lambda c: c.price):
            if candidate.price >= taken[case].price:
                break
            if (
                together(cases, lambda c, it=case, new=candidate: new if c is it else taken[c])
                <= free
            ):
                taken[case] = candidate
                break
    return taken
