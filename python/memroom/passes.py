"""Which epoch a pass over a stream reads, agreed on by the workers of a DataLoader.

Workers that are started anew for every pass know nothing of the pass before, and the process that
starts them reads nothing itself. A few bytes that all of them share say what was read last.
"""

import os
import struct
import sys
import tempfile
from typing import Any, Optional, Tuple

RECORD = struct.Struct("<QQQQ")  # the pass's seed, its number in the worker, epoch, state
READING, CHOSEN = 0, 1  # CHOSEN: no pass yet, but the user has said which epoch is next


class Passes:
    """The record: a file without a name, which forked workers inherit and started ones open."""

    def __init__(self) -> None:
        self.file: Any = _nameless()
        self.owner = os.getpid()

    def __getstate__(self) -> Tuple[int, int]:
        return os.getpid(), self.file.fileno()

    def __setstate__(self, state: Tuple[int, int]) -> None:
        self.owner = 0
        try:
            self.file = open("/proc/%d/fd/%d" % state, "r+b", buffering=0)
        except OSError:  # the process that has it is gone, or there is no /proc: start anew
            self.file = _nameless()

    def choose(self, epoch: Optional[int]) -> None:
        """The next pass reads this epoch, or where None what its workers say. Only the process that
        starts the workers may say so."""
        if os.getpid() == self.owner:
            self._write((0, 0, epoch or 0, CHOSEN if epoch is not None else READING))

    def begin(self, seed: int, number: int, own: int, loaded: bool) -> int:
        """The epoch of a pass. The first worker that asks settles it: its own where it has loaded
        a state or there was no pass before, the one after the last pass otherwise."""
        with _Lock(self.file):
            last_seed, last_number, epoch, state = self._read()
            if (last_seed, last_number) == (seed, number):
                return epoch
            if loaded or last_seed == 0 and state != CHOSEN:
                epoch = own
            elif state != CHOSEN:
                epoch += 1
            self._write((seed, number, epoch, READING))
            return epoch

    def _read(self) -> Tuple[int, int, int, int]:
        data = os.pread(self.file.fileno(), RECORD.size, 0)
        return RECORD.unpack(data.ljust(RECORD.size, b"\0"))

    def _write(self, record: Tuple[int, int, int, int]) -> None:
        os.pwrite(self.file.fileno(), RECORD.pack(*record), 0)


def _nameless() -> Any:
    if sys.platform == "linux":
        try:
            return os.fdopen(os.memfd_create("memroom-passes"), "r+b", buffering=0)
        except OSError:
            pass
    return tempfile.TemporaryFile(buffering=0)


class _Lock:
    def __init__(self, file: Any) -> None:
        self.file = file

    def __enter__(self) -> None:
        import fcntl

        fcntl.lockf(self.file, fcntl.LOCK_EX)

    def __exit__(self, *_: Any) -> None:
        import fcntl

        fcntl.lockf(self.file, fcntl.LOCK_UN)
