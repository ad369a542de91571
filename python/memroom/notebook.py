"""memroom in a notebook: findings below the cell they are about, what a failed cell still holds,
and letting go of it.

`watch` starts the `memroom` command beside the kernel. The probe in the kernel tells it the same as
in a run, and it judges the same; what it finds is printed below the cell that was running.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
from typing import Any, Dict, List, Optional, Tuple

SYNC_S = 3.0  # how long the end of a cell may wait for the judgement
LEAST = 1 << 20  # bytes that are worth a line below a failed cell
MENTIONED = 1 << 16  # and that are in the list


class _Here:
    """This process: who watches it, and the notebook it runs, if it runs one."""

    __slots__ = ("shell", "watcher")

    def __init__(self) -> None:
        self.shell: Any = None
        self.watcher: Optional[_Watcher] = None


_here = _Here()


class _Watcher:
    """The command beside this process, and what it has found."""

    def __init__(self, command: str) -> None:
        self.folder = tempfile.mkdtemp(prefix="memroom-")
        self.socket = os.path.join(self.folder, "probe")
        self.process = subprocess.Popen(
            [command, "_outside", str(os.getpid()), self.socket],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # Ctrl-C is for the cell
        )
        self.ready = threading.Event()
        self.synced = threading.Event()
        self.findings: List[Dict[str, Any]] = []
        self.fresh: List[Dict[str, Any]] = []
        threading.Thread(target=self._read, name="memroom", daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if message.get("ready"):
                self.ready.set()
            elif message.get("synced"):
                self.synced.set()
            else:
                self._found(message)
        self.ready.set()
        self.synced.set()

    def _found(self, finding: Dict[str, Any]) -> None:
        """Keeps a finding; one that says more about the same thing takes the place of the first."""
        for known in (self.findings, self.fresh):
            known[:] = [f for f in known if not _restates(finding, f)]
            known.append(finding)
        if _here.shell is None and finding.get("severity") != "info":
            print(_words(finding), file=sys.stderr)

    def sync(self) -> None:
        """Waits until what this process has reported so far is judged."""
        from _memroom_probe.watch.watched import watched

        watched.loop.flush()
        self.synced.clear()
        try:
            assert self.process.stdin is not None
            self.process.stdin.write("sync\n")
            self.process.stdin.flush()
        except OSError:
            return
        self.synced.wait(SYNC_S)

    def close(self) -> None:
        import shutil

        try:
            assert self.process.stdin is not None
            self.process.stdin.close()
            self.process.wait(SYNC_S)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def _restates(finding: Dict[str, Any], earlier: Dict[str, Any]) -> bool:
    keys = ("kind", "step", "bytes")
    return bool(finding.get("step")) and all(finding.get(k) == earlier.get(k) for k in keys)


def _words(finding: Dict[str, Any]) -> str:
    lines = ["memroom: " + finding["title"]]
    for frame in finding.get("frames", [])[:1]:
        lines[0] += ", at %s:%s" % (os.path.basename(frame["file"]), frame["line"])
    if finding.get("try"):
        lines.append("  Try: %s." % finding["try"])
        lines.extend("    " + line for line in finding.get("code", "").splitlines())
    return "\n".join(lines)


def watch() -> None:
    """Watches this process from now on. In a notebook what is found is printed below the cell; in a
    program it goes to stderr.
    """
    _find_probe()
    from _memroom_probe import link

    if link.enabled():
        if _here.watcher is None:
            print("memroom: this process is watched by the run around it already")
        return
    command = _command()
    if command is None:
        print(
            "memroom: the command was not found, so nothing is watched: install the wheel with "
            "pip, or put the binary on PATH. memroom.free() works without it."
        )
        _attach()
        return
    watcher = _Watcher(command)
    watcher.ready.wait(SYNC_S)
    if watcher.process.poll() is not None:
        watcher.close()
        raise RuntimeError(
            "memroom: the watching process could not be started; in a terminal this says why: %s"
            % command
        )
    _here.watcher = watcher
    os.environ["MEMROOM_PROBE"] = watcher.socket
    import _memroom_probe

    _memroom_probe.start()
    del os.environ["MEMROOM_PROBE"]  # other programs that the notebook starts are not watched
    import atexit

    atexit.register(unwatch)
    _attach()


def unwatch() -> None:
    """Ends the watching process. The hooks stay and tell nobody."""
    if _here.watcher is not None:
        watcher, _here.watcher = _here.watcher, None
        watcher.close()


def findings() -> List[Dict[str, Any]]:
    """What was found so far, as the JSON of `memroom show` has it."""
    if _here.watcher is None:
        return []
    _here.watcher.sync()
    return list(_here.watcher.findings)


def _find_probe() -> None:
    """Makes the probe importable: in the wheel it is beside this package, in the source tree
    elsewhere.
    """
    try:
        import _memroom_probe  # noqa: F401
    except ImportError:
        here = os.path.dirname(os.path.abspath(__file__))
        sys.path.append(os.path.join(here, os.pardir, os.pardir, "probe", "py"))
        import _memroom_probe  # noqa: F401


def _command() -> Optional[str]:
    import shutil
    import sysconfig

    here = os.path.dirname(os.path.abspath(__file__))
    source = os.path.join(here, os.pardir, os.pardir, "bin", "memroom")
    for path in (os.path.join(sysconfig.get_path("scripts"), "memroom"), source):
        if os.access(path, os.X_OK):
            return path
    return shutil.which("memroom")


def _attach() -> None:
    """Listens to the cells of the notebook, once."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = get_ipython() if get_ipython is not None else None
    if shell is not None and _here.shell is None:
        _here.shell = shell
        shell.events.register("post_run_cell", _cell_ended)


