"""The steps of a training loop: where the program is, how long each part took, and the rows told to the monitor.

One training loop a process is assumed; hooks of several threads at once would only blur the times. A step's figures are
kept as they are and written as rows a few times a second: between two steps the program has driven our code out of the
processor's caches, and each line run there costs ten times what it does in a loop. Commands of the monitor are carried out
here, at the end of a step, in the thread that trains.
"""

import time
import weakref

from .. import guard, link, process, wire
from . import host

now = guard.now

FLUSH_NS = 200000000
MAX_ROWS = 64  # rows kept at most before they are sent
CLOSE_STEPS = 40  # read one by one after a command: the monitor suspects something; what that costs is made up for later

step = 0
phase = "start"  # start, load, forward, backward, optimizer, eval, save
wait_ns = backward_ns = optimizer_ns = 0
micro_batches = 0
at_backward = {}  # device -> allocated bytes when the last backward pass began
ended_ns = now()

_taken = []  # steps not yet told: (step, ended, times, readings, at_backward of each, host figures)
_flushed_ns = now()
_unread = 0  # steps closed since the last row: what they took is spread evenly over the next row's
_told = 0  # the step of the last row
_awake = 0  # step before which hooks do not rest: the monitor looks closely at this process
resting = 0  # steps for which hooks only count: they have cost more than their share
_last = None  # how the last step's devices are read
_after_step = []  # functions of the step number, called when a step has ended
_before_backward = []  # functions called once, when the first backward pass begins
_commands = {}  # name -> function of the command, gives the text of the answer


class Seldom:
    """Takes a reading only as often as its own cost allows, and gives the last one in between.

    glibc walks every free chunk for mallinfo2, the kernel adds up counters for statm and torch builds a dictionary of a
    hundred figures for its statistics: short steps feel each of them.
    """

    def __init__(self, share):
        self.share, self.due, self.last = share, 0, None

    def __call__(self, read, *args):
        began = now()
        if began >= self.due:
            self.last = read(*args)
            self.due = began + int((now() - began) / self.share)
        return self.last


_resident = Seldom(0.0005)  # the monitor reads it four times a second anyway
_heap_beside_cuda = Seldom(0.0005)


def begin(framework, version, **more):
    """Begins the watch of a framework whose hooks are in place: tells the monitor."""
    if "collect" not in _commands:
        from .. import farewell

        farewell.before(_end)
        command("collect", _collect)
    process.remember(framework, "framework", dict({"name": framework, "version": version}, **more))


def command(name, fn):
    """Sets what a command of the monitor does. fn takes the command and gives a sentence, or (sentence, path)."""
    _commands[name] = fn


def after_step(fn):
    """Calls fn(step) after each step, inside the cost accounting."""
    _after_step.append(fn)


def before_backward(fn):
    """Calls fn() once, when the first backward pass begins."""
    _before_backward.append(fn)


def backward_begins():
    """Notes where the program is."""
    global phase
    phase = "backward"
    while _before_backward:
        _before_backward.pop()()


def count():
    """Counts a step that passed unseen, between two that are."""
    global step, _unread
    step += 1
    _unread += 1


def close(read, devices):
    """Ends a step. read(device) gives (device, allocated, reserved, peak, split, retries, ooms) of each of the devices."""
    global phase, _last
    ended = now()
    if step == 0:
        guard.start()  # the share of time is that of steps, not of loading data and building the model
    count()
    _last = read, devices
    took = (ended - ended_ns) // _unread
    _take(ended)
    phase = "forward"
    for fn in _after_step:
        fn(step)
    if ended - _flushed_ns > FLUSH_NS or len(_taken) >= MAX_ROWS:
        flush()
        obey()
    _rest(took)


