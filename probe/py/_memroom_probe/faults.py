"""Exceptions of ours: reported to the monitor a few times, never to the user."""

from __future__ import annotations

TOLD = 3
MAX_FAULTS = 20  # after so many the hooks go silent


class Faults:
    """Those of this process."""

    __slots__ = ("count", "silent")

    def __init__(self) -> None:
        self.count = 0
        self.silent = False


faults = Faults()


def note(where: str, error: BaseException) -> None:
    """Counts an exception of ours and reports it to the monitor."""
    faults.count += 1
    if faults.count > MAX_FAULTS:
        faults.silent = True
    if faults.count > TOLD:
        return
    try:
        import traceback

        from . import link

        frames = traceback.extract_tb(error.__traceback__)[-3:]
        trail = " < ".join("%s:%s" % (frame.name, frame.lineno) for frame in reversed(frames))
        text = "%s: %s" % (type(error).__name__, str(error)[:300])
        link.send("fault", {"where": where, "error": text, "trail": trail})
    except Exception:
        pass
