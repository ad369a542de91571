"""Memory as a test: a pytest plugin that the wheel registers and that does nothing unless used.

    @pytest.mark.limit_device_memory("24GiB", gpu="RTX4090")
    @pytest.mark.device_memory_as_recorded(tolerance="1%")

A marked test, or one that asks for `memroom_rehearsal`, runs in a fork of pytest on fake tensors of
the card (memroom.rehearse), fixtures and all. Whatever it does there, pytest goes on.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from typing import TYPE_CHECKING, Any, Generator

import pytest

if TYPE_CHECKING:
    from .estimating import Answers, Estimate, Rehearsed

LIMIT, RECORDED, FIXTURE = "limit_device_memory", "device_memory_as_recorded", "memroom_rehearsal"
GPU = "24GiB"  # of a test that names none
FOLDER = "memroom-recorded"  # beside the test's file
UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
SHOWN = 8  # lines in a table
STEPS = 100  # optimizer steps after which a rehearsed test ends: most end by themselves
PROPERTY = "memroom"  # of a report: what was rehearsed
# what marks take
TAKEN = {LIMIT: ("limit", "gpu", "steps"), RECORDED: ("tolerance", "gpu", "steps")}
UNUSED = ("cache", "context")  # categories that are not allocated bytes
XPASS = "[XPASS(strict)] "  # begins pytest's words about a test that should have failed


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("memroom", "device memory, without a device")
    group.addoption(
        "--memroom-record",
        action="store_true",
        help="write the figures that device_memory_as_recorded compares with",
    )
    group.addoption(
        "--memroom-report",
        action="store_true",
        help="print a table of the device memory of the rehearsed tests",
    )
    group.addoption(
        "--memroom-timeout",
        type=float,
        default=600,
        metavar="SECONDS",
        help="end a rehearsed test after so long (600)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        LIMIT + '(limit, gpu="24GiB", steps=100): run the test on fake tensors of a card and fail '
        "above the limit",
    )
    config.addinivalue_line(
        "markers",
        RECORDED
        + '(tolerance="1%", gpu="24GiB", steps=100): run the test on fake tensors of a card '
        "and compare its device memory with the recorded figure",
    )


@pytest.fixture
def memroom_rehearsal() -> Any:
    """The rehearsal that the test runs in: `peak` is the highest allocated bytes so far, `fits`
    says whether they are below a limit such as "8GiB".
    """
    return Running()


class Running:
    """What a test can ask while it is rehearsed."""

    def _recorder(self) -> Any:
        if _here.inside is None:
            raise RuntimeError("this test is not rehearsed")
        return _here.inside.rehearsal.recorder

    @property
    def allocated(self) -> int:
        return int(self._recorder().allocated)

    @property
    def peak(self) -> int:
        return int(self._recorder().peak)

    def fits(self, limit: str | int) -> bool:
        return self.peak <= parse(limit)


class _Here:
    """What this process of pytest has at hand."""

    __slots__ = ("answers", "inside")

    def __init__(self) -> None:
        self.inside: Rehearsed | None = None  # in the child
        # the command that answers, started with the first rehearsal
        self.answers: Answers | None = None


_here = _Here()


def parse(text: str | int) -> int:
    """Bytes: 1536, "24GiB", "512MB" (of 1024, as elsewhere in memroom)."""
    if isinstance(text, int):
        return text
    found = re.fullmatch(r"\s*([\d.]+)\s*([kmgt]?)i?b?\s*", text.lower())
    if found is None:
        raise ValueError("%r is not a size such as 24GiB" % (text,))
    return int(float(found[1]) * UNITS[found[2]])


def share(text: str | float) -> float:
    """A tolerance: "1%" or 0.01."""
    try:
        if isinstance(text, str) and text.strip().endswith("%"):
            return float(text.strip()[:-1]) / 100
        return float(text)
    except ValueError:
        raise ValueError("%r is not a tolerance such as 1%%" % (text,)) from None


def asked(item: pytest.Item) -> dict[str, Any] | None:
    """What the marks of a test ask for; None where nothing does."""
    limit, recorded = item.get_closest_marker(LIMIT), item.get_closest_marker(RECORDED)
    if limit is None and recorded is None and FIXTURE not in getattr(item, "fixturenames", ()):
        return None
    out: dict[str, Any] = {"gpu": GPU, "steps": STEPS, "limit": None, "tolerance": None}
    for mark in (recorded, limit):
        if mark is not None:
            wrong = [key for key in mark.kwargs if key not in TAKEN[mark.name]]
            if wrong or len(mark.args) > 1:
                raise ValueError(
                    "%s takes one value, %s and %s by name: not %s"
                    % (mark.name, *TAKEN[mark.name][1:], wrong or mark.args[1:])
                )
            out.update({key: mark.kwargs[key] for key in ("gpu", "steps") if key in mark.kwargs})
    if limit is not None:
        given = limit.args[0] if limit.args else limit.kwargs.get("limit")
        if given is None and "gpu" not in limit.kwargs:
            raise ValueError("%s needs a limit or a gpu" % LIMIT)
        out["limit"] = None if given is None else parse(given)
    if recorded is not None:
        given = recorded.args[0] if recorded.args else recorded.kwargs.get("tolerance", "1%")
        out["tolerance"] = share(given)
    out["fit"] = limit is not None
    return out


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    hook = item.ihook
    try:
        wanted = asked(item)
        if wanted is None:
            return None
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports = rehearsed(item, wanted)
    except Exception as error:  # of this test, and never pytest's
        reports = [failed(item, str(error) or type(error).__name__)]
    for report in reports:
        hook.pytest_runtest_logreport(report=report)
    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    # what earlier tests set up and the next one does not need
    item.session._setupstate.teardown_exact(nextitem)
    return True


def rehearsed(item: pytest.Item, wanted: dict[str, Any]) -> list[pytest.TestReport]:
    from . import estimating

    begun = time.monotonic()
    if _here.answers is None:
        _here.answers = estimating.Answers()
        item.config.add_cleanup(_close)
        if "torch" in sys.modules:
            # fake tensors and optimizers load it: once here, and not in each child
            import torch._dynamo  # noqa: F401
    one = estimating.Rehearsed(_here.answers, wanted["gpu"], wanted["steps"])
    path = os.path.join(one.folder, "reports.jsonl")
    try:
        if one.start():
            _here.inside = one
            try:
                run(item, path)
            except BaseException as error:
                one.broke(error)
            one.finish()
        try:
            one.wait(item.config.getoption("--memroom-timeout"))
        except estimating.RehearsalError as error:
            return [failed(item, str(error), error.output)]
        finally:
            said = captured(item)
        reports = read(item, path)
        if any(not report.passed and expected(report) is None for report in reports):
            return reports
        try:
            answer = one.answer()
        except estimating.RehearsalError as error:
            return [failed(item, str(error), error.output)]
        reports = judged(item, wanted, estimating.Estimate(answer), reports)
        call = next(r for r in reports if is_call(r))
        call.duration = call.duration or time.monotonic() - begun
        if said:
            call.sections.append(("Captured output of the rehearsal", said))
        return reports
    finally:
        one.close()


def captured(item: pytest.Item) -> str:
    """What the child printed into pytest's own files: they are shared with it."""
    manager = item.config.pluginmanager.getplugin("capturemanager")
    if manager is None or not manager.is_globally_capturing():
        return ""
    return "".join(manager.read_global_capture())


