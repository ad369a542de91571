"""The client's side of the feed protocol (docs/format/feed.md): finds or starts the server, asks
for batches, maps them and gives them back.
"""

import array
import base64
import fcntl
import hashlib
import json
import mmap
import os
import select
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from typing import Any, Dict, List, Optional, Tuple

from .command import find

HEADER = struct.Struct("<IIQIIQII")
BATCH, END, ERROR, STILL = 1, 2, 3, 4
PEER = struct.Struct("3i")  # process, user and group, as SO_PEERCRED has them
START_PATIENCE = 60.0  # seconds that a server may take to load
END_PATIENCE = 5.0  # seconds from a closed connection to the end of its server
SILENCE = 10.0  # seconds without a word after which a server counts as stuck
DESCRIPTORS = 4  # that may come with one message; one does
ROOM = socket.CMSG_SPACE(DESCRIPTORS * 4) if hasattr(socket, "CMSG_SPACE") else 0
GREETINGS = 5  # servers that may end before they answer
ENDED = "memroom: the feed server ended. Was it killed? Start the stream again"
SILENT = (
    "memroom: the feed server has not said a word for %d s: it is stopped, or hangs. `pgrep -af "
    "'memroom feed'` lists your servers; end it and start the stream again"
)

_started: List[Any] = []  # processes of ours, so that they are reaped


class FeedError(RuntimeError):
    """The data cannot be read, or the budget cannot hold it."""


