"""What a training step needs of a card, without one: `memroom.estimate` and `memroom.rehearse`.

The step runs on fake tensors in a fork of this process: models of a notebook, closures and local
functions are simply there, and nothing here changes. The child has a session of its own, its output
goes to a file, and it ends with the rehearsal, whatever the code in it does. The `memroom` command
plays what was recorded through its model of the allocator, as `memroom plan --rehearse` does.
"""

from __future__ import annotations

import faulthandler
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from types import FrameType, TracebackType
from typing import Any, Callable, Iterator, NamedTuple, NoReturn, Sequence

from . import notebook

TAIL = 4000  # characters of the child's output, or of a trace, that an error shows
LAST = 600  # and of the output of one that crashed
CRASHED = "Current thread 0x"  # begins faulthandler's words about where
LINES = 8  # lines of source in a table
# Arguments that hold whole numbers where only their shape is given.
WHOLE = ("ids", "labels", "mask", "tokens", "positions", "targets", "target", "label")


class RehearsalError(RuntimeError):
    """The code could not be rehearsed. `output` is what it printed."""

    def __init__(self, text: str, output: str = "") -> None:
        super().__init__(text)
        self.output = output


class Line(NamedTuple):
    """What one line of the program holds at the peak."""

    line: str
    bytes: int
    categories: dict[str, int]


class Phase(NamedTuple):
    """The highest bytes of one phase."""

    allocated: int
    reserved: int


class Point(NamedTuple):
    """Allocated bytes after an operation of the step that holds the peak."""

    op: int
    allocated: int
    phase: str


class Estimate:
    """The answer. Sizes are bytes; `low` and `high` bound `device`."""

    allocated: int
    reserved: int
    device: int
    low: int
    high: int
    fits: bool | None
    verdict: str
    phases: dict[str, Phase]
    categories: dict[str, int]
    lines: list[Line]
    curve: list[Point]
    warnings: list[str]

    def __init__(self, answer: dict[str, Any] | None = None) -> None:
        if answer is not None:
            self._fill(answer)

    def _fill(self, answer: dict[str, Any]) -> None:
        p = self.prediction = answer["prediction"]
        self.allocated, self.reserved = p["allocated_peak"], p["reserved_peak"]
        self.device, self.low, self.high = p["device_peak"], p["low"], p["high"]
        self.fits, self.verdict = p["fits"], p.get("verdict", "")
        self.phases = {
            one["phase"]: Phase(one["allocated"], one["reserved"]) for one in p["phases"] or ()
        }
        self.categories = {name: n for name, n in p["categories"].items() if n}
        self.lines = [
            Line(one["line"], one["bytes"], one["categories"]) for one in p.get("lines") or ()
        ]
        self.curve = [
            Point(one["op"], one["allocated"], one["phase"]) for one in answer.get("curve") or ()
        ]
        self.warnings = p["warnings"]
        self._text = answer["text"]

    @property
    def peak(self) -> int:
        """What the card gives up: `device`."""
        return self.device

    def __str__(self) -> str:
        return self._text.rstrip() if hasattr(self, "_text") else "not rehearsed yet"

    def __repr__(self) -> str:
        if not hasattr(self, "_text"):
            return "<memroom.Estimate: not rehearsed yet>"
        return "<memroom.Estimate: %s of the card, %s>" % (size(self.device), self.verdict)

    def svg(self, width: int = 720, height: int = 180) -> str:
        """Allocated bytes over the step that holds the peak, a colour a phase."""
        colours = {"forward": "#4c78a8", "backward": "#f58518", "optimizer": "#54a24b"}
        parts = [
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" '
            'font-family="sans-serif" font-size="11">' % (width, height + 20, width)
        ]
        top = max((p.allocated for p in self.curve), default=1) or 1
        wide = width / max(1, len(self.curve))
        shown = ""
        for i, p in enumerate(self.curve):
            tall = height * p.allocated / top
            parts.append(
                '<rect x="%.2f" y="%.2f" width="%.2f" height="%.2f" fill="%s"/>'
                % (i * wide, height - tall, wide + 0.2, tall, colours.get(p.phase, "#9d9da1"))
            )
            if p.phase != shown:
                parts.append('<text x="%.1f" y="%d">%s</text>' % (i * wide, height + 14, p.phase))
                shown = p.phase
        parts.append('<text x="4" y="12">%s allocated at the peak</text></svg>' % size(top))
        return "".join(parts)

    def _repr_html_(self) -> str:
        from html import escape

        rows = "".join(
            "<tr><td>%s</td><td style='text-align:right'>%s</td></tr>" % (escape(name), size(n))
            for name, n in sorted(self.categories.items(), key=lambda item: -item[1])
        )
        lines = "".join(
            "<tr><td><code>%s</code></td><td style='text-align:right'>%s</td></tr>"
            % (escape(one.line), size(one.bytes))
            for one in self.lines[:LINES]
        )
        return (
            "<div><b>%s</b> of the card (%s to %s)%s%s<div style='display:flex;gap:2em'>"
            "<table>%s</table><table>%s</table></div></div>"
        ) % (
            size(self.device),
            size(self.low),
            size(self.high),
            ": " + escape(self.verdict) if self.verdict else "",
            self.svg(),
            rows,
            lines,
        )