def _rest(took):
    """Lets hooks rest for as many steps as it takes to come back to their share of time, though not for long."""
    global resting
    over = guard.overspent()
    if over > 0 and step >= _awake:
        resting = int(min(over / guard.BUDGET, FLUSH_NS) // max(took, 1))


def rest():
    """A step while hooks rest: it is counted, and the next one begins with clean times."""
    global resting, ended_ns, wait_ns, backward_ns, optimizer_ns, micro_batches, _unread
    count()
    resting -= 1
    if resting <= 0:
        ended_ns, wait_ns, backward_ns, optimizer_ns, micro_batches, _unread = now(), 0, 0, 0, 0, 0


def _take(ended):
    """Takes the figures of the step that ended and starts the times anew."""
    global ended_ns, wait_ns, backward_ns, optimizer_ns, micro_batches, _unread, _told
    read, devices = _last
    _told = step
    # On a card the host's heap is of second rank; without one it is what leaks are seen in.
    heap = _heap_beside_cuda(host.heap) if devices else host.heap()
    _taken.append((step, ended, (ended - ended_ns, wait_ns, backward_ns, optimizer_ns, micro_batches, _unread),
                   [read(device) for device in devices] or _NO_DEVICE, dict(at_backward), _resident(host.memory), heap))
    ended_ns, wait_ns, backward_ns, optimizer_ns, micro_batches, _unread = ended, 0, 0, 0, 0, 0


_NO_DEVICE = [(-1, 0, 0, 0, 0, 0, 0)]


def _rows(taken, clock):
    """A step's rows, one a device. clock is what the wall clock shows when perf_counter is 0."""
    number, ended, times, readings, before, (resident, anonymous), heap = taken
    unread = times[-1]
    unit = 1000 * unread
    times = tuple(took // unit for took in times[:4]) + (times[4] // unread,)
    for device, allocated, reserved, peak, split, retries, ooms in readings:
        yield "[%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d,%d]" % (
            (number, device, (clock + ended) // 1000) + times + (allocated, reserved, peak, before.get(device, 0), split, retries,
                                                               ooms, resident, anonymous, heap))


def flush():
    """Sends the steps taken so far."""
    global _flushed_ns
    _flushed_ns = now()
    if not _taken:
        return
    clock = time.time_ns() - _flushed_ns
    rows = ",".join(row for taken in _taken for row in _rows(taken, clock))
    del _taken[:]
    link.send_line(('{"t":"steps","rows":[%s],"spent_us":%d,"elapsed_us":%d}\n' % (
        rows, guard.spent_ns // 1000, (_flushed_ns - guard.began_ns) // 1000)).encode("ascii"))


def _end():
    """Tells the last step, even if it could not be afforded."""
    global _unread
    if step != _told and _last is not None:
        _unread = max(_unread, 1)  # a rest that has just ended starts the times anew
        _take(now())
    flush()


def obey():
    """Carries out the commands that have arrived. What they cost was asked for and is not the hooks'."""
    global _awake
    commands = link.commands()
    if commands:
        _awake = step + CLOSE_STEPS
        before = guard.used()
        _carry_out(commands)
        guard.spent_ns -= guard.used() - before


def _carry_out(commands):
    for asked in commands:
        fn, path = _commands.get(asked.get("do")), ""
        try:
            said = fn(asked) if fn is not None else None
            ok = fn is not None
            if not ok:
                said = "unknown command %s" % asked.get("do")
            elif isinstance(said, tuple):
                said, path = said
        except Exception as error:
            ok, said = False, "%s: %s" % (type(error).__name__, str(error)[:300])
        link.send("done", {"id": asked.get("id", 0), "ok": ok, "said": said or "", "path": path})


def mark(name, begin, allocated=0, reserved=0):
    """Tells that a phase other than a plain step began or ended."""
    flush()
    link.send("phase", {"phase": name, "begin": begin, "step": step, "at_us": time.time_ns() // 1000,
                        "allocated": allocated, "reserved": reserved})


def _collect(asked):
    import gc

    return "collected %d objects" % gc.collect()


class Leader:
    """Tells which of a program's optimizers ends a step: the first one that stepped, as long as it goes on stepping.

    A GAN steps two optimizers a batch and a fused backward hundreds, yet a batch is one step. When the leader has been
    silent for several rounds of the others (it was for a finished stage, or is gone) the next to step takes over.
    """

    def __init__(self):
        self._leader = lambda: None  # a weak reference: an optimizer is not kept alive by us
        self._others = set()
        self._silence = 0

    def leads(self, optimizer):
        return self._leader() is optimizer

    def ends_step(self, optimizer):
        if self._leader() is optimizer:
            self._silence = 0
            return True
        self._others.add(id(optimizer))
        self._silence += 1
        if self._leader() is not None and self._silence <= 3 * len(self._others):
            return False
        self._leader, self._silence, self._others = weakref.ref(optimizer), 0, set()
        return True