class Server:
    """Where a server for some data is, or how to start it.

    order   what to serve: sources (as bytes), columns, options, budget. It goes to the server over
            its standard input: addresses may hold secrets, and everybody can read arguments
    address the socket of a server that the user has started
    """

    def __init__(self, order: Dict[str, Any], address: Optional[str] = None) -> None:
        self.address = address
        self.order = {**order, "sources": [_base64(name) for name in order["sources"]]}
        self.name = _name(self.order)
        self.process: Any = None  # the server, where this process has started it
        self.said: Any = None  # what it writes to its standard error

    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "process": None, "said": None}

    def connect(self) -> socket.socket:
        if self.address is not None:
            name = self.address
            link = _connected("\0" + name[1:] if name.startswith("@") else name)
            if link is None:
                raise FeedError("memroom: no feed server listens on %s: start it first" % name)
            return link
        folder, path = _folder()
        try:
            inside = "/proc/self/fd/%d" % folder  # the folder that was checked, whatever its name
            place = os.path.join(inside if os.path.isdir(inside) else path, self.name)
            link = _connected(place)
            if link is None:
                _lock(folder, path)
                try:
                    link = _connected(place) or self.start(folder, place, path)
                finally:
                    fcntl.flock(folder, fcntl.LOCK_UN)
            return link
        finally:
            os.close(folder)

    def start(self, folder: int, place: str, path: str) -> socket.socket:
        """Starts a server on a socket that this process has made: nobody else can be quicker."""
        _started[:] = [p for p in _started if p.returncode is None]
        try:
            os.unlink(self.name, dir_fd=folder)  # of a server that was killed
        except FileNotFoundError:
            pass
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(place)
            listener.listen(128)
            self.said = tempfile.TemporaryFile()
            weakref.finalize(self, self.said.close)
            self.process = subprocess.Popen(
                [find(), "feed", "serve-stream"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self.said,
                pass_fds=[listener.fileno()],
                start_new_session=True,  # Ctrl-C is for the trainer; the server ends after it
            )
            _started.append(self.process)
            where = {"listener": listener.fileno(), "socket": os.path.join(path, self.name)}
        threading.Thread(target=self.process.wait, daemon=True).start()  # no zombie stays
        try:
            with self.process.stdin as orders:
                orders.write(json.dumps({**self.order, **where}).encode())
        except BrokenPipeError:
            pass  # it has ended: its last words say why
        link = _connected(place)
        if link is None:
            raise FeedError(self.last_words() or ENDED)
        return link

    def last_words(self) -> str:
        """Why the server has ended, by its own account; empty where nothing is known."""
        if self.process is None:
            return ""
        try:
            if self.process.wait(END_PATIENCE) == 0:
                return ""
        except subprocess.TimeoutExpired:
            return ""
        self.said.seek(0)
        lines = self.said.read().decode(errors="replace").splitlines()
        return "\n".join(line for line in lines if line.startswith("memroom: "))

    def starting(self) -> bool:
        """Whether this process has started a server, which may still be loading."""
        return self.process is not None and self.process.poll() is None


def _base64(name: str) -> str:
    return base64.b64encode(os.fsencode(name)).decode()  # names of files need not be UTF-8


def _name(order: Dict[str, Any]) -> str:
    """The same for every process of this user that asks for the same data and budget."""
    surroundings = {n: v for n, v in os.environ.items() if n.startswith("AWS_")}
    text = json.dumps([surroundings, order], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _folder() -> Tuple[int, str]:
    """A folder for sockets that nobody else can write to or look into, opened, and its path.
    Whoever may write to the temporary folder can take our name there: the second choice is in the
    user's home."""
    uid, host = os.geteuid(), socket.gethostname()  # several machines may share a home
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    refused = []
    for path in (
        os.path.join(tempfile.gettempdir(), "memroom-feed-%d" % uid),
        os.path.join(cache, "memroom", "feed-%s" % host),
    ):
        try:
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
            try:
                os.mkdir(path, 0o700)
            except FileExistsError:
                pass
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError as error:
            refused.append("%s cannot be used (%s)" % (path, error.strerror))
            continue
        about = os.fstat(folder)
        if about.st_uid == uid and not about.st_mode & 0o077:
            return folder, path
        os.close(folder)
        refused.append(
            "%s belongs to user %d and has mode %o"
            % (path, about.st_uid, stat.S_IMODE(about.st_mode))
        )
    raise FeedError(
        "memroom: there is no private folder for the feed server's socket, one that is yours with "
        "mode 700: %s. Name another temporary folder in TMPDIR" % "; ".join(refused)
    )


def _lock(folder: int, path: str) -> None:
    """Only one process at a time starts servers."""
    deadline = time.monotonic() + START_PATIENCE
    while True:
        try:
            return fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise FeedError(
                    "memroom: another process of yours has been starting a feed server for %d s, "
                    "and holds %s: is it stopped?" % (START_PATIENCE, path)
                ) from None
        time.sleep(0.002)


def _connected(place: str) -> Optional[socket.socket]:
    """A connection to a server of this very user, or None where nobody listens. Nothing is read
    from anybody else: it would be taken for the data."""
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.settimeout(SILENCE)
    try:
        link.connect(place)
        if sys.platform == "linux":
            peer = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size)
            _, uid, _ = PEER.unpack(peer)
            if uid != os.geteuid():
                raise FeedError(
                    "memroom: the feed server on %s belongs to user %d, not to you (user %d): what "
                    "it says is not believed" % (place.replace("\0", "@"), uid, os.geteuid())
                )
        return link
    except (ConnectionRefusedError, FileNotFoundError):
        link.close()
        return None
    except socket.timeout:
        link.close()
        raise FeedError(SILENT % SILENCE) from None
    except BaseException:
        link.close()
        raise


class Link:
    """One consumer's connection: batches as (number, rows, spans, memory)."""

    def __init__(self, server: Server, request: Dict[str, Any]) -> None:
        self.maps: Dict[int, memoryview] = {}
        self.descriptors: List[int] = []
        self.report: Dict[str, Any] = {}
        self.waited = 0.0  # seconds for batches that were not ready
        self.copying = request["transport"] != "memfd"
        self.server = server
        self.answer = self.greet(server, json.dumps(request).encode() + b"\n")
        if self.answer.get("error"):
            self.close()
            raise FeedError("memroom: " + self.answer["error"])
        spans = sum(1 if c["kind"] == "fixed" else 3 for c in self.answer["columns"])
        self.spans = struct.Struct("<%dQ" % (2 * spans))
        self.buffer = memoryview(bytearray(HEADER.size + self.spans.size))

    def greet(self, server: Server, request: bytes) -> Dict[str, Any]:
        """The server's first answer. One that ends at this moment, because its last consumer has
        gone or somebody killed it, is followed by a new one."""
        for left in reversed(range(GREETINGS)):
            self.socket = server.connect()
            try:
                self.socket.sendall(request)
                answer: Dict[str, Any] = json.loads(self.line(server))
                self.socket.settimeout(None)
                return answer
            except BaseException as error:
                self.close()
                if not isinstance(error, ConnectionError):
                    raise
                words = server.last_words()
                if words or not left or server.address is not None:
                    raise FeedError(words or ENDED) from None
            time.sleep(0.05)
        raise FeedError(ENDED)

    def line(self, server: Server) -> bytes:
        """The first line, byte by byte: what follows it may carry a descriptor. A server that
        indexes files sends empty lines meanwhile."""
        text, patience = bytearray(), time.monotonic() + START_PATIENCE
        while not text.endswith(b"\n") or text == b"\n":
            if text == b"\n":
                text.clear()
            try:
                part = self.socket.recv(1)
            except socket.timeout:
                if server.starting() and time.monotonic() < patience:
                    continue
                raise FeedError(SILENT % SILENCE) from None
            if not part:
                raise ConnectionResetError(ENDED)
            text += part
        return bytes(text)

    def next(self) -> Optional[Tuple[int, int, int, Any, memoryview]]:
        """The next batch, or None at the end: slot, number, rows, spans, memory."""
        kind = STILL
        while kind == STILL:
            got = self.message()
            kind, slot, number, rows, _, size, descriptor, _ = HEADER.unpack_from(self.buffer)
            if kind in (BATCH, STILL):
                self.exactly(len(self.buffer) - got, self.buffer[got:])
        if kind != BATCH:
            text = bytes(self.buffer[HEADER.size : got])
            text += self.exactly(size - len(text))
            if kind == ERROR:
                raise FeedError("memroom: " + text.decode(errors="replace"))
            self.report = json.loads(text)
            return None
        where = self.spans.unpack_from(self.buffer, HEADER.size)
        if self.copying or sys.platform != "linux":
            memory = memoryview(self.exactly(size))
        else:
            if descriptor:
                self.map(slot)
            memory = self.maps[slot]
        return slot, number, rows, where, memory

    def pick(self, numbers: List[int]) -> Tuple[int, int, int, Any, memoryview]:
        """The rows with these numbers, as next() has batches. They lie where the last ones did."""
        self.socket.sendall(struct.pack("<I%dq" % len(numbers), len(numbers), *numbers))
        got = self.next()
        if got is None:
            raise FeedError(ENDED)
        return got

    def message(self) -> int:
        """Reads the start of the next message, at most as long as a batch's, which carries the
        spans of all columns; returns how much came. Time spent waiting is counted: a batch that
        lies ready costs one call and is not waited for.
        """
        got = self.receive(self.buffer)
        if got < 0:
            asked = time.perf_counter()
            self.wait()
            self.waited += time.perf_counter() - asked
            got = self.receive(self.buffer)
        if got < HEADER.size:
            self.exactly(HEADER.size - got, self.buffer[got : HEADER.size])
            got = HEADER.size
        return got

    def wait(self) -> None:
        """Until there is something to read. A server that makes a batch says so meanwhile."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        if not poll.poll(1000 * SILENCE) and self.socket.fileno() >= 0:
            raise FeedError(SILENT % SILENCE)

    def receive(self, view: memoryview) -> int:
        """Reads into view what is there, with its descriptors; -1 where nothing is."""
        try:
            n, beside, _, _ = self.socket.recvmsg_into([view], ROOM, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return -1
        except ConnectionResetError:
            n, beside = 0, []
        except OSError:
            if self.socket.fileno() >= 0:
                raise
            raise FeedError("memroom: this stream was closed while it was read") from None
        for level, kind, content in beside:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i")
                fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
                self.descriptors.extend(fds)
        if n == 0:
            raise FeedError(self.server.last_words() or ENDED)
        return n

    def map(self, slot: int) -> None:
        fd = self.descriptors.pop(0)
        try:
            area = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
        finally:
            os.close(fd)
        self.maps[slot] = memoryview(area)

    def release(self, slot: int) -> None:
        try:
            self.socket.sendall(struct.pack("<I", slot))
        except OSError:
            pass  # the server has sent its last batch and gone

    def exactly(self, size: int, into: Optional[memoryview] = None) -> bytes:
        view = memoryview(bytearray(size)) if into is None else into
        at = 0
        while at < size:
            got = self.receive(view[at:])
            if got < 0:
                self.wait()
            else:
                at += got
        return bytes(view) if into is None else b""

    def close(self) -> None:
        self.maps.clear()
        for fd in self.descriptors:
            os.close(fd)
        self.descriptors = []
        self.socket.close()
