"""What hooks may cost, and what happens when one of ours breaks.

Every hook adds the processor time it took to `spent_ns`; time for which the machine gave the processor to somebody else is
not ours. Readings that can be skipped ask `affordable` first, so that the sum stays below BUDGET of the time the program
has run since it became busy, whatever the length of its steps.
"""

import time

now = time.perf_counter_ns
used = time.thread_time_ns

BUDGET = 0.0035  # share of wall time that optional readings may bring the hooks to; the promise is 0.005
GRACE_NS = 1500000  # spent freely before the budget counts: the first steps are the interesting ones
LIGHT_NS = 100000
MAX_FAULTS = 20  # after so many exceptions of ours the hooks go silent

spent_ns = 0
began_ns = now()
faults = 0
silent = False


def start():
    """Counts from here: what came before was start-up, paid once."""
    global spent_ns, began_ns
    spent_ns, began_ns = 0, now()


def overspent():
    """Nanoseconds by which hooks have exceeded their share so far; negative: what they have left."""
    return spent_ns - GRACE_NS - BUDGET * (now() - began_ns)


def affordable():
    """Says whether a reading that could be skipped may be made now."""
    return overspent() < 0


def fault(where, error):
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
        link.send("fault", {"where": where, "error": "%s: %s" % (type(error).__name__, str(error)[:300]), "trail": trail})
    except Exception:
        pass


def hook(where, heavy=False):
    """Decorates a hook: counts its time, keeps its exceptions, skips it when hooks are silent.

    A heavy hook is counted by the thread's own clock. That clock is slow to read, so light hooks are counted by the wall
    clock; one that seems to take longer than LIGHT_NS was interrupted, and counts as that.
    """
    clock, most = (used, 1 << 62) if heavy else (now, LIGHT_NS)

    def decorate(fn):
        def guarded(*args, **kwargs):
            global spent_ns
            if silent:
                return None
            start = clock()
            try:
                return fn(*args, **kwargs)
            except Exception as error:
                fault(where, error)
            finally:
                spent_ns += min(clock() - start, most)

        guarded._torchdynamo_disable = True  # a compiled program must not trace into us
        return guarded

    return decorate