def _close() -> None:
    if _here.answers is not None:
        _here.answers.close()
        _here.answers = None


def run(item: pytest.Item, path: str) -> None:
    """In the child: the test with its fixtures; a report is written as soon as it is there, because
    the rehearsal may end in the middle of the test.
    """
    from _pytest.runner import call_and_report

    item.config.option.setupshow = False
    if hasattr(item, "_initrequest") and not getattr(item, "_request", None):
        item._initrequest()
    told = open(path, "w")

    def tell(report: pytest.TestReport) -> None:
        data = item.config.hook.pytest_report_to_serializable(config=item.config, report=report)
        told.write(json.dumps(data) + "\n")
        told.flush()

    def step(when: Any, **more: Any) -> pytest.TestReport:
        report = call_and_report(item, when, log=False, **more)
        tell(report)
        return report

    for hook in (item.config.hook, item.ihook):  # subtests report by themselves
        hook.__dict__["pytest_runtest_logreport"] = tell

    if step("setup").passed:
        step("call")
    step("teardown", nextitem=None)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[Any, Any, None]:
    """In the child: what an error means for somebody who rehearses."""
    outcome = yield
    if _here.inside is None or call.excinfo is None:
        return
    from _memroom_probe.rehearse import inside

    told = inside.told(call.excinfo.value, _here.inside.rehearsal)
    if told["cannot"]:
        outcome.get_result().sections.append(("memroom", "%(at)s: %(cannot)s" % told))


