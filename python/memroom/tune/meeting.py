"""The socket at which trials find the program that holds their study. It lies in the study's
folder, which nobody else can enter: no other user can connect, take its name or keep trials
waiting.
"""

import os
import threading
from multiprocessing.connection import Client, Listener
from typing import Any, Callable, Tuple


class Meeting:
    """Takes the connections of trials that know the key, each in a thread of its own."""

    def __init__(self, path: str, key: bytes, serve: Callable[[Any], None]) -> None:
        self.folder, address = _near(path)
        self.listener = Listener(address, "AF_UNIX", authkey=key, backlog=64)
        threading.Thread(target=self._accept, args=(serve,), daemon=True).start()

    def close(self) -> None:
        self.listener.close()
        os.close(self.folder)

    def _accept(self, serve: Callable[[Any], None]) -> None:
        while True:
            try:
                link = self.listener.accept()
            except (OSError, EOFError):
                return
            except Exception:  # noqa: S112  somebody without the key
                continue
            threading.Thread(target=serve, args=(link,), daemon=True).start()


def connect(path: str, key: bytes) -> Any:
    """A trial's connection."""
    folder, address = _near(path)
    try:
        return Client(address, "AF_UNIX", authkey=key)
    finally:
        os.close(folder)


def _near(path: str) -> Tuple[int, str]:
    """The folder of a socket, opened, and a name by it: of a long path the kernel takes about 100
    bytes."""
    folder, name = os.path.split(path)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    inside = "/proc/self/fd/%d" % descriptor
    return descriptor, os.path.join(inside if os.path.isdir(inside) else folder, name)
