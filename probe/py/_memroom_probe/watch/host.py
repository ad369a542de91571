"""Host memory of this process, cheaply: what the kernel gave it, and what the program holds of
that.
"""

import ctypes
import os
from typing import Any, Callable, Optional, Tuple

_PAGE = os.sysconf("SC_PAGE_SIZE")
REGION = 1 << 20  # bytes of a pool's smallest region


class State:
    """What readings of this process start from."""

    __slots__ = ("before", "fd", "free", "own", "pool", "region", "regions")

    def __init__(self) -> None:
        # of /proc/self/statm, which is the statm of whoever opened it
        self.fd: Optional[int] = None
        self.own = 0  # bytes of the heap that the probe took for itself to carry out commands
        self.free = 0  # bytes that malloc has from the kernel and nobody holds, when last read
        # (bytes in use, most of them ever) of a pool that a framework keeps in malloc's memory;
        # None where it keeps none
        self.pool: Optional[Callable[[], Optional[Tuple[int, int]]]] = None
        self.regions = 0  # bytes of regions that were seen to come into the pool
        self.region = 0  # the last one's: each is larger than the one before
        # malloc's bytes and the most that was in use of the pool, when last read
        self.before = (0, 0)


state = State()


def memory() -> Tuple[int, int]:
    """(resident, anonymous) bytes; (0, 0) where /proc is not there. Anonymous is what is not backed
    by a file or shared.
    """
    for _ in range(2):
        try:
            if state.fd is None:
                state.fd = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
            fields = os.pread(state.fd, 128, 0).split()
            if len(fields) == 7:
                resident = int(fields[1])
                return resident * _PAGE, (resident - int(fields[2])) * _PAGE
        except (OSError, ValueError):
            pass
        # the program closed it and the number may be somebody else's now: it is left alone
        state.fd = None
    return 0, 0


def _after_fork() -> None:
    if state.fd is not None:
        os.close(state.fd)
        state.fd = None


os.register_at_fork(after_in_child=_after_fork)


class _Mallinfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


def _find_mallinfo() -> Any:
    """glibc's mallinfo2 (since 2.33), or None. Its older brother counts in 32 bits."""
    try:
        function = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):
        return None
    function.restype, function.argtypes = _Mallinfo, []
    return function


_mallinfo = _find_mallinfo()


def heap() -> int:
    """Bytes the program holds by malloc, tensors in host memory among them; 0 unknown. Unlike pages
    it has no noise: what is freed is gone at once. Memory of another malloc (jemalloc, tcmalloc) is
    not in it.
    """
    if _mallinfo is None:
        return 0
    info = _mallinfo()
    held = info.uordblks + info.hblkhd - state.own
    state.free = info.fordblks
    return _in_use(held) if state.pool is not None else held


def _in_use(held: int) -> int:
    """Malloc's bytes with what is in use of a framework's pool, and without the regions by which
    the pool has grown since the first reading. Regions double, so one is told from the program's
    own memory by its size, and by the pool's peak having risen.
    """
    inside = state.pool() if state.pool is not None else None
    if inside is None:
        state.pool = None
        return held
    used, peak = inside
    rise = held - state.before[0]
    if state.before[0] and rise >= REGION and peak > state.before[1]:
        region = 1 << (rise.bit_length() - 1)
        if region > state.region:
            state.region = region
            state.regions += region
    state.before = held, peak
    return held - state.regions + used