def detach() -> None:
    if _here.shell is not None:
        shell, _here.shell = _here.shell, None
        shell.events.unregister("post_run_cell", _cell_ended)


def _cell_ended(result: Any = None) -> None:
    """Prints what was found while the cell ran, and what it still holds if it failed."""
    try:
        if _here.watcher is not None:
            _here.watcher.sync()
            fresh, _here.watcher.fresh[:] = list(_here.watcher.fresh), []
            for finding in fresh:
                if finding.get("severity") != "info":
                    print(_words(finding))
        error = getattr(result, "error_in_exec", None)
        if error is not None:
            explained = _explain(error)
            if explained:
                print(explained)
            failed = [h for h in held() if h[0].startswith("failed cell: ")]
            if sum(size for _, size in failed) >= LEAST:
                print(_held_words("memroom: the failed cell still holds ", failed))
    except Exception as error:  # a notebook is never disturbed by us
        print("memroom: %s: %s" % (type(error).__name__, error), file=sys.stderr)


def _held_words(begin: str, parts: List[Tuple[str, int]]) -> str:
    names = ", ".join(
        "`%s` %s" % (name.partition(": ")[2] or name, _bytes(size)) for name, size in parts[:4]
    )
    total = _bytes(sum(size for _, size in parts))
    return "%s%s: %s; memroom.free() lets go of it" % (begin, total, names)


def _explain(error: BaseException) -> str:
    """The explanation of an out-of-memory error, as `memroom explain` gives it."""
    from _memroom_probe import oom

    command = _command()
    if command is None or not oom.describe(error).get("where"):
        return ""
    import traceback

    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    with tempfile.NamedTemporaryFile("w", suffix=".log") as file:
        file.write(text)
        file.flush()
        done = subprocess.run(
            [command, "explain", "--color", "never", file.name],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=30,
        )
    return done.stdout.rstrip().replace(file.name, "the cell") if done.returncode == 0 else ""


def _tracebacks() -> List[Any]:
    """Tracebacks that the interpreter and the notebook still know, each once."""
    errors = [getattr(sys, name, None) for name in ("last_exc", "last_value")]
    if _here.shell is not None:
        errors.append(getattr(_here.shell.last_execution_result, "error_in_exec", None))
    known: List[Any] = []
    seen = set()
    while errors:
        error = errors.pop()
        if error is None or id(error) in seen:
            continue
        seen.add(id(error))
        known.append(error.__traceback__)
        errors += [error.__cause__, error.__context__]
    known.append(getattr(sys, "last_traceback", None))
    return [t for t in known if t is not None]


