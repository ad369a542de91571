"""Memory for Ray.

Inside a study that stays Ray's own, `with_memory` learns how many bytes a trial takes and asks Ray
for them; Ray by itself counts processors and cards only:

    from memroom.ray import MemoryCallback, with_memory
    from ray import tune

    tuner = tune.Tuner(
        with_memory(train),
        param_space={"lr": tune.loguniform(1e-4, 1e-2), "bs": tune.choice([16, 64])},
        run_config=tune.RunConfig(callbacks=[MemoryCallback()]),
    )

For a script that is to use memroom.tune in Ray's place, `from memroom import ray, tune` gives the
few calls around it: init and shutdown do nothing here, because memroom.tune starts no cluster.
Everything else is Ray's own where Ray is installed.
"""

import importlib
import json
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from .command import find

if TYPE_CHECKING:
    Callback = object
else:
    try:
        from ray.tune import Callback
    except ImportError:  # then there is no study to call back from
        Callback = object

MIB = 1 << 20
HOST_PEAK = "memroom/peak_host_bytes"
DEVICE_PEAK = "memroom/peak_device_bytes"
CARD_TOTAL = "memroom/card_bytes"
CONTEXT = 512 * MIB  # of the driver on a card, which the allocator does not count


def init(*args: Any, **kwargs: Any) -> None:
    """memroom.tune needs no cluster: trials are processes on this machine."""


def shutdown(*args: Any, **kwargs: Any) -> None:
    """There is nothing to shut down."""


def is_initialized() -> bool:
    return True


def __getattr__(name: str) -> Any:
    try:
        return getattr(importlib.import_module("ray"), name)
    except ImportError:
        raise AttributeError("ray.%s needs Ray: pip install 'ray[tune]'" % name) from None


