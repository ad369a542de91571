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
# steps for which memory has risen at every reading: told at once, so that the monitor can look
# while the rise is young
SUSPICIOUS = 12
HEAP_SHARE = 0.0015  # of a step's time for the heap beside a card
# of a step's time that readings take by themselves; the rest of the budget is for telling them
SHARE = 0.0030
_NEVER = 1 << 62
CLOSE_STEPS = 40  # read without long rests after a command: the monitor suspects something

step = 0
phase = "start"  # start, load, forward, backward, optimizer, eval, save
wait_ns = backward_ns = optimizer_ns = 0
micro_batches = 0
first_backward = True  # none has begun yet
at_backward: dict[int, int] = {}  # device -> allocated bytes when the last backward pass began
ended_ns = now()

_taken: list[list[int]] = []  # rows not yet told
_floor = 0  # memory as last read
_rose = 0  # last step at which it had risen
_level = 0  # and at which it had not
_asked = 0  # step at which the monitor was told of a rise
_answers = 0  # readings at which its answer is looked for
_heap = _heap_due = (
    0  # malloc's bytes as last read beside a card, and the step at which they are read again
)
_pages_ns = 0
# resident and anonymous bytes as last read: now and then, or at each reading where the heap says
# little
_pages: tuple[int, int] | None = None
_by_pages = False  # most of the process's memory is not malloc's: another allocator
_clock = (
    time.time_ns() - now()
)  # what the wall clock shows when perf_counter is 0, renewed whenever rows are told
_flushed_ns = now()
flushes = 0
_unread = 0  # steps closed since the last row: what they took is spread evenly over the next row's
_told = 0  # the step of the last row
_awake = (
    0  # step before which hooks do not rest for long: the monitor looks closely at this process
)
resting = 0  # steps for which hooks only count
glance_ns = guard.GLANCES_NS  # what each of those is taken to cost
_cost = 50000  # what one reading usually takes, nanoseconds
_usual = 0  # and a step; long ones, with an evaluation in them, hardly lift it
_spent = 0  # by all hooks until the last reading
_last: tuple[Read, Sequence[int]] | None = None  # how the last step's devices are read
_due = _wake = _NEVER  # the first of _calls; the first that hooks must be awake for
# (step, function of the step number, called when that step has ended, whether hooks are woken for
# it)
_calls: list[tuple[int, Callable[[int], object], bool]] = []
# functions called once, when the first backward pass begins
_before_backward: list[Callable[[], object]] = []
_commands: dict[str, Command] = {}


def begin(framework: str, version: str, **more: Any) -> None:
    """Begins the watch of a framework whose hooks are in place: tells the monitor."""
    if "collect" not in _commands:
        from .. import farewell

        farewell.before(_end)
        command("collect", _collect)
    process.remember(framework, "framework", dict({"name": framework, "version": version}, **more))


def command(name: str, fn: Command) -> None:
    """Sets what a command of the monitor does."""
    _commands[name] = fn


def at(number: int, fn: Callable[[int], object], wake: bool = False) -> None:
    """Calls fn(step), once, when that step has ended, or the first after it that is read; inside
    the cost accounting.
    """
    _calls.append((number, fn, wake))
    _next_call()


def _next_call() -> None:
    global _due, _wake
    _due = min([call[0] for call in _calls] or [_NEVER])
    _wake = min([call[0] for call in _calls if call[2]] or [_NEVER])


def _call() -> None:
    """Makes the calls that are due."""
    ready = [call for call in _calls if call[0] <= step]
    _calls[:] = [call for call in _calls if call[0] > step]
    _next_call()
    for _, fn, _ in ready:
        part = fn.__module__.rpartition(".")[2]
        if part not in guard.given_up:
            before = guard.used()
            fn(step)
            guard.spend_inside(guard.used() - before, part)


def before_backward(fn: Callable[[], object]) -> None:
    """Calls fn() once, when the first backward pass begins."""
    _before_backward.append(fn)


