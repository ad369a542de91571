"""Ends a rehearsal that waits for something that will not come: a thread that died, a port, an
answer.
"""

import threading
import time
from typing import Any

IDLE = 90  # seconds without work
children = []  # processes of ours that work while this one waits for them
LOOK = 5  # seconds between two looks
WAITS = (
    "the script has done nothing for %d seconds: does it wait for another process, a "
    "device, a service or an answer? A rehearsal gives it none of "
    "these" % IDLE
)


def watch(rehearsal: Any) -> None:
    threading.Thread(target=_look, args=(rehearsal,), daemon=True, name="memroom-waiting").start()


def _look(rehearsal: Any) -> None:
    since, used, count = time.monotonic(), time.process_time(), -1
    while True:
        time.sleep(LOOK)
        now, seen = time.process_time(), rehearsal.recorder.count
        if (
            children
            or seen != count
            or now - used > LOOK * 0.05 + 0.02 * (time.monotonic() - since)
        ):
            since, used, count = time.monotonic(), now, seen
        elif time.monotonic() - since > IDLE:
            rehearsal.fail(WAITS)
