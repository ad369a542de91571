"""Sends what memroom measures into the experiment tracker that the program has open already.

A thread reads the record of the run that this process is part of, and hands new readings, phases
and findings to the tracker. It imports no tracker: it uses the one it is given.
"""

import json
import os
import threading
from typing import Any, Callable, Dict, List, Optional

Values = Dict[str, float]


class Export:
    """What log_to gives back. It ends with the program, or by close()."""

    def __init__(self, folder: str, sink: "Sink", every: float) -> None:
        self._tails = {
            name: _Tail(os.path.join(folder, name + ".jsonl"))
            for name in ("samples", "steps", "events")
        }
        self._sink = sink
        self._every = every
        self._stop = threading.Event()
        self.sent = 0  # readings handed over
        self.problem = ""  # the tracker's last complaint
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="memroom-export", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while not self._stop.wait(self._every):
            self.flush()

    def flush(self) -> None:
        """Hands over what has been recorded since the last time."""
        with self._lock:
            try:
                self._flush()
            except Exception as problem:  # a tracker's trouble is not the training's
                self.problem = "%s: %s" % (type(problem).__name__, problem)

    def _flush(self) -> None:
        steps = self._tails["steps"].lines()
        for h in self._tails["events"].lines():
            text = _text_of(h)
            if text:
                self._sink.note(h.get("kind", "note"), text, h.get("at_ms", 0) / 1000)
        samples = self._tails["samples"].lines()
        # the tracker need not have all four a second: the highest of each value is kept
        merged: Values = {}
        for s in samples:
            for name, value in _sample_values(s).items():
                merged[name] = max(value, merged.get(name, value))
        for s in steps:
            for name, value in _step_values(s).items():
                merged[name] = max(value, merged.get(name, value))
        if merged and samples:
            merged["memroom/seconds"] = samples[-1].get("at_ms", 0) / 1000
            self._sink.values(merged, self.sent)
            self.sent += 1

    def close(self) -> None:
        """Hands over what is left and ends."""
        self._stop.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(10)
        self.flush()


class Sink:
    """How one tracker is told. note is for findings, phases and failures."""

    def __init__(
        self, values: Callable[[Values, int], Any], note: Callable[[str, str, float], Any]
    ) -> None:
        self.values, self.note = values, note


def log_to(target: Any, every: float = 2.0) -> Optional[Export]:
    """Logs memory, phases and findings of this run to a tracker: a TensorBoard SummaryWriter, a
    W&B or Trackio run (or the module, with a run open), or the module mlflow with a run open. Gives
    None where the process is not part of a memroom run.
    """
    sink = _sink_of(target)
    folder = _folder()
    if folder is None:
        return None
    return Export(folder, sink, max(0.1, float(every)))


def _folder() -> Optional[str]:
    """The folder of the run this process is part of; the probe's dumps are in it."""
    dumps = os.environ.get("MEMROOM_DUMPS", "")
    folder = os.path.dirname(dumps.rstrip("/"))
    if dumps and os.path.isfile(os.path.join(folder, "run.json")):
        return folder
    return None


def _sink_of(target: Any) -> Sink:
    if hasattr(target, "add_scalar"):
        return _tensorboard(target)
    if hasattr(target, "log_metrics") and hasattr(target, "active_run"):
        return _mlflow(target)
    run = target
    if not callable(getattr(run, "log", None)) or type(target).__name__ == "module":
        run = _open_run(target)
    if run is not None and callable(getattr(run, "log", None)):
        return _wandb(run)
    raise TypeError(
        "memroom.log_to takes a SummaryWriter, a W&B or Trackio run, or the module wandb, trackio "
        "or mlflow with a run open; got %r" % (target,)
    )


def _open_run(module: Any) -> Any:
    """The run that a module has open: wandb.run, or trackio's current one."""
    run = getattr(module, "run", None)
    if run is not None and callable(getattr(run, "log", None)):
        return run
    holder = getattr(getattr(module, "context_vars", None), "current_run", None)
    return holder.get() if holder is not None else None


def _tensorboard(writer: Any) -> Sink:
    def values(found: Values, _: int) -> None:
        at = int(found["memroom/seconds"] * 1000)
        for name, value in found.items():
            if name != "memroom/seconds":
                writer.add_scalar(name, value, at)

    def note(kind: str, text: str, seconds: float) -> None:
        writer.add_text("memroom/" + kind, text, int(seconds * 1000))

    return Sink(values, note)


