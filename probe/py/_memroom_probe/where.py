"""Writes down where the main thread stands when the monitor asks, by a signal.

The monitor asks while host memory climbs. That is when a program sits in one long call of pandas or
NumPy, which keeps the interpreter's lock, so that no Python code of ours can run. The handler of
faulthandler is C code: it needs neither that lock nor memory, and costs nothing until it is asked.

While the kernel carries out one long call, as it reads a file of a gibibyte, the main thread hears
no signal. Then another thread that waits is asked by a second signal: it writes down all of them.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import types
    from typing import Any

_LARGE = 32 << 20  # bytes of a file from which it is worth 50 microseconds

# hello's words about it: the signals, the open file and its path; empty: it cannot be asked
_known: dict[str, Any] = {}


def prepare() -> None:
    """Installs the handler, unless the program has one for the same signal already."""
    folder = os.path.dirname(os.environ.get("MEMROOM_DUMPS", ""))
    if not folder or _known:
        return
    import _signal
    import faulthandler

    number, others = _signal.SIGRTMAX - 3, _signal.SIGRTMAX - 4
    if any(_signal.getsignal(n) != _signal.SIG_DFL for n in (number, others)):
        return
    path = os.path.join(folder, "where-%d" % os.getpid())
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(path, flags, 0o600)
    faulthandler.register(number, file=fd, all_threads=False, chain=False)
    faulthandler.register(others, file=fd, all_threads=True, chain=False)
    _known.update(signal=number, others=others, fd=fd, path=path)


def reads(source: object) -> None:
    """Writes down, by itself, that a large file will be read: the kernel reads up to 2 GiB in
    one call, during which no signal is heard.
    """
    if not _known or not _known["path"].endswith("-%d" % os.getpid()):
        return
    try:
        fileno = getattr(source, "fileno", None)
        size = os.stat(source if fileno is None else fileno()).st_size  # type: ignore[arg-type]
        if size < _LARGE:
            return
        import faulthandler

        os.write(_known["fd"], b"reads %d\n" % size)
        faulthandler.dump_traceback(_known["fd"], all_threads=False)
    except (OSError, ValueError, TypeError, RuntimeError):
        pass  # not a file, or ours was closed


def of_numpy(module: types.ModuleType) -> None:
    """Hears of arrays that np.load reads: the header is read first, by a function of the module."""
    import functools

    names = module.read_array.__globals__
    read_magic = names["read_magic"]

    @functools.wraps(read_magic)
    def noted(fp: object, *args: object) -> object:
        version = read_magic(fp, *args)
        reads(fp)
        return version

    names["read_magic"] = noted


def known() -> dict[str, Any] | None:
    """What hello says of it. A forked child has the same handler and the same file."""
    return _known or None
