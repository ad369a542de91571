"""Worker processes: which processes they are, and caches in those of PyTorch's DataLoader, where a
dataset keeps what it has read and nobody sees it.

Only forked processes that the program or a data loader starts are named: they work on the memory
of their parent. Pools that a library has for itself, such as a compiler's, are not the program's.

A worker reads its own memory every few batches. When that has risen by a fair amount the dataset is
looked at, and again when it has risen as much once more: what of it holds the difference is told,
once.
"""

import functools
import re
import sys
from typing import Any

from .. import guard, link
from . import holders, host, wrapping

EVERY = 8  # batches between two readings
RISE = 24 << 20  # bytes between two looks
MOST_LOOKS = 4
SHARE = 0.5  # of the rise that one variable must hold

# those who start processes for somebody else, and data loaders
_BETWEEN = re.compile(r"[/\\](multiprocessing|concurrent|_memroom_probe)[/\\]")
_LOADERS = re.compile(r"[/\\](torch[/\\]utils[/\\]data|data_adapters)[/\\]")


def hook_processes(module: Any) -> None:
    """Hooks multiprocessing.process: a process was started."""

    def around(original: Any) -> Any:
        def start(self: Any) -> None:
            original(self)
            _started(self)

        return start

    wrapping.once(module.BaseProcess, "start", around)


@guard.hook("process started")
def _started(process: Any) -> None:
    by = _starter()
    if by and getattr(process._popen, "method", "") == "fork":
        link.send("forked", {"pid": process.pid, "by": by})


def _starter() -> str:
    """Who starts a process: "loader", "program", or nothing where it is a library for itself."""
    frame = sys._getframe()
    while _BETWEEN.search(frame.f_code.co_filename) and frame.f_back is not None:
        frame = frame.f_back
    file = frame.f_code.co_filename
    if _LOADERS.search(file):
        return "loader"
    return "program" if holders.is_users(file) else ""


class Fetches:
    """The batches that this process makes, and the looks at its dataset."""

    __slots__ = ("_batches", "_before", "_level", "_looked_at", "_looks")

    def __init__(self) -> None:
        self._batches = 0
        self._level = 0  # anonymous bytes at the last look, or at the first reading
        self._looks = 0
        self._before: holders.Found = {}  # what the look before saw
        self._looked_at = 0  # batches at that look

    def hook(self, module: Any) -> None:
        """Hooks torch.utils.data._utils.fetch: a batch was made."""
        for name in ("_MapDatasetFetcher", "_IterableDatasetFetcher"):
            cls = getattr(module, name, None)
            if cls is not None:
                self._wrap(cls)

    def _wrap(self, cls: Any) -> None:
        original = cls.fetch

        @functools.wraps(original)
        def fetch(fetcher: Any, index: Any) -> Any:
            data = original(fetcher, index)
            self._batches += 1
            if self._batches % EVERY == 0 and self._looks < MOST_LOOKS:
                self._fetched(fetcher.dataset)
            return data

        cls.fetch = fetch

    @guard.hook("worker's batch", heavy=True)
    def _fetched(self, dataset: Any) -> None:
        info = getattr(sys.modules.get("torch.utils.data._utils.worker"), "_worker_info", None)
        if info is None:
            return  # the program's own process: its steps are watched
        now = host.memory()[1]
        if self._level == 0:
            self._level = now
        if now < self._level + RISE or not guard.may_ask():
            return
        risen, self._level = now - self._level, now
        self._looks += 1
        kind = type(dataset)
        place = (holders.file_of(kind), 0, None)
        began = guard.used()
        before, self._before = self._before, holders.look(roots=[(kind.__name__, dataset, place)])
        guard.asked(guard.used() - began)
        batches, self._looked_at = self._batches - self._looked_at, self._batches
        grown = [
            (held.host - before[key].host, held)
            for key, held in self._before.items()
            if key in before
        ]
        if not grown:
            return
        growth, holder = max(grown, key=lambda g: g[0])
        if growth < SHARE * risen or holder.fills:
            return
        self._looks = MOST_LOOKS
        link.send(
            "worker",
            {
                "worker": int(info.id),
                "workers": int(info.num_workers),
                "name": holder.name,
                "kind": holder.kind,
                "file": holder.file,
                "line": holders.line_of(holder),
                "growth": growth,
                "batches": batches,
                "held": holder.host,
            },
        )
