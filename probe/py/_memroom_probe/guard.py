"""What hooks may cost, and what happens when one of ours breaks.

Every hook adds the processor time it took to `ledger.spent_ns`; time for which the machine gave the
processor to somebody else is not ours. Steps are read so seldom, and what can wait is put off for
so long, that the sum stays below BUDGET of the time since the first step, whatever the length of
the steps. Where it does not, because a part costs more in this program than anybody thought, the
governor gives that part up and tells the monitor. A part that is done once costs much once: only
what breaks the promise in two windows that follow each other is given up. Looks at what the program
holds, which the monitor asks for or which are made a few times at most, are counted too, in
`ledger.asked_ns`. The first are always made, as half of two looks would find nothing; further ones
wait until the promise is kept with them.
"""

from __future__ import annotations

import os
import time

from . import compiled, faults

TYPE_CHECKING = False
if TYPE_CHECKING:  # a name that type checkers take for true: importing typing takes a while
    from typing import Any, Callable

now = time.perf_counter_ns
used = time.thread_time_ns

BUDGET = (
    0.0040  # share of wall time that optional readings may bring the hooks to; the promise is 0.005
)
GRACE_NS = 150000  # spent before the budget counts: the first steps are the interesting ones
# or so much of a step, if that is more: in 150 steps it is less than what the budget leaves of the
# promise
GRACE_STEPS = 0.13
# the same where steps run on a card: the promise there is about the usual step, and readings cost
# more
CARD_NS = 4000000
LIGHT_NS = 100000
# what a step is taken to cost while hooks rest, too little to be measured each time: where they are
# out of the way (see torch_rest), and where each of them sees that it has nothing to do
GLANCE_NS, GLANCES_NS = 1200, 3600
# what a hook that only notes the time takes beside what it measures
NOTE_NS = 700
# the promise, and the time over which the governor holds hooks to it
PROMISE, WINDOW_NS = 0.005, 10000000000
# Looks in each process before the promise counts: two whatever they take, as what grew shows from
# one to the next, and more while they are short: a leak after a rise that was none needs four.
ASKED, ASKED_NS = 2, 2000000000


class Ledger:
    """What hooks have taken in this process, and what came of it."""

    __slots__ = (
        "asked",
        "asked_ns",
        "began_ns",
        "costs",
        "counting",
        "ease",
        "given_up",
        "grace_ns",
        "held_back",
        "inside",
        "look_ns",
        "spent_ns",
        "starting",
        "warned",
        "window_ns",
        "window_spent",
    )

    def __init__(self) -> None:
        self.spent_ns = 0
        self.began_ns = now()
        self.grace_ns = GRACE_NS
        self.asked = self.asked_ns = 0  # looks, and what was spent on them
        self.look_ns = 0  # what the last ones took, the longest of them
        self.held_back = False  # a look was not made, and the monitor knows
        # times as long as usual that hooks rest: the readings themselves were too dear
        self.ease = 1
        self.given_up: set[str] = set()  # parts that are not done any more
        self.warned: set[str] = set()  # parts that cost most in windows that broke the promise
        self.costs: dict[str, int] = {}  # part -> what it took in this window
        self.window_ns = self.window_spent = 0  # when the window began, and spent until then
        self.inside = 0  # what hooks within the one that runs took
        self.starting = False
        self.counting = False  # the first step has ended


ledger = Ledger()


def start() -> None:
    """Counts from the end of the hook that is running: what came before was start-up, paid once."""
    ledger.starting = True


def spend(ns: int, part: str) -> None:
    """Adds what a part took."""
    ledger.spent_ns += ns
    if ledger.starting:
        ledger.spent_ns, ledger.began_ns, ledger.starting, ledger.counting = 0, now(), False, True
        _next_window()
        return
    ledger.costs[part] = ledger.costs.get(part, 0) + ns
    if ledger.spent_ns - ledger.window_spent > PROMISE * WINDOW_NS and ledger.counting:
        _govern(ns)


def within(part: str, fn: Callable[..., object], *args: Any) -> None:
    """Calls fn within a hook. What it takes counts as the part's, and not as the hook's; what hooks
    within fn take counts as theirs.
    """
    outside, ledger.inside = ledger.inside, 0
    before = used()
    fn(*args)
    took = used() - before
    spend(max(0, took - ledger.inside), part)
    ledger.inside = outside + took


