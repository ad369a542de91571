"""The connection to the monitor: a unix socket that is never waited for.

What cannot be sent at once is kept up to MAX_PENDING bytes; what comes after that is dropped and
counted. A monitor that is dead or gone costs one failed connect every few seconds. No thread is
kept: commands are read at step boundaries, in the thread that trains, where they are safe.
`_socket` is used directly because importing `socket` takes longer than everything else here.
"""

from __future__ import annotations

import _socket
import os
import sys
import time

from . import wire

TYPE_CHECKING = False
if TYPE_CHECKING:  # a name that type checkers take for true: importing typing takes a while
    from typing import Any, Callable, Iterable

MAX_PENDING = 256 << 10
RETRY_FIRST_S, RETRY_MOST_S = 1.0, 30.0
EXIT_WAIT_S = 0.05  # how long the end of the process may be held up to hand over the last messages


class Link:
    """The connection of this process."""

    __slots__ = (
        "dropped",
        "farewell",
        "greetings",
        "heard",
        "inode",
        "lock",
        "path",
        "pending",
        "retry_at",
        "retry_s",
        "sock",
    )

    def __init__(self) -> None:
        self.lock = __import__("_thread").allocate_lock()
        self.path: str | None = None
        self.greetings: Callable[[], Iterable[bytes]] = tuple
        self.farewell: Callable[[], object] = tuple
        self.sock: _socket.socket | None = None
        # of the socket: a program that closes fds it does not know may get our number for its own
        # file
        self.inode: int | None = None
        self.pending = bytearray()
        self.heard = bytearray()
        self.retry_at = 0.0
        self.retry_s = RETRY_FIRST_S
        self.dropped = 0


state = Link()


def open(
    path: str, greetings: Callable[[], Iterable[bytes]], farewell: Callable[[], object]
) -> None:
    """Sets the monitor's address and connects. greetings are sent whenever a connection begins,
    farewell is called before the last one ends. Forked children connect when they have something to
    say.
    """
    state.path, state.greetings, state.farewell = path, greetings, farewell
    os.register_at_fork(after_in_child=_after_fork)
    import atexit

    atexit.register(_at_exit)
    _connect()


def enabled() -> bool:
    """Returns whether there is a monitor to talk to at all."""
    return state.path is not None


def send(kind: str, fields: dict[str, Any]) -> bool:
    """Sends a message if it can go now or be kept; returns whether it was taken."""
    if state.path is None:
        return False
    return send_line(wire.line(kind, fields))


def send_line(data: bytes) -> bool:
    """Sends an encoded message, as send does."""
    if state.path is None or not state.lock.acquire(
        False
    ):  # another thread is sending: rather lose one than wait
        state.dropped += 1
        return False
    try:
        if state.sock is None and not _connect():
            state.dropped += 1
            return False
        if len(state.pending) + len(data) > MAX_PENDING:
            _flush()
            if len(state.pending) + len(data) > MAX_PENDING:
                state.dropped += 1
                return False
        state.pending.extend(data)
        return _flush()
    finally:
        state.lock.release()


def commands() -> list[dict[str, Any]]:
    """The commands that have arrived, as dicts; never waits."""
    if state.sock is None or not state.lock.acquire(False):
        return []
    try:
        if not _alive():
            return []
        data = state.sock.recv(1 << 16, _socket.MSG_DONTWAIT)
        if not data:
            _drop()
            return []
    except BlockingIOError:
        return []
    except OSError:
        _drop()
        return []
    finally:
        state.lock.release()
    state.heard.extend(data)
    *lines, rest = state.heard.split(b"\n")
    state.heard[:] = rest if len(rest) < MAX_PENDING else b""
    return [command for command in map(wire.parse, lines) if command is not None]


def _connect() -> bool:
    if state.path is None or time.monotonic() < state.retry_at:
        return False
    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.connect(state.path)
        if not _ours(sock):
            raise OSError("the socket belongs to another user")
        state.inode = os.fstat(sock.fileno()).st_ino
    except (OSError, ValueError):  # no monitor, a full backlog, a path that is too long
        sock.close()
        state.retry_at = time.monotonic() + state.retry_s
        state.retry_s = min(2 * state.retry_s, RETRY_MOST_S)
        return False
    state.sock, state.retry_s = sock, RETRY_FIRST_S
    state.pending[:] = b"".join(state.greetings())
    return _flush()


def _ours(sock: _socket.socket) -> bool:
    """Returns whether the other end belongs to us or to root. Nobody else may send commands,
    whoever has put a socket in the monitor's place.
    """
    option = getattr(_socket, "SO_PEERCRED", None)
    if option is None:
        return True  # not Linux: the folder's permissions are all there is
    peer = sock.getsockopt(_socket.SOL_SOCKET, option, 12)  # pid, uid, gid
    uid = int.from_bytes(peer[4:8], sys.byteorder)
    return uid in (0, os.getuid(), os.geteuid())


def _alive() -> bool:
    """Returns whether the descriptor is still our socket; if not it is forgotten, not closed."""
    if state.sock is None:
        return False
    try:
        if os.fstat(state.sock.fileno()).st_ino == state.inode:
            return True
    except OSError:
        pass
    _forget(state.sock.detach)
    return False


def _flush() -> bool:
    """Sends what is pending as far as it goes without waiting. False if the monitor is gone."""
    if state.sock is None or not _alive():
        return False
    try:
        while state.pending:
            sent = state.sock.send(state.pending, _socket.MSG_DONTWAIT | _socket.MSG_NOSIGNAL)
            del state.pending[:sent]
    except BlockingIOError:
        pass
    except OSError:
        _drop()
        return False
    return True


def _drop() -> None:
    state.retry_at = time.monotonic() + state.retry_s
    if state.sock is not None:
        _forget(state.sock.close)


def _forget(release: Callable[[], object]) -> None:
    try:
        release()
    except OSError:
        pass
    state.sock = None
    del state.pending[:]
    del state.heard[:]


def _after_fork() -> None:
    state.lock = __import__("_thread").allocate_lock()
    state.dropped, state.retry_at = 0, 0.0
    if state.sock is not None:
        _forget(state.sock.close)


def _at_exit() -> None:
    """Hands over the last messages: the only place that waits, and not long."""
    try:
        state.farewell()
        deadline = time.monotonic() + EXIT_WAIT_S
        while state.pending and state.sock is not None and time.monotonic() < deadline:
            time.sleep(0.002)
            _flush()
    except Exception:
        pass
    state.path = None
    if state.sock is not None:
        _forget(state.sock.close)
