"""A trial from inside: what it reports, its checkpoints, who it is."""

import contextlib
import json
import math
import os
import pickle
import shutil
import tempfile
import time
import traceback
from typing import Any, Dict, Iterator, List, Optional

from .config import PlacementGroupFactory
from .space import flat

PRUNED = "memroom_pruned"  # reported to the study by a trial that was stopped early
OVER = "memroom_over"  # reported to the study by a trial whose report ends all of it
FAILED = 2.0  # OVER's value where the trial itself fails

RESULTS, PARAMS, ERROR = "result.json", "params.pkl", "error.pkl"

current: Optional["Session"] = None  # in the process of a trial


class Checkpoint:
    """A folder with what a training needs to go on."""

    def __init__(self, path: Any, filesystem: Any = None) -> None:
        if filesystem is not None:
            raise NotImplementedError("Checkpoint(filesystem=): only folders of this machine")
        self.path = os.fspath(path)

    @classmethod
    def from_directory(cls, path: Any) -> "Checkpoint":
        return cls(os.path.abspath(os.fspath(path)))

    def to_directory(self, path: Any = None) -> str:
        path = os.fspath(path) if path else tempfile.mkdtemp(prefix="checkpoint-")
        shutil.copytree(self.path, path, dirs_exist_ok=True)
        answer: str = path
        return answer

    @contextlib.contextmanager
    def as_directory(self) -> Iterator[str]:
        yield self.path

    def _metadata(self) -> str:
        return os.path.join(self.path, ".metadata.json")

    def get_metadata(self) -> Dict[str, Any]:
        if not os.path.exists(self._metadata()):
            return {}
        with open(self._metadata()) as file:
            return dict(json.load(file))

    def set_metadata(self, metadata: Dict[str, Any]) -> None:
        with open(self._metadata(), "w") as file:
            json.dump(metadata, file)

    def update_metadata(self, metadata: Dict[str, Any]) -> None:
        self.set_metadata(dict(self.get_metadata(), **metadata))

    def __repr__(self) -> str:
        return "Checkpoint(%r)" % self.path

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Checkpoint) and other.path == self.path

    def __hash__(self) -> int:
        return hash(self.path)


class StopTraining(SystemExit):
    """Ends a training whose report was its last. No `except Exception` of it hears of this."""

    def __init__(self, early: bool = False, all_of_them: bool = False) -> None:
        super().__init__(0)
        self.early, self.all_of_them = early, all_of_them


class Exploit(SystemExit):
    """Lets the training begin again from another trial's checkpoint."""

    def __init__(self, config: Dict[str, Any], checkpoint: str) -> None:
        super().__init__(0)
        self.config, self.checkpoint = config, checkpoint


class Context:
    """Who and where this trial is, as Ray's TuneContext."""

    def get_trial_id(self) -> Optional[str]:
        return current.trial_id if current else None

    def get_trial_name(self) -> Optional[str]:
        return current.name if current else None

    def get_trial_dir(self) -> Optional[str]:
        return current.path if current else None

    def get_experiment_name(self) -> Optional[str]:
        return os.environ.get("MEMROOM_STUDY")

    def get_trial_resources(self) -> Any:
        if current is None:
            return None
        wanted = {n.upper() if n in ("cpu", "gpu") else n: v for n, v in current.resources.items()}
        return PlacementGroupFactory([wanted or {"CPU": 1}])

    def get_world_size(self) -> int:
        return 1

    def get_world_rank(self) -> int:
        return 0

    get_local_world_size = get_world_size
    get_local_rank = get_node_rank = get_world_rank

    def get_metadata(self) -> Dict[str, Any]:
        return {}

    def get_storage(self) -> Any:
        raise NotImplementedError("get_storage: a trial's files are in get_trial_dir()")


def get_context() -> Context:
    return Context()


def get_checkpoint() -> Optional[Checkpoint]:
    """Where the training goes on from; None: it begins."""
    return current.checkpoint if current else None


def report(metrics: Optional[Dict[str, Any]] = None, checkpoint: Any = None, **values: Any) -> None:
    """Tells the study numbers of this trial: report({"loss": 0.1}) or report(loss=0.1). The
    checkpoint is copied before this returns.
    """
    if metrics is not None and not isinstance(metrics, dict):
        raise TypeError("report takes a dict of metrics, not %r" % (metrics,))
    said = dict(metrics or {}, **values)
    if current is None:
        tell(said, None)
        return
    current.report(said, checkpoint)