class Learner:
    """What the trials of one study took. It lives in the process of the study."""

    def __init__(self, cpus: float, gpus: float) -> None:
        self.cpus = cpus
        self.gpus = gpus  # of each trial, as the user asked; 1 may become a fraction
        self.card = 0  # bytes of the smallest card that was seen
        self.host: List[Dict[str, Any]] = []
        self.device: List[Dict[str, Any]] = []
        self.peaks: Dict[str, Tuple[int, int]] = {}  # of trials by id, host and card
        self.asked: Dict[str, Tuple[int, float]] = {}  # bytes and share of a card, by settings
        self.least: Dict[str, int] = {}  # settings that ran out: their next request

    def request(self, config: Dict[str, Any]) -> Dict[str, float]:
        """The resources of the next trial with these settings."""
        settings = flatten(config)
        node = largest_node()
        need, known = forecast(self.host, settings, fixed=True)
        memory = min(need, node) if known else node
        memory = min(node, max(memory, self.least.get(key_of(settings), 0)))
        resources: Dict[str, float] = {"cpu": self.cpus, "memory": float(memory)}
        share = self.gpus
        if self.gpus == 1 and self.card > 0:
            bytes_there, seen = forecast(self.device, settings, fixed=True)
            if seen:
                share = min(1.0, -(-int(bytes_there) * 100 // self.card) / 100)
        if share > 0:
            resources["gpu"] = share
        self.asked[key_of(settings)] = (memory, share)
        return resources

    def saw(self, trial_id: str, result: Dict[str, Any]) -> None:
        """Keeps the peaks that a trial reported so far."""
        host, device = self.peaks.get(trial_id, (0, 0))
        host = max(host, int(result.get(HOST_PEAK) or 0))
        device = max(device, int(result.get(DEVICE_PEAK) or 0))
        self.peaks[trial_id] = (host, device)
        card = int(result.get(CARD_TOTAL) or 0)
        if card > 0:
            self.card = min(card, self.card or card)

    def ended(self, trial_id: str, config: Dict[str, Any]) -> None:
        """Learns from a trial that ended well, or was stopped early."""
        host, device = self.peaks.pop(trial_id, (0, 0))
        settings = flatten(config)
        if host > 0:
            self.host.append({"params": settings, "bytes": host})
        if device > 0:
            self.device.append({"params": settings, "bytes": device})

    def ran_out(self, trial_id: str, config: Dict[str, Any], on_card: bool) -> None:
        """Learns that what a trial was given is not enough."""
        host, device = self.peaks.pop(trial_id, (0, 0))
        settings = flatten(config)
        memory, share = self.asked.get(key_of(settings), (0, 0.0))
        if on_card:
            given = int(share * self.card) or device
            if given > 0:
                self.device.append({"params": settings, "bytes": given, "at_least": True})
            return
        # Ray enforces nothing: what it held when it died may be less or more than it asked for.
        had = max(host, memory if len(self.host) > 0 else host)
        if had > 0:
            self.host.append({"params": settings, "bytes": had, "at_least": True})
            self.least[key_of(settings)] = had * 3 // 2

    def state(self) -> Dict[str, Any]:
        return {"host": self.host, "device": self.device, "card": self.card, "least": self.least}

    def restore(self, state: Dict[str, Any]) -> None:
        self.host, self.device = list(state["host"]), list(state["device"])
        self.card, self.least = state["card"], dict(state["least"])


# The learners of this process. Ray copies a trainable when it registers it, so the copy finds its
# learner by name.
_learners: Dict[str, Learner] = {}


def with_memory(trainable: Any, cpus: Optional[float] = None, gpus: Optional[float] = None) -> Any:
    """Returns a trainable whose trials ask Ray for the bytes they will need, learnt from the trials
    before them. Takes a function, one with tune.with_parameters or tune.with_resources around it,
    or a subclass of tune.Trainable. The first trial asks for all memory of a node: nothing is known
    of it. Add MemoryCallback() to the study's callbacks, which does the learning.
    """
    tune = _ray_tune()
    find()  # say now, not at the second trial, that it is missing
    base, wanted = _as_class(tune, trainable)
    cpus = float(wanted.get("cpu", wanted.get("CPU", 1)) if cpus is None else cpus)
    gpus = float(wanted.get("gpu", wanted.get("GPU", 0)) if gpus is None else gpus)
    name = "%d-%d" % (os.getpid(), len(_learners))
    _learners[name] = Learner(cpus, gpus)
    # Ray creates trials ahead of time and asks for their resources then. Later ones know more.
    os.environ.setdefault("TUNE_MAX_PENDING_TRIALS_PG", "1")
    return _measured(base, name)


def _ray_tune() -> Any:
    try:
        return importlib.import_module("ray.tune")
    except ImportError:
        raise ImportError("with_memory works inside of Ray Tune: pip install 'ray[tune]'") from None


def _as_class(tune: Any, trainable: Any) -> Tuple[Any, Dict[str, float]]:
    """A subclass of Trainable and the resources that the user set for it."""
    if isinstance(trainable, type):
        if not issubclass(trainable, tune.Trainable):
            raise TypeError(
                "with_memory takes a function of config or a subclass of tune.Trainable, not %s"
                % trainable.__name__
            )
        kind: Any = trainable
        return kind, _plain(kind.default_resource_request({}))
    if not callable(trainable) or hasattr(trainable, "fit"):
        raise TypeError(
            "with_memory takes a function of config or a subclass of tune.Trainable, not %s. "
            "A Ray Train trainer brings workers of its own: call its fit() inside the function"
            % type(trainable).__name__
        )
    wrap = importlib.import_module("ray.tune.trainable.function_trainable").wrap_function
    return wrap(trainable), _plain(getattr(trainable, "_resources", None))


def _plain(resources: Any) -> Dict[str, float]:
    """Resources as a dictionary: those of the trial itself, its first bundle."""
    if resources is None:
        return {}
    if isinstance(resources, dict):
        return resources
    if not hasattr(resources, "bundles"):
        raise ValueError(
            "with_memory sets resources by the settings itself: give tune.with_resources a "
            "dictionary, not a function"
        )
    bundles = resources.bundles
    if len(bundles) > 1:
        raise ValueError(
            "with_memory counts the memory of one process; this trainable asks for %d bundles "
            "(workers): set their memory in the placement group yourself" % len(bundles)
        )
    return dict(bundles[0])


def _measured(base: Any, learner: str) -> Any:
    """base with the memory of its process in every result."""

    class Measured(base):
        memroom_learner = learner

        def setup(self, config: Dict[str, Any], **kwargs: Any) -> Any:
            from memroom import ray as ours

            self._memroom = ours.Meter()
            return super().setup(config, **kwargs)

        def step(self) -> Dict[str, Any]:
            result: Dict[str, Any] = super().step()
            result.update(self._memroom.peaks())
            return result

        @classmethod
        def default_resource_request(cls, config: Dict[str, Any]) -> Any:
            from memroom import ray as ours

            return ours.placement(learner, config)

    Measured.__name__ = Measured.__qualname__ = getattr(base, "_name", base.__name__)
    return Measured


def placement(learner: str, config: Dict[str, Any]) -> Any:
    """The resources of a trial in Ray's own form; None where the study is another process."""
    found = _learners.get(learner)
    if found is None:
        return None
    resources = found.request(config)
    return importlib.import_module("ray.tune").PlacementGroupFactory(
        [{_ray_name(k): v for k, v in resources.items()}]
    )


def _ray_name(kind: str) -> str:
    return kind.upper() if kind in ("cpu", "gpu") else kind


class Meter:
    """Peaks of this process and its children, read a few times a second."""

    def __init__(self) -> None:
        self.host = 0
        self._over = threading.Event()
        threading.Thread(target=self._watch, daemon=True, name="memroom").start()

    def _watch(self) -> None:
        while not self._over.wait(0.2):
            self.host = max(self.host, resident(os.getpid()))

    def peaks(self) -> Dict[str, int]:
        # The kernel remembers a peak between two readings, of this process alone.
        self.host = max(self.host, resident(os.getpid()), _status(os.getpid(), "VmHWM"))
        out = {HOST_PEAK: self.host}
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            card = torch.cuda.current_device()
            reserved = int(torch.cuda.max_memory_reserved(card))
            if reserved > 0:
                out[DEVICE_PEAK] = reserved + CONTEXT
                out[CARD_TOTAL] = int(torch.cuda.get_device_properties(card).total_memory)
        return out


def resident(pid: int) -> int:
    """Bytes that a process and its children hold and that no file backs; shared pages once."""
    total, most_shared, todo = 0, 0, [pid]
    while todo:
        one = todo.pop()
        total += _status(one, "RssAnon")
        most_shared = max(most_shared, _status(one, "RssShmem"))
        try:
            with open("/proc/%d/task/%d/children" % (one, one)) as f:
                todo.extend(int(child) for child in f.read().split())
        except (OSError, ValueError):
            pass
    return total + most_shared


def _status(pid: int, field: str) -> int:
    try:
        with open("/proc/%d/status" % pid) as f:
            for line in f:
                if line.startswith(field + ":"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return 0


class MemoryCallback(Callback):
    """Learns from the trials of a study with with_memory. A trial that ran out of memory and that
    Ray tries again (FailureConfig(max_failures=...)) gets more.
    """

    def on_trial_result(
        self, iteration: int, trials: List[Any], trial: Any, result: Dict[str, Any], **info: Any
    ) -> None:
        learner = _learner_of(trial)
        if learner is not None:
            learner.saw(trial.trial_id, result)

    def on_trial_complete(self, iteration: int, trials: List[Any], trial: Any, **info: Any) -> None:
        learner = _learner_of(trial)
        if learner is not None:
            learner.saw(trial.trial_id, trial.last_result or {})
            learner.ended(trial.trial_id, trial.config)

    def on_trial_error(self, iteration: int, trials: List[Any], trial: Any, **info: Any) -> None:
        learner, where = _learner_of(trial), shortage(trial)
        if learner is not None and where:
            learner.ran_out(trial.trial_id, trial.config, where == "card")

    def on_trial_recover(self, iteration: int, trials: List[Any], trial: Any, **info: Any) -> None:
        learner, where = _learner_of(trial), shortage(trial)
        if learner is None or not where:
            return
        learner.ran_out(trial.trial_id, trial.config, where == "card")
        if trial.status != "RUNNING":
            trial.update_resources(placement(_name_of(trial), trial.config))

    def get_state(self) -> Optional[Dict[str, Any]]:
        """Kept by Ray with the study, for Tuner.restore."""
        return {name: learner.state() for name, learner in _learners.items()} or None

    def set_state(self, state: Dict[str, Any]) -> None:
        """Ray takes a study up again in a new process: with its newest learner."""
        if _learners and state:
            list(_learners.values())[-1].restore(list(state.values())[-1])


def _name_of(trial: Any) -> str:
    return str(getattr(trial.get_trainable_cls(), "memroom_learner", ""))


def _learner_of(trial: Any) -> Optional[Learner]:
    return _learners.get(_name_of(trial))


# How Ray and the frameworks say that memory ran out.
ON_CARD = (
    "CUDA out of memory",
    "torch.OutOfMemoryError",
    "RESOURCE_EXHAUSTED",
    "HIP out of memory",
)
ON_HOST = (
    "OutOfMemoryError",  # Ray's, of its memory monitor
    "MemoryError",
    "ray memory manager",
    "SIGKILL",
    "Worker exit type: SYSTEM_ERROR",
    "can't allocate memory",
)


def shortage(trial: Any) -> str:
    """Where a failed trial ran out of memory: card, host, or nowhere ("")."""
    text = ""
    try:
        with open(trial.error_file or "", errors="replace") as f:
            text = f.read()[-20000:]
    except OSError:
        pass
    if any(words in text for words in ON_CARD):
        return "card"
    return "host" if any(words in text for words in ON_HOST) else ""


def flatten(config: Dict[str, Any], prefix: str = "") -> Dict[str, Any]:
    """Settings of a trial as plain values; nested ones are named outer.inner."""
    out: Dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, dict):
            out.update(flatten(value, prefix + str(name) + "."))
        elif isinstance(value, (bool, int, float, str)) or value is None:
            out[prefix + str(name)] = value
        elif hasattr(value, "item") and getattr(value, "size", 0) == 1:  # a NumPy number
            out[prefix + str(name)] = value.item()
        else:
            out[prefix + str(name)] = repr(value)[:200]
    return out


def key_of(settings: Dict[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True, default=str)


def largest_node() -> int:
    """Bytes that the largest node of the cluster has for tasks."""
    ray = importlib.import_module("ray")
    nodes = [n for n in ray.nodes() if n.get("Alive")]
    return int(max((n["Resources"].get("memory", 0) for n in nodes), default=0))


def forecast(seen: List[Dict[str, Any]], settings: Dict[str, Any], fixed: bool) -> Tuple[int, bool]:
    """An upper quantile of what a trial takes, from trials that were seen; known is False at the
    beginning.
    """
    if not seen:
        return 0, False
    question = json.dumps({"seen": seen, "params": settings, "fixed": fixed}, default=str)
    done = subprocess.run(
        [find(), "_forecast"], input=question.encode(), stdout=subprocess.PIPE, check=True
    )
    answer = json.loads(done.stdout)
    return int(answer["bytes"]), bool(answer["known"])