def backward_begins() -> None:
    """The first backward pass begins, or the first after an evaluation."""
    global phase, first_backward
    phase, first_backward = "backward", False
    while _before_backward:
        _before_backward.pop()()


def count() -> None:
    """Counts a step that passed unseen, between two that are."""
    global step, _unread
    step += 1
    _unread += 1


def close(read: Read, devices: Sequence[int]) -> None:
    """Ends a step. read(device) gives (device, allocated, reserved, peak, split, retries, ooms) of
    each of the devices.
    """
    global phase, step, _unread, _last, _cost, _spent, _usual, _answers, resting
    ended = now()
    if step == 0:
        # the share of time is that of steps, not of loading data and building the model
        guard.start()
    step += 1
    _unread += 1
    took = (ended - ended_ns) // _unread
    _last = read, devices
    _usual = min(took, 5 * _usual // 4) if step > 2 else took
    guard.grace_ns = (
        guard.CARD_NS if devices else max(guard.GRACE_NS, int(guard.GRACE_STEPS * _usual))
    )
    _take(ended, read, devices)
    phase = "forward"
    if step >= _due:
        _call()
    if ended - _flushed_ns > FLUSH_NS or len(_taken) >= MAX_ROWS or _suspicious():
        flush()
        obey()
    elif _answers and step > _asked:
        _answers -= 1
        obey()
    # Telling rows or counting weights now and then is not what a reading costs: the estimate falls
    # at once and rises slowly.
    if step > 2:
        _cost = max(min(guard.spent_ns - _spent, 5 * _cost // 4 + 2000), 10000)
    resting = max(0, min(_gap(took), _wake - step) - 1)
    guard.spent_ns += resting * glance_ns
    _spent = guard.spent_ns


def _suspicious() -> bool:
    """Says, once for each rise, that memory has risen at every reading for some steps: the monitor
    is told at once, so that it can look closer while the rise is young. Its answer is looked for at
    the next readings.
    """
    global _asked, _answers
    if _asked > _level or step < _level + SUSPICIOUS:
        return False
    _asked, _answers = step, 3
    return True


def _gap(took: int) -> int:
    """Steps until the next reading. Evenly as long as hooks are within their share, and not too far
    apart while they have anything left; when they have spent it all, up to twice as far apart as
    their share asks for.
    """
    fair = guard.ease * _cost / (SHARE * took + 1)
    over = guard.overspent()
    if step < FIRST_STEPS:
        return 1
    if (over < 0 or step < _awake) and guard.ease == 1:
        return int(min(fair + 1, MOST_GAP if step < _rose + 20 else QUIET_GAP))
    return 1 + int(
        min(
            fair + over / (guard.BUDGET * took + 1),
            2 * max(fair, MOST_GAP),
            1 + guard.ease * FLUSH_NS // (took + 1),
        )
    )


def rest() -> None:
    """A step while hooks rest: it is counted. What that costs was charged when the rest began."""
    global step, resting
    step += 1
    resting -= 1
    if resting <= 0:
        _rested()


def _rested() -> None:
    """The next step begins with clean times."""
    global ended_ns, wait_ns, backward_ns, optimizer_ns, micro_batches, _unread
    ended_ns, wait_ns, backward_ns, optimizer_ns, micro_batches, _unread = now(), 0, 0, 0, 0, 0


def _take(ended: int, read: Read, devices: Sequence[int]) -> None:
    """Takes the figures of the step that ended as rows, one a device (see wire.STEP_COLUMNS), and
    starts the times anew.
    """
    global \
        ended_ns, \
        wait_ns, \
        backward_ns, \
        optimizer_ns, \
        micro_batches, \
        _unread, \
        _told, \
        _floor, \
        _rose, \
        _level, \
        _heap, \
        _heap_due
    _told = step
    unit = 1000 * _unread
    if not devices:
        _heap = host.heap()
    elif (
        step >= _heap_due
    ):  # beside a card it is of second rank, and glibc walks every free chunk of a large program
        began = now()
        _heap = host.heap()
        _heap_due = step + max(
            MOST_GAP, int((now() - began) * _unread / (HEAP_SHARE * (ended - ended_ns) + 1))
        )
    heap = _heap
    if _pages is None or _by_pages:
        _read_pages(heap)
    resident, anonymous = _pages
    floor = heap
    if not devices:
        _taken.append(
            [
                step,
                -1,
                (_clock + ended) // 1000,
                (ended - ended_ns) // unit,
                wait_ns // unit,
                backward_ns // unit,
                optimizer_ns // unit,
                micro_batches // _unread,
                0,
                0,
                0,
                at_backward.get(-1, 0),
                0,
                0,
                0,
                resident,
                anonymous,
                heap,
            ]
        )
    for device in devices:
        _, allocated, reserved, peak, split, retries, ooms = read(device)
        floor = allocated
        _taken.append(
            [
                step,
                device,
                (_clock + ended) // 1000,
                (ended - ended_ns) // unit,
                wait_ns // unit,
                backward_ns // unit,
                optimizer_ns // unit,
                micro_batches // _unread,
                allocated,
                reserved,
                peak,
                at_backward.get(device, 0),
                split,
                retries,
                ooms,
                resident,
                anonymous,
                heap,
            ]
        )
    if floor > _floor + (0 if devices else LEVEL):
        _rose = step
    else:
        _level = step
    _floor = floor
    ended_ns, wait_ns, backward_ns, optimizer_ns, micro_batches, _unread = ended, 0, 0, 0, 0, 0


def _read_pages(heap: int) -> None:
    global _pages, _by_pages, _pages_ns
    _pages_ns = now()
    _pages = host.memory()
    _by_pages = heap < _pages[1] // 4


def flush() -> None:
    """Sends the steps taken so far."""
    global _flushed_ns, _clock, flushes
    _flushed_ns = now()
    flushes += 1
    _clock = time.time_ns() - _flushed_ns
    if not _taken:
        return
    if _flushed_ns - _pages_ns > PAGES_NS:
        _read_pages(_taken[-1][-1])
    rows = repr(_taken)
    del _taken[:]
    spent, elapsed = guard.cost()
    link.send_line(
        (
            '{"t":"steps","rows":%s,"spent_us":%d,"elapsed_us":%d}\n'
            % (rows, spent // 1000, elapsed // 1000)
        ).encode("ascii")
    )


def _end() -> None:
    """Tells the last step, even if it could not be afforded."""
    global _unread
    if step != _told and _last is not None:
        # a rest does not count them, and one that has just ended starts the times anew
        _unread = step - _told if resting else max(_unread, 1)
        _take(now(), *_last)
    flush()


def obey() -> None:
    """Carries out the commands that have arrived. What they cost was asked for: it counts, but not
    as the hooks'.
    """
    global _awake
    before = guard.used()
    commands = link.commands()
    if commands:
        _awake = step + CLOSE_STEPS
        _carry_out(commands)
        if _heap:
            host.own += max(
                0, host.heap() - _heap
            )  # what we keep of it ourselves is no growth of the program's
        guard.asked(guard.used() - before)


def _carry_out(commands: list[dict[str, Any]]) -> None:
    for asked in commands:
        fn, path = _commands.get(asked.get("do", "")), ""
        try:
            ok = fn is not None and guard.may_ask()
            said = fn(asked) if fn is not None and ok else None
            if fn is None:
                said = "unknown command %s" % asked.get("do")
            elif not ok:
                said = "commands have taken %d ms of this program's time" % (
                    guard.asked_ns // 1000000
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


def mark(name: str, begin: bool, read: Reading = (-1, 0, 0, 0, 0, 0, 0)) -> None:
    """Tells that a phase other than a plain step began or ended."""
    flush()
    link.send(
        "phase",
        {
            "phase": name,
            "begin": begin,
            "step": step,
            "at_us": time.time_ns() // 1000,
            "allocated": read[1],
            "reserved": read[2],
            "device": read[0],
            "peak": read[3],
        },
    )


def _collect(asked: dict[str, Any]) -> str:
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