def read(item: pytest.Item, path: str) -> list[pytest.TestReport]:
    if not os.path.exists(path):
        return []
    with open(path) as file:
        reports = [
            item.config.hook.pytest_report_from_serializable(
                config=item.config, data=json.loads(line)
            )
            for line in file
            if line.endswith("\n")
        ]
    wrong = sum(report.failed and type(report) is not pytest.TestReport for report in reports)
    for report in reports:
        if wrong and is_call(report) and report.passed:
            report.outcome = "failed"
            report.longrepr = "contains %d failed subtest%s" % (wrong, "s" * (wrong > 1))
    return reports


def report_of(item: pytest.Item, outcome: Any, text: str | None) -> pytest.TestReport:
    return pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords={name: 1 for name in item.keywords},
        outcome=outcome,
        longrepr=text,
        when="call",
    )


def failed(item: pytest.Item, text: str, output: str = "") -> pytest.TestReport:
    report = report_of(item, "failed", "the test could not be rehearsed: " + text)
    if output:
        report.sections.append(("Output of the rehearsal", output))
    return report


def is_call(report: pytest.TestReport) -> bool:
    """Whether it is of the test itself: subtests have a class of their own."""
    return report.when == "call" and type(report) is pytest.TestReport


def expected(report: pytest.TestReport) -> str | None:
    """Why a test that passed was expected to fail (xfail); None where it was not."""
    text = str(report.longrepr)
    if report.failed and text.startswith(XPASS):
        return text[len(XPASS) :]
    return getattr(report, "wasxfail", None) if report.passed else None


def judged(
    item: pytest.Item,
    wanted: dict[str, Any],
    estimate: Estimate,
    reports: list[pytest.TestReport],
) -> list[pytest.TestReport]:
    """The reports of a test that ran, with the verdict about its memory."""
    from .estimating import size

    call = next((r for r in reports if is_call(r)), None)
    if call is None:  # the rehearsal ended after its steps, in the middle of the test
        call = report_of(item, "passed", None)
        text = "the rehearsal ended after %s optimizer steps: what follows in the test did not run"
        call.sections.append(("memroom", text % wanted["steps"]))
        reports = [r for r in reports if r.when != "teardown"] + [call]
    call.user_properties.append((PROPERTY, {"device": estimate.device, "gpu": wanted["gpu"]}))
    wrong = ""
    limit = wanted["limit"]
    if limit is not None and estimate.device > limit:
        wrong = "the test needs %s of device memory, more than the limit of %s" % (
            size(estimate.device),
            size(limit),
        )
    elif wanted["fit"] and estimate.fits is False:
        wrong = "the test needs %s of device memory (%s to %s) and %s %s" % (
            size(estimate.device),
            size(estimate.low),
            size(estimate.high),
            estimate.verdict,
            wanted["gpu"],
        )
    if wrong:
        wrong += "\n\n" + str(estimate)
    if wanted["tolerance"] is not None:
        wrong = "\n\n".join(filter(None, (wrong, compared(item, wanted, estimate))))
    if wrong:
        reason = expected(call)
        call.outcome, call.longrepr = "failed", wrong
        if reason is not None:
            call.outcome, call.wasxfail = "skipped", reason
    return reports


