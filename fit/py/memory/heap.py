"""What the C library keeps of freed memory, where training is on the CPU."""

import ctypes
import os
import time
from typing import Any

MAPPED_FROM = 1 << 17  # bytes
# What TensorFlow reads before it takes its first bytes. Its pool for oneDNN never gives anything
# back; operations that run beside each other hold their results beside each other.
OF_TENSORFLOW = {"TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "1", "TF_NUM_INTEROP_THREADS": "1"}


def give_back_at_once() -> None:
    """glibc raises the size from which blocks are mapped on their own after each large free, and
    then keeps what is freed: a heap full of holes. A fixed size, glibc's own first one, keeps it at
    what is really used: pieces of 94 rows of a small network took 494 MiB with it and 973 MiB with
    1 MiB, below which their tensors came from the heap.
    """
    try:
        ctypes.CDLL(None).mallopt(-3, MAPPED_FROM)  # M_MMAP_THRESHOLD
        heap.wanted = True
    except (OSError, AttributeError):
        pass  # another C library


def spare_for_tensorflow() -> str:
    """Before TensorFlow is imported: what was done, in words. One heap instead of one for each
    thread: a network of LSTMs took 206 MiB a step with one and 245 MiB with several. What the user
    has set stays.
    """
    for name, value in OF_TENSORFLOW.items():
        os.environ.setdefault(name, value)
    give_back_at_once()
    if heap.wanted and "MALLOC_ARENA_MAX" not in os.environ:
        ctypes.CDLL(None).mallopt(-8, 1)  # M_ARENA_MAX
    words = "TensorFlow gives freed memory back at once (as with MALLOC_ARENA_MAX=1 %s)"
    return words % " ".join("%s=%s" % (name, os.environ[name]) for name in OF_TENSORFLOW)


class Heap:
    """Gives freed memory back to the kernel: small tensors come from the C library's heap, and what
    stays between them holds the rest.
    """

    COSTS = 0.03  # share of the time that this may take at the most

    def __init__(self) -> None:
        self.wanted, self._next = False, 0.0
        self._trim: Any = None
        try:
            self._trim = ctypes.CDLL(None).malloc_trim
        except (OSError, AttributeError):
            pass  # another C library

    def give_back(self, at_once: bool = False) -> None:
        """Called between pieces of work. at_once: whatever it costs."""
        begin = time.monotonic()
        if not self.wanted or self._trim is None or begin < self._next and not at_once:
            return
        self._trim(0)
        end = time.monotonic()
        self._next = end + (end - begin) / self.COSTS


heap = Heap()