def _mlflow(mlflow: Any) -> Sink:
    run = mlflow.active_run()
    if run is None:
        raise TypeError("memroom.log_to(mlflow): start a run first, with mlflow.start_run()")
    run_id = run.info.run_id  # which run is open is known in this thread only
    notes: List[str] = []

    def values(found: Values, _: int) -> None:
        mlflow.log_metrics(found, step=int(found["memroom/seconds"] * 1000), run_id=run_id)

    def note(kind: str, text: str, seconds: float) -> None:
        notes.append("%.1f s  %s: %s" % (seconds, kind, text))
        client = mlflow.MlflowClient() if hasattr(mlflow, "MlflowClient") else None
        if client is not None:
            client.log_text(run_id, "\n".join(notes) + "\n", "memroom/findings.txt")

    return Sink(values, note)


def _wandb(run: Any) -> Sink:
    import inspect

    taken: List[str] = []
    try:
        taken = list(inspect.signature(run.log).parameters)
    except (TypeError, ValueError):
        pass  # a function of C says nothing
    if hasattr(run, "define_metric"):
        run.define_metric("memroom/seconds", hidden=True)
        run.define_metric("memroom/*", step_metric="memroom/seconds")

    def values(found: Values, _: int) -> None:
        # With commit the user's own steps would be numbered on: ours ride with the next of them.
        if "commit" in taken:
            run.log(found, commit=False)
        else:
            run.log(found)

    def note(kind: str, text: str, seconds: float) -> None:
        if hasattr(run, "alert") and kind in ("oom", "finding"):
            run.alert(title="memroom: " + kind, text=text)
        elif hasattr(run, "summary") and hasattr(run.summary, "update"):
            run.summary.update({"memroom/last_%s" % kind: text})

    return Sink(values, note)


def _text_of(h: Dict[str, Any]) -> str:
    """What an event says, for the kinds that people want to see."""
    kind = h.get("kind")
    if kind == "finding" and isinstance(h.get("finding"), dict):
        return str(h["finding"].get("title", ""))
    if kind == "phase" and isinstance(h.get("data"), dict):
        begins = "begins" if h["data"].get("begin") else "ends"
        return "%s %s" % (h["data"].get("phase"), begins)
    if kind in ("oom", "action", "pressure", "died"):
        return str(h.get("text") or kind)
    return ""


def _sample_values(s: Dict[str, Any]) -> Values:
    host = s.get("held") or s.get("anon", 0) + s.get("shmem", 0)
    found: Values = {"memroom/host_bytes": host, "memroom/processes": s.get("procs", 0)}
    cgroup, machine = s.get("cgroup") or {}, s.get("machine") or {}
    if cgroup.get("current"):
        found["memroom/cgroup_bytes"] = cgroup["current"]
    if machine.get("shm_used"):
        found["memroom/shm_bytes"] = machine["shm_used"]
    for i, card in enumerate(s.get("gpus") or []):
        found["memroom/gpu%d_used_bytes" % i] = card.get("used", 0)
    return found


def _step_values(s: Dict[str, Any]) -> Values:
    if s.get("device", -1) < 0:
        return {"memroom/step_ms": s.get("duration_ns", 0) / 1e6}
    rank = "" if s.get("rank") is None else "_rank%d" % s["rank"]
    return {
        "memroom/allocated_bytes" + rank: s.get("allocated", 0),
        "memroom/reserved_bytes" + rank: s.get("reserved", 0),
        "memroom/step_ms" + rank: s.get("duration_ns", 0) / 1e6,
    }


class _Tail:
    """Reads the lines that are appended to a file."""

    def __init__(self, path: str) -> None:
        self.path, self.at = path, 0

    def lines(self) -> List[Dict[str, Any]]:
        try:
            with open(self.path, "rb") as file:
                file.seek(self.at)
                data = file.read(8 << 20)
        except OSError:
            return []
        end = data.rfind(b"\n") + 1
        self.at += end
        found = []
        for line in data[:end].splitlines():
            try:
                value = json.loads(line)
            except ValueError:
                continue  # cut off by a crash
            if isinstance(value, dict):
                found.append(value)
        return found