# --- recorded figures


def place(item: pytest.Item) -> str:
    """The file of a test's figures: one a test, so that processes side by side do not meet."""
    path = str(getattr(item, "path", None) or item.fspath)
    name = re.sub(r"[^\w.\-\[\]]+", "-", item.nodeid.partition("::")[2])
    folder, file = os.path.split(path)
    return os.path.join(folder, FOLDER, os.path.splitext(file)[0], name + ".json")


def compared(item: pytest.Item, wanted: dict[str, Any], estimate: Estimate) -> str:
    """What differs from the recorded figure by more than the tolerance; empty where nothing."""
    from .estimating import size

    path = place(item)
    shown = os.path.relpath(path)
    now = {
        "gpu": wanted["gpu"],
        "allocated": estimate.allocated,
        "reserved": estimate.reserved,
        "device": estimate.device,
        "categories": estimate.categories,
        "lines": {line.line: line.bytes for line in estimate.lines},
    }
    if item.config.getoption("--memroom-record"):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path + ".part", "w") as file:
            json.dump(now, file, indent=1, sort_keys=True)
            file.write("\n")
        os.replace(path + ".part", path)
        return ""
    try:
        with open(path) as file:
            then = json.load(file)
            then = {name: then[name] for name in now}
    except FileNotFoundError:
        return "%s does not exist: run pytest --memroom-record once and commit it" % shown
    except (LookupError, TypeError, ValueError) as error:
        return "%s cannot be read (%r): run pytest --memroom-record" % (shown, error)
    if then["gpu"] != wanted["gpu"]:
        return "%s was recorded for %s: run pytest --memroom-record" % (shown, then["gpu"])
    more = estimate.allocated - then["allocated"]
    if abs(more) <= wanted["tolerance"] * then["allocated"]:
        return ""
    out = [
        "the test allocates %s, %s %s than the %s in %s (%+.1f %%, tolerated are %.3g %%)"
        % (
            size(estimate.allocated),
            size(abs(more)),
            "more" if more > 0 else "less",
            size(then["allocated"]),
            shown,
            100 * more / max(1, then["allocated"]),
            100 * wanted["tolerance"],
        )
    ]
    for title in ("categories", "lines"):
        out.append("by " + title.replace("ies", "y").rstrip("s") + ":")
        out += differences(then[title], now[title])
    out.append("if this is meant, record it: pytest --memroom-record")
    return "\n".join(out)


def differences(then: dict[str, int], now: Any) -> list[str]:
    """What changed most, largest first."""
    from .estimating import size

    names = {n: now.get(n, 0) - then.get(n, 0) for n in {**then, **now}}
    changed = sorted(
        (n for n in names if names[n] and n not in UNUSED), key=lambda n: (-abs(names[n]), n)
    )
    return [
        "  %+10s  %s (%s before, %s now)"
        % (
            ("+" if names[n] > 0 else "-") + size(abs(names[n])),
            n,
            size(then.get(n, 0)),
            size(now.get(n, 0)),
        )
        for n in changed[:SHOWN]
    ]


# --- the table


@pytest.hookimpl(hookwrapper=True)
def pytest_terminal_summary(
    terminalreporter: Any, config: pytest.Config
) -> Generator[Any, Any, None]:
    yield
    if not config.getoption("--memroom-report"):
        return
    from .estimating import size

    rows = [
        (value["device"], value["gpu"], report.outcome, report.nodeid)
        for reports in terminalreporter.stats.values()
        for report in reports
        for name, value in getattr(report, "user_properties", ())
        if name == PROPERTY
    ]
    terminalreporter.section("device memory")
    if not rows:
        terminalreporter.line("no test was rehearsed")
    for device, gpu, outcome, nodeid in sorted(set(rows), reverse=True):
        terminalreporter.line("%10s  %-10s %-7s %s" % (size(device), gpu, outcome, nodeid))