def tell(said: Dict[str, Any], step: Optional[int]) -> None:
    """Over the probe; where there is none, as a line that the study reads."""
    import memroom

    numbers: Dict[str, float] = {}
    for name, value in flat(said).items():
        if isinstance(value, str):
            continue
        number = _number(value)
        if number is not None:
            numbers[name] = number
    if not memroom._report(step, numbers):
        print(json.dumps(numbers), flush=True)


def checkpoints(path: str) -> List[str]:
    """The whole checkpoints in a trial's folder, oldest first."""
    try:
        names = os.listdir(path)
    except OSError:
        return []
    found = sorted(n for n in names if n.startswith("checkpoint_") and n[11:].isdigit())
    return [os.path.join(path, n) for n in found]


def exploited(path: str) -> Optional[str]:
    """The copy of another trial's checkpoint that a trial goes on from."""
    try:
        names = os.listdir(path)
    except OSError:
        return None
    found = sorted(n for n in names if n.startswith(".exploited_") and n[11:].isdigit())
    return os.path.join(path, found[-1]) if found else None


def put(source: str, final: str) -> None:
    """Copies a checkpoint beside its place and moves it, so that one that is there is whole."""
    folder, name = os.path.split(final)
    beside = os.path.join(folder, ".new_" + name)
    shutil.rmtree(beside, ignore_errors=True)
    shutil.copytree(source, beside)
    shutil.rmtree(final, ignore_errors=True)
    os.rename(beside, final)


def lines(path: str) -> List[Dict[str, Any]]:
    """What a trial reported, without lines that were cut off, as by a full disk."""
    out = []
    try:
        with open(os.path.join(path, RESULTS), errors="replace") as file:
            for line in file:
                with contextlib.suppress(ValueError):
                    out.append(dict(json.loads(line)))
    except OSError:
        pass
    return out


