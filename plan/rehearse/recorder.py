"""Keeps the order of allocations of a rehearsal and writes it for `memroom plan`
(docs/format/rehearsal.md).

An allocation is a storage on the pretended card. It is noted when an operation first returns it and
released by a weak reference when its last holder lets go: Python variables, saved tensors and
gradient slots of the real autograd engine all count, so the moments are those of a real run.
Everything stays in memory until the end because what an allocation is for (a gradient, an
activation, ...) is often known only later.
"""

from __future__ import annotations

import json
import os
import threading
import weakref
from typing import Any, TextIO

from .lines import Lines

CATEGORIES = (
    "unknown",
    "weights",
    "gradients",
    "optimizer",
    "activations",
    "loss",
    "temporary",
    "workspace",
    "input",
)
UNKNOWN, WEIGHTS, GRADIENTS, OPTIMIZER, ACTIVATIONS, LOSS, TEMPORARY, WORKSPACE, INPUT = range(9)

FORMAT = "memroom-rehearsal"
VERSION = 1


class Tag:
    """What an allocation is for, which operation made it in which module and phase, and the line of
    the program that asked.
    """

    __slots__ = ("category", "op", "module", "phase", "line")

    def __init__(self, category: int, op: str, module: str, phase: str, line: str) -> None:
        self.category, self.op, self.module, self.phase = category, op, module, phase
        self.line = line


