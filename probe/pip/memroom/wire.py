"""The client's side of the feed protocol (docs/format/feed.md): finds or starts the server, asks
for batches, maps them and gives them back.
"""

import array
import hashlib
import json
import mmap
import os
import select
import shutil
import socket
import struct
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from typing import Any, Dict, List, Optional, Tuple

HEADER = struct.Struct("<IIQIIQII")
BATCH, END, ERROR = 1, 2, 3
START_PATIENCE = 60.0  # seconds that a server may take to listen
DESCRIPTORS = 4  # that may come with one message; one does
ROOM = socket.CMSG_SPACE(DESCRIPTORS * 4) if hasattr(socket, "CMSG_SPACE") else 0
GREETINGS = 5  # servers that may end before they answer
ENDED = "memroom: the feed server ended. Was it killed? Start the stream again"

_started: List[Any] = []  # processes of ours, so that they are reaped


class FeedError(RuntimeError):
    """The data cannot be read, or the budget cannot hold it."""


def find_binary() -> str:
    """The memroom command: MEMROOM_BINARY, the one beside this package, the one on PATH."""
    named = os.environ.get("MEMROOM_BINARY")
    beside = os.path.join(sysconfig.get_path("scripts"), "memroom")
    for path in (named, beside, shutil.which("memroom")):
        if path and os.access(path, os.X_OK):
            return path
    raise FeedError(
        "memroom: the command is not found: install the wheel, put the binary on PATH, or name it "
        "in MEMROOM_BINARY"
    )


class Server:
    """Where a server for some data is, or how to start it."""

    def __init__(self, arguments: List[str], address: Optional[str] = None) -> None:
        self.arguments = arguments
        self.started = address is None
        self.address = address or _address(arguments)

    def connect(self) -> socket.socket:
        deadline = time.monotonic() + START_PATIENCE
        process: Any = None
        said: Any = None  # what the server writes to its standard error
        while True:
            link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                link.connect(_name(self.address))
                if said is not None:
                    said.close()
                return link
            except (ConnectionRefusedError, FileNotFoundError) as error:
                link.close()
                if not self.started:
                    raise FeedError(
                        "memroom: no feed server listens on %s: %s" % (self.address, error)
                    ) from None
            if process is None or process.poll() == 0:  # 0: another process was quicker
                if said is not None:
                    said.close()
                process, said = self.start()
            elif process.poll() is not None:
                said.seek(0)
                raise FeedError(said.read().decode(errors="replace").strip() or "no server started")
            if time.monotonic() > deadline:
                raise FeedError(
                    "memroom: the feed server did not start in %d s: is the machine out of memory? "
                    "`memroom feed serve` in a terminal says more" % START_PATIENCE
                )
            time.sleep(0.002)

    def start(self) -> Tuple[Any, Any]:
        _started[:] = [p for p in _started if p.returncode is None]
        said = tempfile.TemporaryFile()
        command = [find_binary(), "feed", "serve", "--socket", self.address, "--exit-idle"]
        process = subprocess.Popen(
            command + self.arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
            start_new_session=True,  # Ctrl-C is for the trainer; the server ends when it has gone
        )
        _started.append(process)
        threading.Thread(target=process.wait, daemon=True).start()  # no zombie stays
        return process, said


def _address(arguments: List[str]) -> str:
    """The same for every process of this user that asks for the same data and budget."""
    surroundings = [v for n, v in sorted(os.environ.items()) if n.startswith("AWS_")]
    text = "\0".join([os.getcwd(), *surroundings, *arguments])
    name = "memroom-feed-%d-%s" % (os.getuid(), hashlib.sha256(text.encode()).hexdigest()[:20])
    if sys.platform == "linux":
        return "@" + name  # a socket without a file: nothing is left behind
    folder = os.path.join(tempfile.gettempdir(), "memroom-feed-%d" % os.getuid())
    os.makedirs(folder, mode=0o700, exist_ok=True)
    return os.path.join(folder, name[-20:])


def _name(address: str) -> str:
    return "\0" + address[1:] if address.startswith("@") else address


class Link:
    """One consumer's connection: batches as (number, rows, spans, memory)."""

    def __init__(self, server: Server, request: Dict[str, Any]) -> None:
        self.maps: Dict[int, memoryview] = {}
        self.descriptors: List[int] = []
        self.report: Dict[str, Any] = {}
        self.waited = 0.0  # seconds for batches that were not ready
        self.copying = request["transport"] != "memfd"
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
                answer: Dict[str, Any] = json.loads(self.line())
                return answer
            except BaseException as error:
                self.close()
                if not isinstance(error, ConnectionError):
                    raise
                if not left or not server.started:
                    raise FeedError(ENDED) from None
            time.sleep(0.05)
        raise FeedError(ENDED)

    def line(self) -> bytes:
        """The first line, byte by byte: what follows it may carry a descriptor."""
        text = bytearray()
        while not text.endswith(b"\n"):
            part = self.socket.recv(1)
            if not part:
                raise ConnectionResetError(ENDED)
            text += part
        return bytes(text)

    def next(self) -> Optional[Tuple[int, int, int, Any, memoryview]]:
        """The next batch, or None at the end: slot, number, rows, spans, memory."""
        got = self.message()
        kind, slot, number, rows, spans, size, descriptor, _ = HEADER.unpack_from(self.buffer)
        if kind != BATCH:
            text = bytes(self.buffer[HEADER.size : got])
            text += self.exactly(size - len(text))
            if kind == ERROR:
                raise FeedError("memroom: " + text.decode(errors="replace"))
            self.report = json.loads(text)
            return None
        if got < len(self.buffer):
            self.exactly(len(self.buffer) - got, self.buffer[got:])
        where = self.spans.unpack_from(self.buffer, HEADER.size)
        if self.copying or sys.platform != "linux":
            memory = memoryview(self.exactly(size))
        else:
            if descriptor:
                self.map(slot)
            memory = self.maps[slot]
        return slot, number, rows, where, memory

    def message(self) -> int:
        """Reads the start of the next message, at most as long as a batch's, which carries the
        spans of all columns; gives how much came. Time spent waiting is counted: a batch that
        lies ready costs one call and is not waited for.
        """
        got = self.receive(self.buffer, socket.MSG_DONTWAIT)
        if got < 0:
            asked = time.perf_counter()
            poll = select.poll()
            poll.register(self.socket, select.POLLIN)
            poll.poll()
            self.waited += time.perf_counter() - asked
            got = self.receive(self.buffer, 0)
        if got < HEADER.size:
            self.exactly(HEADER.size - got, self.buffer[got : HEADER.size])
            got = HEADER.size
        return got

    def receive(self, view: memoryview, flags: int) -> int:
        """Reads into view what is there, with its descriptors; -1 where nothing is."""
        try:
            n, beside, _, _ = self.socket.recvmsg_into([view], ROOM, flags)
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
            raise FeedError(ENDED)
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
            at += self.receive(view[at:], 0)
        return bytes(view) if into is None else b""

    def close(self) -> None:
        self.maps.clear()
        for fd in self.descriptors:
            os.close(fd)
        self.descriptors = []
        self.socket.close()
