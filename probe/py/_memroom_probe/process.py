"""Who this process is, as told to the monitor when the link opens, and again when it opens anew."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_once: set[str] = set()  # what is reported once, and has been: the rank, by the program's group
# key -> an encoded message worth repeating to a monitor that was not there the first time
_known: dict[Any, Any] = {}

_RANK = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_LOCAL_RANK = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
_WORLD = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


def hello() -> dict[Any, Any]:
    """The fields of the hello message. Only the program's name is reported, never its arguments."""
    from . import where, wire

    rank, world = _number(_RANK), _number(_WORLD)
    if rank is None:
        rank, world = _group()
    return {
        "v": wire.PROTOCOL,
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "python": "%d.%d.%d" % sys.version_info[:3],
        "program": _program(),
        "rank": rank,
        "local_rank": _number(_LOCAL_RANK),
        "world": world,
        "run": os.environ.get("MEMROOM_RUN", ""),
        "where": where.known(),
    }


def regroup(*_: object) -> None:
    """Says hello again when the rank, which no launcher gave, is known by now: scripts hand it to
    init_process_group.
    """
    from . import link

    if "rank" not in _once and _number(_RANK) is None and _group()[0] is not None:
        _once.add("rank")
        link.send("hello", hello())


def _group() -> tuple[int | None, int | None]:
    """Rank and size of torch's process group, if the program has made one."""
    torch = sys.modules.get("torch")
    dist = getattr(torch, "distributed", None)
    try:
        if dist is not None and dist.is_available() and dist.is_initialized():
            return dist.get_rank(), dist.get_world_size()
    except Exception:
        pass
    return None, _number(_WORLD)


def remember(key: str, kind: str, fields: dict[Any, Any]) -> None:
    """Sends a message that every monitor of this process should hear, now and after a reconnect."""
    from . import link, wire

    line = wire.line(kind, fields)
    _known[key] = line
    link.send_line(line)


def greetings() -> list[bytes]:
    """Hello, then the messages to repeat after it, in the order in which they were first sent."""
    from . import wire

    return [wire.line("hello", hello()), *_known.values()]


def _program() -> str:
    """The script or -m module that runs, "" when unknown (an interactive interpreter, an embedded
    one).
    """
    argv = getattr(sys, "orig_argv", None) or _cmdline()
    expect_value = False
    for i, word in enumerate(argv[1:], 1):
        if expect_value:
            expect_value = False
        elif word in ("-m", "-c"):
            return ("-m " + argv[i + 1] if word == "-m" and i + 1 < len(argv) else word)[:500]
        elif word in ("-W", "-X", "--check-hash-based-pycs"):
            expect_value = True
        elif not word.startswith("-"):
            answer: str = word[:500]
            return answer
    return ""


def _cmdline() -> list[str]:
    """The process's own words before Python 3.10, which has no sys.orig_argv."""
    try:
        with open("/proc/self/cmdline", "rb") as file:
            return file.read(1 << 16).decode("utf-8", "replace").split("\0")[:-1]
    except OSError:
        return []


def world() -> int | None:
    """How many ranks there are, as the launcher says or the program's group."""
    return _number(_WORLD) or _group()[1]


def _number(names: tuple[str, ...]) -> int | None:
    for name in names:
        text = os.environ.get(name, "")
        if text.isdigit():
            return int(text)
    return None
