"""One block of read-only memory that many processes map: written once, freed by the kernel when the
last process that knows it has ended. It has no name, so nothing is left behind after a crash.
"""

import mmap
import os
import secrets
import socket
import struct
import sys
import tempfile
import weakref
from typing import IO, Any, Dict, Optional, Tuple

MAGIC = b"memroom1"
TRAILER = struct.Struct("<8s16sQ")  # magic, token, address of the root
ALIGN = 64  # bytes; arrays start on a cache line, which TensorFlow and JAX want too
SMALL = 4096  # bytes; below this a buffer is aligned to 16 only, so that small ones waste little

# Linux's MAP_NORESERVE: a private mapping of data larger than memory must not be refused.
NO_RESERVE = (
    0x4000 if sys.platform == "linux" and os.uname().machine in ("x86_64", "aarch64") else 0
)

_known: "weakref.WeakValueDictionary[bytes, Segment]" = weakref.WeakValueDictionary()
_handed_out: Dict[bytes, "Segment"] = {}
_inherited: Dict[bytes, "Segment"] = {}  # came as a descriptor number, which can be taken only once


class Segment:
    """A mapping of the finished block. `view` is read-only. `private` is the same memory: writing
    to it copies the page for this process alone, so a tensor, which knows no read-only memory, can
    neither crash nor reach other processes.
    """

    def __init__(self, descriptor: int, token: bytes) -> None:
        self.descriptor = descriptor
        self.token = token
        size = os.fstat(descriptor).st_size
        flags = mmap.MAP_PRIVATE | NO_RESERVE
        self.map = mmap.mmap(descriptor, size, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        self.private = memoryview(self.map)
        self.view = self.private.toreadonly()
        magic, found, self.root = TRAILER.unpack_from(self.view, size - TRAILER.size)
        if magic != MAGIC or found != token:
            raise ValueError(
                "this memory is not the shared data that was announced: share it again"
            )
        _known[token] = self

    def __del__(self) -> None:
        try:
            os.close(self.descriptor)
        except (OSError, AttributeError, TypeError):
            pass  # never opened, or the interpreter is ending

    def handle(self) -> Tuple[Any, ...]:
        """What another process needs to map this block, in a form that pickles. While a child is
        being started the descriptor is inherited; at any other time it is found through /proc.
        """
        inherited = _inherit(self.descriptor)
        if inherited is None:
            _handed_out[self.token] = self  # whoever unpickles it may do so after we let go of it
        return self.place(inherited)

    def place(self, inherited: Any = None) -> Tuple[Any, ...]:
        """As handle, for a caller who keeps this object until the other process has it."""
        return self.token, inherited, os.getpid(), self.descriptor, socket.gethostname()


def _inherit(descriptor: int) -> Any:
    from multiprocessing import context, reduction

    child: Any = context.get_spawning_popen()
    if child is None:
        if not os.path.isdir("/proc/self/fd"):
            return reduction.DupFd(descriptor)
        return None
    passed = child.__dict__.setdefault("_memroom_passed", {})
    if descriptor not in passed:  # a descriptor may be named only once
        passed[descriptor] = reduction.DupFd(descriptor)
    return passed[descriptor]


def attach(handle: Tuple[Any, ...]) -> Segment:
    """The block a handle speaks of, mapped here."""
    token, inherited, pid, descriptor, host = handle
    known = _known.get(token)
    if known is not None:
        return known
    if inherited is not None:
        segment = _inherited[token] = Segment(inherited.detach(), token)
        return segment
    try:
        if host != socket.gethostname():
            raise OSError("another host")
        return Segment(os.open("/proc/%d/fd/%d" % (pid, descriptor), os.O_RDONLY), token)
    except (OSError, ValueError) as error:
        raise RuntimeError(
            "memroom: this shared data lives in the memory of process %d on %s and cannot be "
            "mapped here (%s). It can be handed to processes of the same machine while that "
            "process lives; elsewhere, load the data and call memroom.share() again"
            % (pid, host, error)
        ) from None


class Writer:
    """Appends to a new block. The bytes go straight to it, so sharing needs no second copy."""

    def __init__(self, folder: Optional[str]) -> None:
        self.descriptor = _anonymous(folder)
        self.file: IO[bytes] = open(self.descriptor, "wb", buffering=1 << 20, closefd=False)
        self.at = 0

    def write(self, data: Any) -> int:
        """Appends and returns the address."""
        start = self.at
        self.file.write(data)
        self.at += memoryview(data).nbytes
        return start

    def write_aligned(self, data: Any) -> int:
        size = memoryview(data).nbytes
        step = ALIGN if size >= SMALL else 16
        self.write(bytes(-self.at % step))
        return self.write(data)

    def finish(self, root: int) -> Segment:
        token = secrets.token_bytes(16)
        self.write(TRAILER.pack(MAGIC, token, root))
        self.file.close()
        _seal(self.descriptor)
        return Segment(self.descriptor, token)

    def abandon(self) -> None:
        try:
            self.file.close()
        except OSError:
            pass  # the disk or the memory is full: that is why it is abandoned
        os.close(self.descriptor)


def _anonymous(folder: Optional[str]) -> int:
    """A file without a name, in memory or in folder. A memfd is not bounded by /dev/shm."""
    if folder is None and hasattr(os, "memfd_create"):
        try:
            return os.memfd_create("memroom", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError:
            pass  # an old kernel, or a sandbox that forbids it
    descriptor, path = tempfile.mkstemp(prefix="memroom-", dir=folder)
    os.unlink(path)
    return descriptor


def _seal(descriptor: int) -> None:
    """Nobody can change or cut the block from here on, not even by mistake."""
    try:
        import fcntl

        seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    except (ImportError, AttributeError, OSError):
        pass  # a file on disk knows no seals; every mapping of ours is private anyway