class Recorder:
    """The list of events. Free of torch, so that it can be read and tested on its own."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a release may run inside any allocation, even one of ours
        # (id, size) for an allocation, (id,) for a release, ("mark", step, phase), ("empty",),
        # ("larger", id, size)
        self.events: list[tuple[Any, ...]] = []
        self.tags: dict[int, Tag] = {}  # by allocation id
        self.live: dict[int, int] = {}  # id -> rounded bytes
        self.streams: dict[int, int] = {}  # id -> stream, where it is not the default one
        # id of the storage object -> (weak reference, allocation id)
        self.refs: dict[int, tuple[weakref.ref[Any], int]] = {}
        self.count = 0
        self.allocated = 0
        self.peak = 0
        self.trained = (
            0  # bytes asked for in forward and backward passes since somebody set it to 0
        )
        self.step = 0
        self.phase = "load"
        self.stream = 0
        self.warnings: dict[str, int] = {}  # text -> how often
        self.facts: dict[str, bool] = {"cublas": False}
        self.closed = False
        self.lines = Lines()

    # -- events
    # ------------------------------------------------------------

    def alloc(self, size: int, op: str, module: str = "", category: int = UNKNOWN) -> int:
        """Notes an allocation of `size` requested bytes and returns its id; 0 bytes ask nothing of
        the allocator.
        """
        size = int(size)
        if size <= 0 or self.closed:
            return 0
        with self.lock:
            self.count += 1
            ident = self.count
            self.events.append((ident, size))
            self.tags[ident] = Tag(category, op, module, self.phase, self.lines.here())
            if self.stream:
                self.streams[ident] = self.stream
            if self.phase in ("forward", "backward"):
                self.trained += size
            rounded = (size + 511) // 512 * 512
            self.live[ident] = rounded
            self.allocated += rounded
            if self.allocated > self.peak:
                self.peak = self.allocated
            return ident

    def free(self, ident: int) -> None:
        if self.closed:
            return
        with self.lock:
            rounded = self.live.pop(ident, None)
            if rounded is None:
                return
            self.allocated -= rounded
            self.events.append((ident,))
            tag = self.tags[ident]
            if tag.category == UNKNOWN and tag.phase == self.phase and self.phase != "load":
                tag.category = TEMPORARY  # died in the phase that made it
            elif (
                tag.category == UNKNOWN
                and tag.op == "_to_copy"
                and tag.phase == "load"
                and self.phase != "load"
            ):
                # moved before the first forward pass and given up while training: the first batch
                tag.category = INPUT

    def larger(self, ident: int, size: int) -> None:
        """On the card the workspace of this allocation may be so many bytes."""
        if not self.closed:
            self.events.append(("larger", ident, size))

    def hold(
        self, storage: object, size: int, op: str, module: str = "", category: int = UNKNOWN
    ) -> int:
        """Notes a storage; its release is noted when the storage dies. Returns the allocation's
        id.
        """
        ident = self.alloc(size, op, module, category)
        if ident:
            self._follow(storage, ident)
        return ident

    def _follow(self, storage: object, ident: int) -> None:
        key = id(storage)
        self.refs[key] = (
            weakref.ref(storage, lambda _: self._gone(key, ident)),
            ident,
        )

    def resize(self, storage: object, size: int) -> None:
        """A storage gives up its memory, or gets other memory, and lives on."""
        entry = self.refs.get(id(storage))
        if entry is None or entry[0]() is not storage:
            return
        tag = self.tags[entry[1]]
        ident = self.alloc(size, tag.op, tag.module, tag.category)
        self.free(entry[1])
        if ident:
            self._follow(storage, ident)

    def _gone(self, key: int, ident: int) -> None:
        known = self.refs.get(key)
        if known is not None and known[1] == ident:
            del self.refs[key]
        self.free(ident)

    def known(self, storage: object) -> int:
        """The id of the allocation behind a storage, or 0."""
        entry = self.refs.get(id(storage))
        return entry[1] if entry is not None and entry[0]() is storage else 0

    def categorize(self, storage: object, category: int) -> None:
        ident = self.known(storage)
        if ident:
            self.tags[ident].category = category

    def mark(self, phase: str, step: int | None = None) -> None:
        if step is not None:
            self.step = step
        elif phase == self.phase:
            return
        with self.lock:
            self.phase = phase
            self.events.append(("mark", self.step, phase))

    def empty_cache(self) -> None:
        self.events.append(("empty",))

    def settle(self, phase: str, category: int, since: int = 0) -> None:
        """What a phase left behind without a known purpose belongs to `category`, if it was made
        after allocation `since`.
        """
        for ident in self.live:
            tag = self.tags[ident]
            if tag.category == UNKNOWN and tag.phase == phase and ident > since:
                tag.category = category

    def warn(self, text: str) -> None:
        self.warnings[text] = self.warnings.get(text, 0) + 1

    # -- the file
    # ------------------------------------------------------------

    def write(self, path: str, head: dict[str, Any], end: dict[str, Any]) -> None:
        """Writes the whole record beside its place and renames it, so that a reader never sees half
        of one. What is no regular file, such as /dev/null or a pipe, is written to and never
        replaced.
        """
        self.closed = True
        special = os.path.exists(path) and not os.path.isfile(path)
        partial = path if special else "%s.%d.part" % (path, os.getpid())
        with open(partial, "w") as out:
            out.write(json.dumps(dict(head, format=FORMAT, version=VERSION)) + "\n")
            # (category, op, module, line of the program) -> the number of its tag
            numbers: dict[tuple[int, str, str, str], int] = {}
            for e in self.events:
                out.write(json.dumps(self._line(e, numbers, out), separators=(",", ":")) + "\n")
            tail = dict(
                end,
                facts=self.facts,
                warnings=[{"text": t, "count": n} for t, n in self.warnings.items()],
            )
            out.write(json.dumps({"end": tail}) + "\n")
        if not special:
            os.replace(partial, path)

    def _line(
        self, e: tuple[Any, ...], numbers: dict[tuple[int, str, str, str], int], out: TextIO
    ) -> list[Any]:
        if e[0] == "mark":
            return ["m", e[1], e[2]]
        if e[0] == "empty":
            return ["e"]
        if e[0] == "larger":
            return ["w", e[1], e[2]]
        if len(e) == 1:
            return ["f", e[0]]
        ident, size = e
        tag = self.tags[ident]
        key = (tag.category, tag.op, tag.module, tag.line)
        number = numbers.get(key)
        if number is None:
            number = numbers[key] = len(numbers) + 1
            out.write(
                json.dumps(["t", number, CATEGORIES[tag.category], tag.op, tag.module, tag.line])
                + "\n"
            )
        stream = self.streams.get(ident)
        return ["a", ident, size, number] + ([stream] if stream else [])
