"""Host memory of this process, cheaply: what the kernel gave it, and what the program holds of
that.
"""

import ctypes
import os
from typing import Any, Callable, Optional, Tuple

_PAGE = os.sysconf("SC_PAGE_SIZE")

_fd: Optional[int] = None  # of /proc/self/statm, which is the statm of whoever opened it


def memory() -> Tuple[int, int]:
    """(resident, anonymous) bytes; (0, 0) where /proc is not there. Anonymous is what is not backed
    by a file or shared.
    """
    global _fd
    for _ in range(2):
        try:
            if _fd is None:
                _fd = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
            fields = os.pread(_fd, 128, 0).split()
            if len(fields) == 7:
                resident = int(fields[1])
                return resident * _PAGE, (resident - int(fields[2])) * _PAGE
        except (OSError, ValueError):
            pass
        # the program closed it and the number may be somebody else's now: it is left alone
        _fd = None
    return 0, 0


def _after_fork() -> None:
    global _fd
    if _fd is not None:
        os.close(_fd)
        _fd = None


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
own = 0  # bytes of the heap that the probe took for itself while it carried out commands

# (bytes in use, most of them ever) of a pool that a framework keeps in malloc's memory; None where
# it keeps none
pool: Optional[Callable[[], Optional[Tuple[int, int]]]] = None
REGION = 1 << 20  # bytes of a pool's smallest region
_regions = 0  # bytes of regions that were seen to come into the pool
_region = 0  # the last one's: each is larger than the one before
_before = (0, 0)  # malloc's bytes and the most that was in use of the pool, when last read


def heap() -> int:
    """Bytes the program holds by malloc, tensors in host memory among them; 0 unknown. Unlike pages
    it has no noise: what is freed is gone at once. Memory of another malloc (jemalloc, tcmalloc) is
    not in it.
    """
    if _mallinfo is None:
        return 0
    info = _mallinfo()
    held = info.uordblks + info.hblkhd - own
    return _in_use(held) if pool is not None else held


def _in_use(held: int) -> int:
    """Malloc's bytes with what is in use of a framework's pool, and without the regions by which
    the pool has grown since the first reading. Regions double, so one is told from the program's
    own memory by its size, and by the pool's peak having risen.
    """
    global pool, _regions, _region, _before
    inside = pool() if pool is not None else None
    if inside is None:
        pool = None
        return held
    used, peak = inside
    rise = held - _before[0]
    if _before[0] and rise >= REGION and peak > _before[1]:
        region = 1 << (rise.bit_length() - 1)
        if region > _region:
            _region = region
            _regions += region
    _before = held, peak
    return held - _regions + used