class Session:
    """One trial in its process. `driver` answers for the program that holds the study."""

    def __init__(self, number: int, path: str, name: str, driver: Any, keep: Any) -> None:
        self.number, self.path, self.name, self.driver, self.keep = number, path, name, driver, keep
        self.trial_id = "%05d" % number
        self.resources: Dict[str, Any] = {}
        self.config: Dict[str, Any] = {}
        self.metric: Optional[str] = None
        self.checkpoint: Optional[Checkpoint] = None
        os.makedirs(path, exist_ok=True)
        self._go_on()

    def _go_on(self) -> None:
        """Takes up what an attempt before this one left: its last whole checkpoint and the reports
        up to it. A trial that ran out of memory loses no more than that.
        """
        kept: List[Dict[str, Any]] = []
        whole, other = checkpoints(self.path), exploited(self.path)
        last = whole[-1] if whole else other
        if last and other and last[-6:] <= other[-6:]:
            last = other  # it was told to go on from there after its own last one
        if last:
            self.checkpoint = Checkpoint(last)
            kept = lines(self.path)[: int(last[-6:])]
        with open(os.path.join(self.path, RESULTS + ".new"), "w") as file:
            for line in kept:
                file.write(json.dumps(line) + "\n")
        os.replace(file.name, os.path.join(self.path, RESULTS))
        for name in os.listdir(self.path):
            if name.startswith(".new_"):
                shutil.rmtree(os.path.join(self.path, name), ignore_errors=True)
        if os.path.exists(os.path.join(self.path, ERROR)):
            os.remove(os.path.join(self.path, ERROR))
        self.count = len(kept)
        before = kept[-1].get("time_total_s", 0.0) if kept else 0.0
        self.began, self.last = time.monotonic() - before, time.monotonic()

    def save_params(self) -> None:
        """The settings as the training has them, for whoever reads the results."""
        try:
            text = pickle.dumps(self.config)
        except Exception:  # a lambda, a lock: the settings are made anew of the values then
            return
        with open(os.path.join(self.path, PARAMS), "wb") as file:
            file.write(text)

    def report(self, said: Dict[str, Any], checkpoint: Any = None) -> bool:
        """Returns whether the study wants a checkpoint of this step."""
        value = flat(said).get(self.metric or "")
        if value is not None and (isinstance(value, str) or _number(value) is None):
            kind = "text" if isinstance(value, str) else "no number"
            raise TypeError(
                "report: %s=%.100r is %s, and trials are compared by it: report a number"
                % (self.metric, value, kind)
            )
        self.count += 1
        now = time.monotonic()
        result: Dict[str, Any] = {
            "training_iteration": self.count,
            "time_this_iter_s": now - self.last,
            "time_total_s": now - self.began,
            "timestamp": int(time.time()),
            "trial_id": self.trial_id,
            "pid": os.getpid(),
            "done": False,
        }
        self.last = now
        result.update(said)
        with open(os.path.join(self.path, RESULTS), "a") as file:
            file.write(json.dumps({k: _json(v) for k, v in result.items()}) + "\n")
        stored = self._store(checkpoint) if checkpoint is not None else None
        tell(dict(said, training_iteration=result["training_iteration"]), self.count)
        answer = self.driver.ask("result", self.number, self.count, _plain(result), stored)
        self._forget()
        return self._obey(answer)

    def save(self, checkpoint: Any) -> None:
        """Keeps a checkpoint of the last report."""
        self.driver.ask("saved", self.number, self._store(checkpoint))
        self._forget()

    def _obey(self, answer: Any) -> bool:
        if not answer or answer[0] in ("go on", "save"):
            return bool(answer) and answer[0] == "save"
        if answer[0] == "exploit":
            raise Exploit(answer[1], answer[2])
        if answer[0] == "error":
            raise RuntimeError(answer[1])
        raise StopTraining(early=answer[0] == "early", all_of_them=answer[0] == "all")

    def _store(self, checkpoint: Any) -> str:
        if not hasattr(checkpoint, "path"):
            raise TypeError("checkpoint=%r: take Checkpoint.from_directory(path)" % (checkpoint,))
        final = os.path.join(self.path, "checkpoint_%06d" % self.count)
        put(checkpoint.path, final)
        self.checkpoint = Checkpoint(final)
        return final

    def _forget(self) -> None:
        """Deletes checkpoints beyond the number to keep: the worst, never the last. The program
        that holds the study knows of the last by now, and hands no other trial one of these.
        """
        most = getattr(self.keep, "num_to_keep", None)
        there = checkpoints(self.path)
        if not most or len(there) <= most:
            return
        name = getattr(self.keep, "checkpoint_score_attribute", None)
        worst = there[0]
        if name:
            said = lines(self.path)
            sign = -1 if getattr(self.keep, "checkpoint_score_order", "max") == "min" else 1
            scores = {}
            for p in there[:-1]:
                at = int(p[-6:]) - 1
                value = flat(said[at]).get(name) if at < len(said) else None
                score = sign * float(value) if isinstance(value, (int, float)) else math.nan
                scores[p] = -math.inf if math.isnan(score) else score
            worst = min(scores, key=lambda p: scores[p])
        shutil.rmtree(worst, ignore_errors=True)

    def failed(self, error: BaseException) -> None:
        """Keeps the exception for Result.error."""
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        try:
            kept = pickle.dumps((error, text))
            pickle.loads(kept)  # noqa: S301  our own: some can be written and not read
        except Exception:
            kept = pickle.dumps((RuntimeError("%s: %s" % (type(error).__name__, error)), text))
        with contextlib.suppress(OSError):
            with open(os.path.join(self.path, ERROR), "wb") as file:
                file.write(kept)
            with open(os.path.join(self.path, "error.txt"), "w") as readable:
                readable.write(text)


def _json(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_json(v) for v in value]
    if isinstance(value, dict):
        return {str(k): _json(v) for k, v in value.items()}
    for plain in ("item", "tolist"):  # of NumPy and torch: one number as it is, an array as lists
        try:
            return _json(getattr(value, plain)())
        except (AttributeError, TypeError, ValueError, RuntimeError):
            pass
    number = _number(value)
    return repr(value) if number is None else number


def _number(value: Any) -> Optional[float]:
    """A number as float: arrays and tensors of one element too; None: it is none."""
    try:
        return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None


def _plain(result: Dict[str, Any]) -> Dict[str, Any]:
    """A report without tensors and the like: the other process need not know their library."""
    out: Dict[str, Any] = {}
    for name, value in result.items():
        if isinstance(value, dict):
            out[name] = _plain(value)
        elif isinstance(value, (bool, int, float, str, type(None))):
            out[name] = value
        else:
            out[name] = _json(value)
    return out