def size(n: float) -> str:
    """Bytes in the largest unit that leaves a whole part."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(n) < 1024 or unit == "GiB":
            break
        n /= 1024
    return "%.4g%s" % (n, unit)


def shortened(trace: str) -> str:
    """A long trace without its middle."""
    return trace if len(trace) <= TAIL else "%s\n  ...\n%s" % (trace[:1000], trace[1000 - TAIL :])


# --- the command that knows cards and the allocator


class Answers:
    """`memroom _estimates`: one question a line, one answer a line."""

    def __init__(self) -> None:
        command = os.environ.get("MEMROOM_BINARY") or notebook._command()
        if command is None:
            raise RehearsalError(
                "the memroom command was not found: install the wheel with pip, or put the binary "
                "on PATH"
            )
        self.process = subprocess.Popen(
            [command, "_estimates"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.caller: Any = None

    def ask(self, **question: Any) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()
            text = self.process.stdout.readline()
        except OSError:
            text = ""
        if not text:
            raise RehearsalError("the memroom command ended: is it of the same version as this?")
        answer: dict[str, Any] = json.loads(text)
        if answer.get("error"):
            raise RehearsalError(answer["error"])
        return answer

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.close()
        except OSError:
            pass
        self.process.stdout.close()
        self.process.wait()

    def read_caller(self, inside: Any) -> Any:
        """What a fork of this process has to know of it."""
        if self.caller is None:
            self.caller = inside.Caller()
            if "torch._dynamo" in sys.modules:
                self.caller.preload()
        self.caller.read()
        return self.caller

    def leave(self) -> None:
        """In a fork: what it starts must not keep the command waiting for questions."""
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


# --- the child


def _ends_with_parent() -> None:
    """Asks Linux to end this process with the one that waits for it, however that ends."""
    import ctypes

    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Rehearsed:
    """One rehearsal in a fork. `start` returns twice: True in the child."""

    def __init__(self, answers: Answers, gpu: str, steps: int, **more: Any) -> None:
        if not hasattr(os, "fork"):
            raise RehearsalError(
                "this system cannot fork: put the code into a script and use "
                "`memroom plan --rehearse -- python script.py`"
            )
        self.answers = answers
        self.asked = dict(more, gpu=gpu, steps=steps, torch=more.get("torch") or "2.11")
        self.child = 0
        self.status: int | None = None
        answer = answers.ask(ask="target", **self.asked)
        self.folder = answer["dir"]
        self.record = self._path("record.jsonl")
        self.target: dict[str, Any] = answer["target"]["target"]

    def start(self) -> bool:
        try:
            notebook._find_probe()
            import _memroom_probe.rehearse.inside as inside
        except ImportError as error:
            raise RehearsalError(
                "%s: install the wheel with pip, which brings it" % error
            ) from None
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError, AttributeError):
                pass
        caller = self.answers.read_caller(inside)
        self.child = os.fork()
        if self.child:
            caller.found = []
            return False
        self.child = os.getpid()
        try:
            os.setsid()
            _ends_with_parent()
            self.answers.leave()
            self._quieten()
            self.rehearsal = inside.begin(self.target, self.record, caller)
        except BaseException as error:
            self.broke(error)
        return True

    def _quieten(self) -> None:
        """The child's output goes to a file, and nobody types for it."""
        null = os.open(os.devnull, os.O_RDONLY)
        out = os.open(self._path("output"), os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        os.dup2(null, 0)
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.stdin = open(os.devnull)
        sys.stdout = sys.stderr = os.fdopen(out, "w", 1)
        faulthandler.enable(sys.stderr)
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    # in the child

    def finish(self) -> NoReturn:
        """The code came to its end. A fork of the child's own that gets here only leaves."""
        if os.getpid() == self.child:
            self.rehearsal.write("end")
        self.rehearsal._leave(0)

    def broke(self, error: BaseException) -> NoReturn:
        """Writes down what the code raised, and ends the process. SystemExit is an end."""
        try:
            self._broke(error)
        finally:
            os._exit(1)

    def _broke(self, error: BaseException) -> None:
        from _memroom_probe.rehearse import inside

        rehearsal = getattr(self, "rehearsal", None)
        if isinstance(error, SystemExit) and rehearsal is not None:
            self.finish()
        if os.getpid() == self.child:
            with open(self._path("error"), "w") as file:
                json.dump(inside.told(error, rehearsal), file)
            if rehearsal is not None:
                rehearsal.write("end")

    # in the parent

    def wait(self, timeout: float) -> None:
        end, pause = time.monotonic() + timeout, 0.001
        try:
            while True:
                pid, status = os.waitpid(self.child, os.WNOHANG)
                if pid:
                    self.status = status
                    break
                if time.monotonic() > end:
                    self._kill()
                    os.waitpid(self.child, 0)
                    raise RehearsalError(
                        "the code was not done after %g seconds and was ended: give it more "
                        "(timeout=...), or rehearse less of it" % timeout,
                        self.output(),
                    )
                time.sleep(pause)
                pause = min(0.05, pause * 1.5)
        except BaseException:
            if self.status is None:
                self._kill()
            raise
        self._kill()  # what it started and left behind

    def _kill(self) -> None:
        try:
            os.killpg(self.child, signal.SIGKILL)
        except OSError:
            pass

    def output(self) -> str:
        """The end of what the child printed; of a crash the part that says where."""
        try:
            with open(self._path("output"), errors="replace") as file:
                text = file.read()
        except OSError:
            return ""
        crash = text.rfind(CRASHED)
        return text[-TAIL:] if crash < 0 else text[crash:][:TAIL]

    def answer(self) -> dict[str, Any]:
        """What was rehearsed, or an error that says why not."""
        told = None
        if os.path.exists(self._path("error")):
            with open(self._path("error")) as file:
                told = json.load(file)
        if told is not None:
            raised = told["kind"] + (" at " + told["at"] if told["at"] else "")
            text = "the code raised %s: %s" % (raised, told["text"])
            if told["cannot"]:
                text = "%s (%s: %.300s)" % (told["cannot"], raised, told["text"])
            raise RehearsalError(text + "\n\n" + shortened(told["trace"]), self.output())
        if not os.path.exists(self.record):
            said = self.output()
            last = said[:LAST] if said.startswith(CRASHED) else said[-LAST:]
            raise RehearsalError(
                "the code %s before anything was recorded%s"
                % (self._ended(), ": " + last if last else ""),
                said,
            )
        return self.answers.ask(ask="predict", record=self.record, **self.asked)

    def _ended(self) -> str:
        status = self.status or 0
        if os.WIFSIGNALED(status):
            return "was ended by %s" % signal.Signals(os.WTERMSIG(status)).name
        return "ended with code %d" % os.WEXITSTATUS(status)

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


# --- estimate


def estimate(
    model: Any,
    sample: Any = None,
    optimizer: Any = None,
    loss: Callable[..., Any] | None = None,
    gpu: str = "24GiB",
    steps: int = 3,
    *,
    autocast: Any = None,
    timeout: float = 600,
    alloc_limit: str = "",
    alloc_conf: str = "",
) -> Estimate:
    """What training needs of a card, to the byte where the rehearsal is exact.

    model: a torch.nn.Module on the host, on meta or on a card; or a function without arguments that
    builds and trains. sample: what one call of the model takes: a tensor, a dict of keyword
    arguments, a batch (inputs, target), a loader, or shapes in their place. optimizer: a name of
    torch.optim, a class, a function of the parameters, or one that was made; None takes no steps.
    loss: called with the output and the target (or the whole sample); None takes the output's own
    loss, else its sum. autocast: torch.bfloat16 or torch.float16. Nothing in this process changes.
    """

    def work(rehearsal: Any) -> None:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(model, torch.nn.Module):
            Training(rehearsal, torch, model, sample, optimizer, loss, steps, autocast).run()
        else:
            model()

    if not callable(model):
        raise TypeError("estimate takes a torch.nn.Module or a function, not %r" % type(model))
    if sample is None and hasattr(model, "parameters"):
        raise TypeError("estimate of a model needs a sample: a batch, or shapes such as (8, 512)")
    answers = Answers()
    try:
        one = Rehearsed(answers, gpu, steps, alloc_limit=alloc_limit, alloc_conf=alloc_conf)
        try:
            if one.start():
                try:
                    work(one.rehearsal)
                except BaseException as error:
                    one.broke(error)
                one.finish()
            one.wait(timeout)
            return Estimate(one.answer())
        finally:
            one.close()
    finally:
        answers.close()


class Training:
    """The plain loop: a batch to the card, forward, backward, step."""

    def __init__(
        self,
        rehearsal: Any,
        torch: Any,
        model: Any,
        sample: Any,
        optimizer: Any,
        loss: Callable[..., Any] | None,
        steps: int,
        autocast: Any,
    ) -> None:
        self.rehearsal, self.torch, self.model, self.loss = rehearsal, torch, model, loss
        self.steps, self.autocast, self.optimizer = steps, autocast, optimizer
        self.sample = sample
        batch = isinstance(sample, (tuple, list, str)) or hasattr(sample, "keys")
        if not batch and not hasattr(sample, "shape") and hasattr(sample, "__iter__"):
            self.sample = next(iter(sample))  # a loader, of whatever kind

    def run(self) -> None:
        torch, model = self.torch, self.model
        for p in model.parameters():
            self.rehearsal.adopted.parameter(p, meta=True)
        for module in model.modules():
            for name, b in module._buffers.items():
                if b is not None and b.device.type == "meta":
                    module._buffers[name] = self.rehearsal.adopted.fake(b)
        model.to("cuda")
        self.label_weights()
        optimizer = self.made()
        enabled = self.autocast is not None
        for _ in range(self.steps):
            batch = moved(torch, self.sample)
            with torch.autocast("cuda", self.autocast or torch.bfloat16, enabled=enabled):
                loss = self.computed(batch)
            loss.backward()
            if optimizer is not None:
                optimizer.step()
                optimizer.zero_grad()
            else:
                model.zero_grad()

    def label_weights(self) -> None:
        from _memroom_probe.rehearse import recorder

        for t in [*self.model.parameters(), *self.model.buffers()]:
            if not t.is_sparse:
                self.rehearsal.recorder.categorize(t.untyped_storage(), recorder.WEIGHTS)

    def made(self) -> Any:
        given, torch = self.optimizer, self.torch
        trained = [p for p in self.model.parameters() if p.requires_grad]
        if given is None:
            return None
        if isinstance(given, str):
            found = [n for n in dir(torch.optim) if n.lower() == given.lower()]
            if not found:
                raise ValueError(
                    "torch.optim has no %r: give a class or a function of the parameters" % given
                )
            return getattr(torch.optim, found[0])(trained)
        if not isinstance(given, torch.optim.Optimizer):
            return given(trained)
        for state in given.state.values():
            for key, value in list(state.items()):
                if isinstance(value, torch.Tensor) and value.dim():
                    state[key] = value.to("cuda")
        return given

    def computed(self, batch: Any) -> Any:
        inputs, target = batch, None
        if isinstance(batch, (tuple, list)) and len(batch) == 2 and self.loss is not None:
            inputs, target = batch
        if hasattr(inputs, "keys"):
            out = self.model(**inputs)
        elif isinstance(inputs, (tuple, list)):
            out = self.model(*inputs)
        else:
            out = self.model(inputs)
        if self.loss is not None:
            return self.loss(out, batch if target is None else target)
        own = out.get("loss") if hasattr(out, "get") else getattr(out, "loss", None)
        if own is not None:
            return own
        floats = [t for t in flat(self.torch, out) if t.is_floating_point() and t.requires_grad]
        if not floats:
            raise ValueError("no gradient flows to the model's output: give loss=")
        total = floats[0].sum()
        for t in floats[1:]:
            total = total + t.sum()
        return total


def flat(torch: Any, value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif hasattr(value, "values"):
        for one in value.values():
            yield from flat(torch, one)
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from flat(torch, one)


def moved(torch: Any, value: Any, name: str = "") -> Any:
    """A batch on the card: tensors are copied, shapes become tensors."""
    if isinstance(value, torch.Tensor):
        if value.device.type != "cpu":
            return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).to("cuda")
        return value.to("cuda")
    shape, kind = described(torch, value)
    if shape is not None:
        whole = name.split("_")[-1].lower() in WHOLE
        kind = kind or (torch.int64 if whole else torch.float32)
        # what routers and masks spread
        random = kind.is_floating_point and kind.itemsize > 1
        return (torch.rand if random else torch.zeros)(shape, dtype=kind).to("cuda")
    if hasattr(value, "items"):
        return {key: moved(torch, one, str(key)) for key, one in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(moved(torch, one) for one in value))
    if isinstance(value, (tuple, list)):
        return type(value)(moved(torch, one) for one in value)
    return value


def described(torch: Any, value: Any) -> tuple[Sequence[int] | None, Any]:
    """The shape and the type that a value describes: (8, 3, 224) or ((8, 512), torch.int64)."""
    if isinstance(value, torch.Size):
        return value, None
    if not isinstance(value, (tuple, list)) or not value:
        return None, None
    if all(type(n) is int for n in value):
        return value, None
    if len(value) == 2 and isinstance(value[1], torch.dtype):
        return value[0], value[1]
    return None, None


# --- with


class _Skip(BaseException):
    """Leaves the body of a with statement in the process that does not run it."""


class rehearse(Estimate):
    """`with memroom.rehearse(gpu="24GiB") as r:` rehearses the body in a fork of this process and
    then passes over it here: names that the body assigns do not exist afterwards. `r` is the
    estimate.
    """

    def __init__(
        self,
        gpu: str = "24GiB",
        steps: int = 3,
        *,
        timeout: float = 600,
        alloc_limit: str = "",
        alloc_conf: str = "",
    ) -> None:
        super().__init__()
        self._asked: dict[str, Any] = {
            "gpu": gpu,
            "steps": steps,
            "alloc_limit": alloc_limit,
            "alloc_conf": alloc_conf,
        }
        self._timeout = timeout

    def __enter__(self) -> rehearse:
        self._answers = Answers()
        try:
            self._one = Rehearsed(self._answers, **self._asked)
            if self._one.start():
                return self
            self._one.wait(self._timeout)
            self._fill(self._one.answer())
        except BaseException:
            self._done()
            raise
        self._done()
        self._tracing = sys.gettrace()
        frame = sys._getframe(1)
        self._traced = frame.f_trace, frame.f_trace_opcodes
        sys.settrace(lambda *_: None)
        frame.f_trace, frame.f_trace_opcodes = _skipping(), True
        return self

    def _done(self) -> None:
        if hasattr(self, "_one"):
            self._one.close()
        self._answers.close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if getattr(self._one, "rehearsal", None) is not None:
            if error is not None:
                self._one.broke(error)
            self._one.finish()
        frame = sys._getframe(1)
        frame.f_trace, frame.f_trace_opcodes = self._traced
        sys.settrace(self._tracing)
        return kind is _Skip


def _skipping() -> Callable[[FrameType, str, Any], Any]:
    """A trace function that lets the name after `as` be assigned and then leaves."""
    import dis

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode":
            word = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            if not word.startswith(("STORE_", "POP_TOP", "EXTENDED_ARG", "CACHE", "NOP", "RESUME")):
                raise _Skip
        return trace

    return trace