def held() -> List[Tuple[str, int]]:
    """(what, bytes) that nothing holds but a failed cell's traceback or an earlier output, largest
    first.
    """
    _find_probe()
    from _memroom_probe.watch import holders

    place = ("", 0, None)
    names = (
        dict(_here.shell.user_ns)
        if _here.shell is not None
        else dict(vars(sys.modules["__main__"]))
    )
    outputs = names.pop("Out", None) or {}
    roots: List[Any] = []
    own: List[Any] = []
    for name, thing in names.items():
        if name in ("_", "__", "___", "In", "_oh", "_ih", "_dh") or name.startswith("_i"):
            continue
        if not (name.startswith("_") and name[1:].isdigit()):
            own.append((name, thing, place))
    if isinstance(outputs, dict):
        roots += [("output: Out[%s]" % number, thing, place) for number, thing in outputs.items()]
    roots += [("output: " + n, names[n], place) for n in ("_", "__", "___") if n in names]
    for frame in _failed_frames():
        roots += [
            ("failed cell: %s in %s" % (name, frame.f_code.co_name), thing, place)
            for name, thing in list(frame.f_locals.items())
        ]
    known = sorted({root[0] for root in roots}, key=len, reverse=True)
    found = holders.look(0.5, roots=own + roots)
    del own[:], roots[:]
    for frame in _failed_frames():
        _forget_snapshot(frame)
    sizes: Dict[str, int] = {}
    for holder in found.values():
        root = next((name for name in known if holder.name.startswith(name)), None)
        if root is not None:
            sizes[root] = sizes.get(root, 0) + holder.host + holder.card
    return sorted(
        ((n, size) for n, size in sizes.items() if size >= MENTIONED), key=lambda item: -item[1]
    )


def _forget_snapshot(frame: Any) -> None:
    """Older Pythons keep a copy of a function's variables in its frame once somebody has looked."""
    if sys.version_info < (3, 13) and frame.f_code.co_flags & 1:
        frame.f_locals.clear()


def _failed_frames() -> List[Any]:
    """Frames of functions that failed, below the cell that called them."""
    frames: List[Any] = []
    for trace in _tracebacks():
        below: List[Any] = []
        while trace is not None:
            frame = trace.tb_frame
            if _here.shell is not None and frame.f_locals is _here.shell.user_ns:
                below.clear()  # what is above belongs to the notebook itself
            elif frame.f_globals is not frame.f_locals:
                below.append(frame)
            trace = trace.tb_next
        frames += [frame for frame in below if not any(frame is known for known in frames)]
    return frames


def free(outputs: bool = True) -> int:
    """Lets go of what a failed cell and, unless outputs is False, earlier outputs still hold.
    Variables of the notebook stay. Returns the bytes that were freed.
    """
    import gc
    import traceback

    parts = [(n, size) for n, size in held() if outputs or not n.startswith("output: ")]
    failed = _failed_frames()
    for trace in _tracebacks():
        traceback.clear_frames(trace)
    for frame in failed:
        _forget_snapshot(frame)
    del failed[:]
    for name in ("last_traceback", "last_value", "last_type", "last_exc"):
        if hasattr(sys, name):
            setattr(sys, name, None)
    if _here.shell is not None and outputs:
        _here.shell.displayhook.flush()
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    left = dict(held())
    freed = sum(size - left.get(name, 0) for name, size in parts)
    kept = [(name, size) for name, size in left.items() if size >= LEAST]
    print("memroom: freed " + _bytes(freed) + ("" if not kept else "; still held:"))
    for name, size in kept:
        print("  %s %s" % (name, _bytes(size)))
    return freed


def _bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return ("%.4g" % size) + unit
        size /= 1024
    return "%.4gGiB" % size
