"""Host memory that jobs of one user are about to take.

Several jobs that begin together all see the same free memory, and each would count on half of it.
So each writes down what it is about to send to host memory, and takes from what is free what others
have written. As soon as a step has been done the memory is taken, and shows as such to all.
"""

import atexit
import contextlib
import os
import stat
import tempfile
from typing import Iterator, Optional


class Promises:
    """One file a process in a folder of the user's, with a number of bytes."""

    def __init__(self, folder: Optional[str] = None) -> None:
        self._folder = folder or os.path.join(
            tempfile.gettempdir(), "memroom-host-%d" % os.getuid()
        )
        self._promised = self._taken = 0

    def promise(self, count: float) -> None:
        """So many bytes may wait in host memory from now on."""
        self._promised = int(count)
        self._write(max(0, self._promised - self._taken))

    def kept(self) -> None:
        """A step was done with all that was promised. It stays taken: the allocator of pinned
        memory gives nothing back.
        """
        if self._promised > self._taken:
            self._taken = self._promised
            self._write(0)

    def of_others(self) -> int:
        """Bytes that other processes are about to take."""
        return sum(self._read(name) for name in self._names() if name != str(os.getpid()))

    def _write(self, count: int) -> None:
        path = os.path.join(self._folder, str(os.getpid()))
        if not count:
            self._withdraw()
            return
        with contextlib.suppress(OSError):  # others then count on more than there is, as without us
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            atexit.unregister(self._withdraw)
            atexit.register(self._withdraw)
            if self._is_ours():
                with open(path + ".part", "w") as f:
                    f.write(str(count))
                os.replace(path + ".part", path)

    def _withdraw(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self._folder, str(os.getpid())))

    def _is_ours(self) -> bool:
        """Others may write where temporary files are: nothing of theirs is believed."""
        try:
            found = os.lstat(self._folder)
        except OSError:
            return False
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()

    def _names(self) -> Iterator[str]:
        if not self._is_ours():
            return
        with contextlib.suppress(OSError):
            yield from (name for name in os.listdir(self._folder) if name.isdigit())

    def _read(self, name: str) -> int:
        """What a process has promised; 0 where it is gone."""
        path = os.path.join(self._folder, name)
        try:
            if not os.path.exists("/proc/" + name):
                os.unlink(path)
                return 0
            with open(path) as f:
                return max(0, int(f.read(32)))
        except (OSError, ValueError):
            return 0


promises = Promises()
