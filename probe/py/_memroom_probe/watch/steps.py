"""The steps of a training loop: where the program is, how long each part took, and the rows told to
the monitor.

One training loop a process is assumed; hooks of several threads at once would only blur the times.
Between two steps the program has driven our code out of the processor's caches, and each line run
there costs ten times what it does in a loop. So short steps are not all read: hooks rest in
between, evenly, and rows are sent a few times a second, as Python prints lists of numbers. Commands
of the monitor are carried out here, at the end of a step, in the thread that trains.
"""

from __future__ import annotations

import time
import weakref
from typing import Any, Callable, Dict, Sequence, Tuple, Union

from .. import guard, link, process
from . import host

# device, then allocated, reserved, peak allocated and inactive split bytes, retries, ooms
Reading = Tuple[int, int, int, int, int, int, int]
Read = Callable[[int], Reading]
# what a command of the monitor does: gives a sentence, or (sentence, path)
Command = Callable[[Dict[str, Any]], Union[str, Tuple[str, str]]]

now = guard.now

FLUSH_NS = 300000000
PAGES_NS = 1000000000  # the monitor reads pages by itself
MAX_ROWS = 64  # rows kept at most before they are sent
MOST_GAP, QUIET_GAP = (
    5,
    8,
    # steps from one reading to the next as long as hooks have something left to spend: while memory
    # rises,
)
# so that a leak is known within 40 steps, and while it does not
# read one by one: states, workspaces and kernels are made in them, and must not hide what begins
# there
FIRST_STEPS = 4
LEVEL = 4096  # bytes of the heap that are no rise
NEAR = 20  # steps after a rise within which memory counts as rising
# steps for which memory has risen at every reading: reported at once, so that the monitor can look
# while the rise is young
SUSPICIOUS = 12
HEAP_SHARE = 0.0015  # of a step's time for the heap beside a card
# of a step's time that readings take by themselves; the rest of the budget is for telling them
SHARE = 0.0030
_NEVER = 1 << 62
CLOSE_STEPS = 40  # read without long rests after a command: the monitor suspects something

NOTHING: Reading = (-1, 0, 0, 0, 0, 0, 0)  # of a program without a card


