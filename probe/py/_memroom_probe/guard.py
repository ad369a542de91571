"""What hooks may cost, and what happens when one of ours breaks.

Every hook adds the processor time it took to `spent_ns`; time for which the machine gave the
processor to somebody else is not ours. Steps are read so seldom, and what can wait is put off for
so long, that the sum stays below BUDGET of the time since the first step, whatever the length of
the steps.
"""

from __future__ import annotations

import time

from . import compiled

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
MAX_FAULTS = 20  # after so many exceptions of ours the hooks go silent

spent_ns = 0
began_ns = now()
grace_ns = GRACE_NS
_starting = False
faults = 0
silent = False


def start() -> None:
    """Counts from the end of the hook that is running: what came before was start-up, paid once."""
    global _starting
    _starting = True


def spend(ns: int) -> None:
    """Adds what a hook took."""
    global spent_ns, began_ns, _starting
    spent_ns += ns
    if _starting:
        spent_ns, began_ns, _starting = 0, now(), False


def overspent() -> float:
    """Nanoseconds by which hooks have exceeded their share so far; negative: what they have
    left.
    """
    return spent_ns - grace_ns - BUDGET * (now() - began_ns)


def affordable(cost_ns: float) -> bool:
    """Says whether something that can wait may be done now. On a CPU the grace is for steps
    only.
    """
    return overspent() + cost_ns + (grace_ns if grace_ns != CARD_NS else 0) < 0


def fault(where: str, error: BaseException) -> None:
    """Notes an exception of ours: told to the monitor a few times, never to the user."""
    global faults, silent
    faults += 1
    if faults > MAX_FAULTS:
        silent = True
    if faults > 3:
        return
    try:
        import traceback

        from . import link

        frames = traceback.extract_tb(error.__traceback__)[-3:]
        trail = " < ".join("%s:%s" % (frame.name, frame.lineno) for frame in reversed(frames))
        link.send(
            "fault",
            {
                "where": where,
                "error": "%s: %s" % (type(error).__name__, str(error)[:300]),
                "trail": trail,
            },
        )
    except Exception:
        pass


def hook(where: str, heavy: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates a hook: counts its time, keeps its exceptions, skips it when hooks are silent.

    A heavy hook is counted by the thread's own clock. That clock is slow to read, so light hooks
    are counted by the wall clock; one that seems to take longer than LIGHT_NS was interrupted, and
    counts as that.
    """
    clock, most = (used, 1 << 62) if heavy else (now, LIGHT_NS)

    def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
        quiet = compiled.uncompiled(fn)

        def guarded(*args: Any, **kwargs: Any) -> Any:
            if silent or compiled.compiling():
                return None
            start = clock()
            try:
                return quiet(*args, **kwargs)
            except Exception as error:
                fault(where, error)
            finally:
                spend(min(clock() - start, most))

        return compiled.left_alone(guarded)

    return decorate