def wait(fn: Callable[..., object]) -> None:
    """Calls fn, which waits for work that the program has given to a card: no cost of ours."""
    before = used()
    fn()
    ledger.inside += used() - before


def asked(ns: int) -> None:
    """Adds what a look took, within a hook."""
    ledger.inside += ns
    ledger.asked_ns += ns
    ledger.asked += 1
    ledger.look_ns = max(ns, ledger.look_ns // 2)


def _after_fork() -> None:
    ledger.asked = ledger.asked_ns = ledger.look_ns = 0  # a worker's looks are its own


os.register_at_fork(after_in_child=_after_fork)


def may_ask() -> bool:
    """Returns whether a look may be made. Where one has to wait, the monitor is told once."""
    took, elapsed = cost()
    if ledger.asked < ASKED or ledger.asked_ns < ASKED_NS:
        return True
    if took + ledger.look_ns < PROMISE * elapsed:
        return True
    if not ledger.held_back:
        from . import link

        ledger.held_back = True
        share = took / max(elapsed, 1)
        link.send("given_up", {"part": "looks", "share": share, "eased": True})
    return False


def cost() -> tuple[int, int]:
    """(nanoseconds that the probe took since the first step ended, and those that passed)."""
    return ledger.spent_ns + ledger.asked_ns, now() - ledger.began_ns


def _next_window() -> None:
    ledger.window_ns, ledger.window_spent = now(), ledger.spent_ns
    ledger.costs.clear()


def _govern(last: int) -> None:
    """Gives up the costliest part, if the promise was kept neither in this window nor in the one
    before. last: what the part that has just ended took, perhaps since before the window.
    """
    took = max(now() - ledger.window_ns, last)
    part = max(ledger.costs, key=ledger.costs.__getitem__, default="")
    if took >= WINDOW_NS:
        ledger.warned.clear()
    elif part not in ledger.warned:
        ledger.warned.add(part)
    else:
        _give_up(part, (ledger.spent_ns - ledger.window_spent) / max(took, 1))
    _next_window()


def _give_up(part: str, share: float) -> None:
    from . import link

    ledger.warned.discard(part)
    if part in _needed:
        ledger.ease *= 2
    else:
        ledger.given_up.add(part)
    link.send("given_up", {"part": part, "share": share, "eased": part in _needed})


def overspent() -> float:
    """Nanoseconds by which hooks have exceeded their share so far; negative: what they have
    left.
    """
    return ledger.spent_ns - ledger.grace_ns - BUDGET * (now() - ledger.began_ns)


def affordable(cost_ns: float) -> bool:
    """Returns whether something that can wait may be done now. On a CPU the grace is for steps
    only.
    """
    return overspent() + cost_ns + (ledger.grace_ns if ledger.grace_ns != CARD_NS else 0) < 0


_needed: set[Any] = set()  # parts without which steps and phases would not be seen


def hook(
    where: str, heavy: bool = False, needed: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates a hook: counts its time, keeps its exceptions, skips it when hooks are silent or it
    was given up. One that is needed is not given up.

    A heavy hook is counted by the thread's own clock. That clock is slow to read, so light hooks
    are counted by the wall clock. One that seems to take longer than LIGHT_NS was interrupted, and
    counts as that; from then on it is counted as a heavy one, in case it was not.
    """
    clock, most = (used, 1 << 62) if heavy else (now, LIGHT_NS)
    if needed:
        _needed.add(where)

    def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
        quiet = compiled.uncompiled(fn)

        def guarded(*args: Any, **kwargs: Any) -> Any:
            nonlocal clock, most
            if compiled.compiling() or faults.faults.silent or where in ledger.given_up:
                return None
            outside, ledger.inside = ledger.inside, 0
            by, start = clock, clock()
            try:
                return quiet(*args, **kwargs)
            except Exception as error:
                faults.note(where, error)
            finally:
                took = by() - start
                if took > most and by is now:
                    took, clock, most = most, used, 1 << 62
                spend(max(0, took - ledger.inside), where)
                ledger.inside = outside + took

        answer: Callable[..., Any] = compiled.left_alone(guarded)
        return answer

    return decorate