class Loop:
    """The training loop of this process. Hooks of frameworks write what they see into it."""

    __slots__ = (
        "_answers",
        "_asked",
        "_awake",
        "_before_backward",
        "_by_pages",
        "_calls",
        "_clock",
        "_commands",
        "_cost",
        "_due",
        "_floor",
        "_flushed_ns",
        "_heap",
        "_heap_due",
        "_last",
        "_level",
        "_pages",
        "_pages_ns",
        "_rose",
        "_spent",
        "_taken",
        "_told",
        "_unread",
        "_usual",
        "_wake",
        "at_backward",
        "backward_ns",
        "ended_ns",
        "first_backward",
        "flushes",
        "glance_ns",
        "micro_batches",
        "optimizer_ns",
        "phase",
        "resting",
        "step",
        "wait_ns",
    )

    def __init__(self) -> None:
        self.step = 0
        self.phase = "start"  # start, load, forward, backward, optimizer, eval, save
        self.wait_ns = self.backward_ns = self.optimizer_ns = 0
        self.micro_batches = 0
        self.first_backward = True  # none has begun yet
        # device -> allocated bytes when the last backward pass began
        self.at_backward: dict[int, int] = {}
        self.ended_ns = now()
        self.flushes = 0
        self.resting = 0  # steps for which hooks only count
        self.glance_ns = guard.GLANCES_NS  # what each of those is taken to cost

        self._taken: list[list[int]] = []  # rows not yet reported
        self._unread = 0  # steps closed since the last row, which share its times evenly
        self._told = 0  # the step of the last row
        self._floor = 0  # memory as last read
        self._rose = self._level = 0  # last step at which it had risen, and at which it had not
        self._asked = 0  # step at which the monitor was told of a rise
        self._answers = 0  # readings at which its answer is looked for
        # malloc's bytes as last read beside a card, and the step at which they are read again
        self._heap = self._heap_due = 0
        # resident and anonymous bytes as last read: now and then, or at each reading where the
        # heap says little, or rises: what is freed between kept blocks stays with the process
        self._pages: tuple[int, int] | None = None
        self._pages_ns = 0
        self._by_pages = False  # most of the process's memory is another allocator's
        # what the wall clock shows when perf_counter is 0, renewed whenever rows are reported
        self._clock = time.time_ns() - now()
        self._flushed_ns = now()
        # step before which hooks do not rest for long: the monitor looks closely at this process
        self._awake = 0
        self._cost = 50000  # what one reading usually takes, nanoseconds
        self._usual = 0  # and a step; long ones, with an evaluation in them, hardly lift it
        self._spent = 0  # by all hooks until the last reading
        # how the last step's devices are read
        self._last: tuple[Read, Sequence[int]] | None = None
        # (step, function of the step number, called when that step has ended, whether hooks are
        # woken for it)
        self._calls: list[tuple[int, Callable[[int], object], bool]] = []
        self._due = self._wake = _NEVER  # the first of them; the first hooks are woken for
        # functions called once, when the first backward pass begins
        self._before_backward: list[Callable[[], object]] = []
        self._commands: dict[str, Command] = {}

    def begin(self, framework: str, version: str, **more: Any) -> None:
        """Begins the watch of a framework whose hooks are in place, and reports that."""
        if "collect" not in self._commands:
            from .. import farewell

            farewell.before(self._end)
            self.command("collect", self._collect)
        process.remember(
            framework, "framework", dict({"name": framework, "version": version}, **more)
        )

    def command(self, name: str, fn: Command) -> None:
        """Sets what a command of the monitor does."""
        self._commands[name] = fn

    def at(self, number: int, fn: Callable[[int], object], wake: bool = False) -> None:
        """Calls fn(step), once, when that step has ended, or the first after it that is read;
        inside the cost accounting.
        """
        self._calls.append((number, fn, wake))
        self._next_call()

    def _next_call(self) -> None:
        self._due = min([call[0] for call in self._calls] or [_NEVER])
        self._wake = min([call[0] for call in self._calls if call[2]] or [_NEVER])

    def _call(self) -> None:
        """Makes the calls that are due."""
        ready = [call for call in self._calls if call[0] <= self.step]
        self._calls[:] = [call for call in self._calls if call[0] > self.step]
        self._next_call()
        for _, fn, _ in ready:
            part = fn.__module__.rpartition(".")[2]
            if part not in guard.ledger.given_up:
                guard.within(part, fn, self.step)

    def before_backward(self, fn: Callable[[], object]) -> None:
        """Calls fn() once, when the first backward pass begins."""
        self._before_backward.append(fn)

    def backward_begins(self) -> None:
        """The first backward pass begins, or the first after an evaluation."""
        self.phase, self.first_backward = "backward", False
        while self._before_backward:
            self._before_backward.pop()()

    def count(self) -> None:
        """Counts a step that passed unseen, between two that are."""
        self.step += 1
        self._unread += 1

    def close(self, read: Read, devices: Sequence[int]) -> None:
        """Ends a step. read(device) gives (device, allocated, reserved, peak, split, retries, ooms)
        of each of the devices.
        """
        ended = now()
        if self.step == 0:
            # the share of time is that of steps, not of loading data and building the model
            guard.start()
        self.step += 1
        self._unread += 1
        took = (ended - self.ended_ns) // self._unread
        self._last = read, devices
        self._usual = min(took, 5 * self._usual // 4) if self.step > 2 else took
        guard.ledger.grace_ns = (
            guard.CARD_NS if devices else max(guard.GRACE_NS, int(guard.GRACE_STEPS * self._usual))
        )
        self._take(ended, read, devices)
        self.phase = "forward"
        if self.step >= self._due:
            self._call()
        if (
            ended - self._flushed_ns > FLUSH_NS
            or len(self._taken) >= MAX_ROWS
            or self._suspicious()
        ):
            self.flush()
            self.obey()
        elif self._answers and self.step > self._asked:
            self._answers -= 1
            self.obey()
        # Telling rows or counting weights now and then is not what a reading costs: the estimate
        # falls at once and rises slowly.
        if self.step > 2:
            self._cost = max(
                min(guard.ledger.spent_ns - self._spent, 5 * self._cost // 4 + 2000), 10000
            )
        self.resting = max(0, min(self._gap(took), self._wake - self.step) - 1)
        guard.ledger.spent_ns += self.resting * self.glance_ns
        self._spent = guard.ledger.spent_ns

    def _suspicious(self) -> bool:
        """Says, once for each rise, that memory has risen at every reading for some steps: the
        monitor is told at once, so that it can look closer while the rise is young. Its answer is
        looked for at the next readings.
        """
        if self._asked > self._level or self.step < self._level + SUSPICIOUS:
            return False
        self._asked, self._answers = self.step, 3
        return True

    def _gap(self, took: int) -> int:
        """Steps until the next reading. Evenly as long as hooks are within their share, and not too
        far apart while they have anything left; when they have spent it all, up to twice as far
        apart as their share asks for.
        """
        fair = guard.ledger.ease * self._cost / (SHARE * took + 1)
        over = guard.overspent()
        if self.step < FIRST_STEPS:
            return 1
        if (over < 0 or self.step < self._awake) and guard.ledger.ease == 1:
            return int(min(fair + 1, MOST_GAP if self.step < self._rose + NEAR else QUIET_GAP))
        return 1 + int(
            min(
                fair + over / (guard.BUDGET * took + 1),
                2 * max(fair, MOST_GAP),
                1 + guard.ledger.ease * FLUSH_NS // (took + 1),
            )
        )

    def rest(self) -> None:
        """Counts a step while hooks rest. What that costs was charged when the rest began."""
        self.step += 1
        self.resting -= 1
        if self.resting <= 0:
            self._begin_times(now())

    def _take(self, ended: int, read: Read, devices: Sequence[int]) -> None:
        """Takes the figures of the step that ended as rows, one a device (see wire.STEP_COLUMNS),
        and starts the times anew.
        """
        self._told = self.step
        took, unread = ended - self.ended_ns, self._unread
        if not devices:
            self._heap = host.heap()
        elif self.step >= self._heap_due:
            # of second rank beside a card, and glibc walks every free chunk of a large program
            began = now()
            self._heap = host.heap()
            self._heap_due = self.step + max(
                MOST_GAP, int((now() - began) * unread / (HEAP_SHARE * took + 1))
            )
        heap = floor = self._heap
        pages = self._pages
        if pages is None or self._by_pages or not devices and self.step < self._rose + NEAR:
            pages = self._read_pages(heap)
        unit = 1000 * unread
        times = [
            (self._clock + ended) // 1000,
            took // unit,
            self.wait_ns // unit,
            self.backward_ns // unit,
            self.optimizer_ns // unit,
            self.micro_batches // unread,
        ]
        for device in devices or (-1,):
            figures = read(device) if devices else NOTHING
            _, allocated, reserved, peak, split, retries, ooms = figures
            if devices:
                floor = allocated
            else:
                split = host.state.free
            then = self.at_backward.get(device, 0)
            self._taken.append(
                [self.step, device, *times, allocated, reserved, peak, then, split, retries, ooms]
                + [*pages, heap]
            )
        if floor > self._floor + (0 if devices else LEVEL):
            self._rose = self.step
        else:
            self._level = self.step
        self._floor = floor
        self._begin_times(ended)

    def _begin_times(self, ended: int) -> None:
        """The next step begins, with clean times."""
        self.ended_ns, self._unread = ended, 0
        self.wait_ns = self.backward_ns = self.optimizer_ns = self.micro_batches = 0

    def _read_pages(self, heap: int) -> tuple[int, int]:
        self._pages_ns = now()
        self._pages = pages = host.memory()
        self._by_pages = heap < pages[1] // 4
        return pages

    def flush(self) -> None:
        """Sends the steps taken so far."""
        self._flushed_ns = now()
        self.flushes += 1
        self._clock = time.time_ns() - self._flushed_ns
        if not self._taken:
            return
        if self._flushed_ns - self._pages_ns > PAGES_NS:
            self._read_pages(self._taken[-1][-1])
        rows = repr(self._taken)
        del self._taken[:]
        spent, elapsed = guard.cost()
        link.send_line(
            (
                '{"t":"steps","rows":%s,"spent_us":%d,"elapsed_us":%d}\n'
                % (rows, spent // 1000, elapsed // 1000)
            ).encode("ascii")
        )

    def _end(self) -> None:
        """Tells the last step, even if it could not be afforded."""
        if self.step != self._told and self._last is not None:
            # a rest does not count them, and one that has just ended starts the times anew
            self._unread = self.step - self._told if self.resting else max(self._unread, 1)
            self._take(now(), *self._last)
        self.flush()

    def obey(self) -> None:
        """Carries out the commands that have arrived. What they cost was asked for: it counts, but
        not as the hooks'.
        """
        before = guard.used()
        commands = link.commands()
        if commands:
            self._awake = self.step + CLOSE_STEPS
            self._carry_out(commands)
            if self._heap:
                # what we keep of it ourselves is no growth of the program's
                host.state.own += max(0, host.heap() - self._heap)
            guard.asked(guard.used() - before)

    def _carry_out(self, commands: list[dict[str, Any]]) -> None:
        for asked in commands:
            fn, path = self._commands.get(asked.get("do", "")), ""
            try:
                ok = fn is not None and guard.may_ask()
                said = fn(asked) if fn is not None and ok else None
                if fn is None:
                    said = "unknown command %s" % asked.get("do")
                elif not ok:
                    said = "commands have taken %d ms of this program's time" % (
                        guard.ledger.asked_ns // 1000000
                    )
                elif isinstance(said, tuple):
                    said, path = said
            except Exception as error:
                ok, said = False, "%s: %s" % (type(error).__name__, str(error)[:300])
            link.send(
                "done",
                {
                    "id": asked.get("id", 0),
                    "do": asked.get("do"),
                    "ok": ok,
                    "said": said or "",
                    "path": path,
                },
            )

    def mark(self, name: str, begin: bool, read: Reading = NOTHING) -> None:
        """Tells that a phase other than a plain step began or ended."""
        self.flush()
        link.send(
            "phase",
            {
                "phase": name,
                "begin": begin,
                "step": self.step,
                "at_us": time.time_ns() // 1000,
                "allocated": read[1],
                "reserved": read[2],
                "device": read[0],
                "peak": read[3],
            },
        )

    def _collect(self, asked: dict[str, Any]) -> str:
        import gc

        return "collected %d objects" % gc.collect()


class Leader:
    """Tells which of a program's optimizers ends a step: the first one that stepped, as long as it
    goes on stepping.

    A GAN steps two optimizers a batch and a fused backward hundreds, yet a batch is one step. When
    the leader has been silent for several rounds of the others (it was for a finished stage, or is
    gone) the next to step takes over.
    """

    def __init__(self) -> None:
        # a weak reference: an optimizer is not kept alive by us
        self.leads: Callable[[], object] = lambda: None
        self.silence = 0  # steps of others since it stepped
        self._others: set[int] = set()

    def ends_step(self, optimizer: object) -> bool:
        if self.leads() is optimizer:
            self.silence = 0
            return True
        self._others.add(id(optimizer))
        self.silence += 1
        if self.leads() is not None and self.silence <= 3 * len(self._others):
            return False
        self.leads, self.silence, self._others = weakref.ref(optimizer), 0, set()
        return True
