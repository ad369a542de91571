"""Hyperparameter search in Ray Tune's call shape, each trial a process of its own.

    from memroom import tune

    tune.run(train_fn, config={"lr": tune.loguniform(1e-4, 1e-2)}, num_samples=10)

The study is run by the `memroom` command: trials are packed by memory, none kills another. A trial
is this very script, started again; there the call of `run` (or `Tuner.fit`) trains with the trial's
settings instead of starting a study, and the process ends.
"""

import inspect
import json
import math
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import types
from typing import Any, Callable, Dict, List, Optional

CALL = "MEMROOM_TUNE_CALL"  # number of the call whose trial this process is
FOLDER = "MEMROOM_TUNE_FOLDER"  # where trials leave what they reported
DONE = "memroom_done"  # stands in for a metric where none is named

_calls = 0  # of run and fit in this process so far
_reports = 0


class _RayLater:
    """Stands in for ray.init: trials are processes of ours, and a cluster for each of them would
    take more memory than many a model. Ray starts, with the arguments that were given, when the
    training itself asks for it.
    """

    def __init__(self, ray: Any) -> None:
        self.inner, self.kwargs, self.shutdown = ray.init, {}, ray.shutdown
        self.args: Any = ()
        self.wanted = False
        ray.init = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _training:
            return self.inner(*(args or self.args), **(kwargs or self.kwargs))
        if not self.wanted and os.environ.get(CALL) is None:
            _note("tune: ray.init waits until the training uses Ray; the study does not need it")
        self.args, self.kwargs, self.wanted = args, kwargs, True
        return None


_training = False  # in a trial: the training function runs


def _postpone_ray() -> None:
    ray = sys.modules.get("ray")
    if ray is not None and hasattr(ray, "init") and not isinstance(ray.init, _RayLater):
        _RayLater(ray)


class Domain:
    """What one setting may be; `text` is how the command writes it."""

    def __init__(self, text: str, values: Optional[List[Any]] = None, grid: bool = False) -> None:
        self.text, self.values, self.grid = text, values, grid

    def __repr__(self) -> str:
        return self.text

    def described(self) -> Any:
        """The domain for the study file. Objects that JSON has no word for go by their place."""
        if self.values is None:
            return self.text
        values = [v if _plain(v) else "#%d %r" % (i, v) for i, v in enumerate(self.values)]
        return {"grid_search" if self.grid else "choice": values}

    def restored(self, value: Any) -> Any:
        if self.values is not None and isinstance(value, str) and value.startswith("#"):
            return self.values[int(value[1:].split(" ", 1)[0])]
        return value


def _plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_plain(v) for v in value)
    return value is None or isinstance(value, (bool, int, float, str))


def _call(name: str, *args: Any) -> Domain:
    return Domain("%s(%s)" % (name, ", ".join(repr(a) for a in args)))


def uniform(lower: float, upper: float) -> Domain:
    return _call("uniform", lower, upper)


def quniform(lower: float, upper: float, q: float) -> Domain:
    return _call("quniform", lower, upper, q)


def loguniform(lower: float, upper: float, base: float = 10) -> Domain:
    return _call("loguniform", lower, upper)


def qloguniform(lower: float, upper: float, q: float, base: float = 10) -> Domain:
    return _call("qloguniform", lower, upper, q)


def randint(lower: int, upper: int) -> Domain:
    """Whole numbers below upper."""
    return _call("randint", lower, upper)


def qrandint(lower: int, upper: int, q: int = 1) -> Domain:
    return _call("qrandint", lower, upper, q)


def lograndint(lower: int, upper: int, base: float = 10) -> Domain:
    return _call("lograndint", lower, upper)


def qlograndint(lower: int, upper: int, q: int, base: float = 10) -> Domain:
    return _call("qlograndint", lower, upper, q)


def randn(mean: float = 0.0, sd: float = 1.0) -> Domain:
    return _call("randn", mean, sd)


def qrandn(mean: float, sd: float, q: float) -> Domain:
    return _call("qrandn", mean, sd, q)


def choice(categories: Any) -> Domain:
    return Domain("choice(%r)" % (list(categories),), list(categories))


def grid_search(values: Any) -> Domain:
    return Domain("grid_search(%r)" % (list(values),), list(values), grid=True)


def sample_from(func: Callable) -> Domain:
    raise NotImplementedError(
        "tune.sample_from: a function cannot be searched; derive the value in the training "
        "function, from the settings that are searched"
    )


class ASHAScheduler:
    """Stops the worse trials early. One report is one unit of time."""

    def __init__(
        self,
        time_attr: str = "training_iteration",
        metric: Optional[str] = None,
        mode: Optional[str] = None,
        max_t: int = 100,
        grace_period: int = 1,
        reduction_factor: float = 4,
        brackets: int = 1,
        **ignored: Any,
    ) -> None:
        self.metric, self.mode, self.max_t = metric, mode, max_t
        self.grace_period, self.reduction_factor = grace_period, reduction_factor


AsyncHyperBandScheduler = ASHAScheduler


class FIFOScheduler:
    """Every trial runs to its end."""

    metric = mode = None


class Trainable:
    """A training as a class: `setup` once, `step` until `done` or the stop criteria."""

    def __init__(self, config: Optional[Dict[str, Any]] = None) -> None:
        self.config = config or {}
        self.iteration = 0
        self.setup(self.config)

    def setup(self, config: Dict[str, Any]) -> None:
        """For the subclass: prepare."""

    def step(self) -> Dict[str, Any]:
        raise NotImplementedError("a Trainable needs a step method that gives a dict of metrics")

    def cleanup(self) -> None:
        """For the subclass: tidy up."""


class TuneConfig:
    """What is searched and how."""

    def __init__(
        self,
        metric: Optional[str] = None,
        mode: Optional[str] = None,
        num_samples: int = 1,
        scheduler: Any = None,
        search_alg: Any = None,
        max_concurrent_trials: Optional[int] = None,
        time_budget_s: Optional[float] = None,
        **ignored: Any,
    ) -> None:
        self.metric, self.mode, self.num_samples = metric, mode, num_samples
        self.scheduler, self.search_alg = scheduler, search_alg
        self.max_concurrent_trials = max_concurrent_trials


class RunConfig:
    """Name and stop criteria of a study."""

    def __init__(self, name: Optional[str] = None, stop: Any = None, **ignored: Any) -> None:
        self.name, self.stop = name, stop


def with_resources(trainable: Any, resources: Any) -> Any:
    """Says what each trial needs: {"cpu": 2, "gpu": 1, "memory": bytes}."""
    holder = _Prepared(trainable)
    holder.resources = dict(resources)
    return holder


def with_parameters(trainable: Any, **kwargs: Any) -> Any:
    """Hands objects to every trial beside its settings."""
    holder = _Prepared(trainable)
    holder.parameters.update(kwargs)
    return holder


class _Prepared:
    def __init__(self, trainable: Any) -> None:
        inner = trainable if isinstance(trainable, _Prepared) else None
        self.trainable: Any = inner.trainable if inner else trainable
        self.resources: Optional[Dict[str, Any]] = inner.resources if inner else None
        self.parameters: Dict[str, Any] = dict(inner.parameters) if inner else {}


def report(metrics: Optional[Dict[str, Any]] = None, checkpoint: Any = None, **values: Any) -> None:
    """Tells the study numbers of this trial: report({"loss": 0.1}) or report(loss=0.1)."""
    global _reports
    said = dict(metrics or {}, **values)
    _reports += 1
    said.setdefault("training_iteration", _reports)
    numbers = {}
    for name, value in said.items():
        try:
            numbers[name] = float(value)
        except (TypeError, ValueError):
            continue
    _tell(numbers, _reports)
    folder = os.environ.get(FOLDER)
    if folder and os.environ.get("MEMROOM_TRIAL"):
        path = os.path.join(folder, "trial-%s.jsonl" % os.environ["MEMROOM_TRIAL"])
        with open(path, "a") as file:
            file.write(json.dumps({k: _json(v) for k, v in said.items()}) + "\n")


def _json(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if _plain(value):
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        return repr(value)


def _tell(numbers: Dict[str, float], step: int) -> None:
    """Over the probe; where there is none, as a line that the study reads."""
    import memroom

    if not memroom.report(step=step, **numbers):
        print(json.dumps(numbers), flush=True)


def run(
    run_or_experiment: Any,
    *,
    config: Optional[Dict[str, Any]] = None,
    num_samples: int = 1,
    metric: Optional[str] = None,
    mode: Optional[str] = None,
    resources_per_trial: Optional[Dict[str, Any]] = None,
    scheduler: Any = None,
    search_alg: Any = None,
    stop: Any = None,
    name: Optional[str] = None,
    max_concurrent_trials: Optional[int] = None,
    host_mem: Optional[str] = None,
    gpu_mem: Optional[str] = None,
    seed: int = 0,
    verbose: Any = 1,
    max_failures: int = 0,
    **ignored: Any,
) -> "ExperimentAnalysis":
    """Runs a study and gives its results, as Ray's tune.run does.

    host_mem and gpu_mem are budgets of the whole study ("16GiB").
    """
    trainable = _Prepared(run_or_experiment)
    study = _Study(trainable, config or {}, num_samples, metric, mode, scheduler, search_alg)
    study.resources = resources_per_trial or trainable.resources or {}
    study.stop, study.name, study.concurrent = stop, name, max_concurrent_trials
    study.host_mem, study.gpu_mem, study.seed = host_mem, gpu_mem, seed
    study.quiet, study.retries, study.ignored = not verbose, max(0, max_failures), sorted(ignored)
    return ExperimentAnalysis(study.results(), study.metric, study.mode)


class Tuner:
    """Ray's Tuner: Tuner(train, param_space=..., tune_config=TuneConfig(...)).fit()."""

    def __init__(
        self,
        trainable: Any = None,
        *,
        param_space: Optional[Dict[str, Any]] = None,
        tune_config: Optional[TuneConfig] = None,
        run_config: Any = None,
        host_mem: Optional[str] = None,
        gpu_mem: Optional[str] = None,
        seed: int = 0,
    ) -> None:
        self._trainable = _Prepared(trainable)
        self._space, self._tune = param_space or {}, tune_config or TuneConfig()
        self._run = run_config or RunConfig()
        self._budgets = (host_mem, gpu_mem, seed)

    def fit(self) -> "ResultGrid":
        t = self._tune
        study = _Study(
            self._trainable, self._space, t.num_samples, t.metric, t.mode, t.scheduler, t.search_alg
        )
        study.resources = self._trainable.resources or {}
        study.stop, study.name = getattr(self._run, "stop", None), getattr(self._run, "name", None)
        study.concurrent = t.max_concurrent_trials
        study.host_mem, study.gpu_mem, study.seed = self._budgets
        return ResultGrid(study.results(), study.metric, study.mode)


class _Study:
    def __init__(
        self,
        trainable: _Prepared,
        config: Dict[str, Any],
        num_samples: int,
        metric: Optional[str],
        mode: Optional[str],
        scheduler: Any,
        search_alg: Any,
    ) -> None:
        if search_alg is not None:
            raise NotImplementedError(
                "search_alg: memroom.tune searches at random; `memroom tune --search optuna` "
                "and memroom.optuna take Optuna's samplers"
            )
        if not callable(trainable.trainable):
            raise TypeError(
                "tune.run needs a function or a Trainable, not %r" % trainable.trainable
            )
        self.trainable, self.config, self.samples = trainable, config, num_samples
        self.scheduler = None if isinstance(scheduler, FIFOScheduler) else scheduler
        self.metric = metric or getattr(scheduler, "metric", None)
        self.mode = mode or getattr(scheduler, "mode", None)
        if self.scheduler is not None and not isinstance(self.scheduler, ASHAScheduler):
            raise NotImplementedError(
                "scheduler %r is not known here: take tune.ASHAScheduler, or leave it out"
                % scheduler
            )
        self.resources: Dict[str, Any] = {}
        self.stop: Any = None
        self.name: Optional[str] = None
        self.concurrent: Optional[int] = None
        self.host_mem: Optional[str] = None
        self.gpu_mem: Optional[str] = None
        self.seed, self.quiet, self.retries = 0, False, 0
        self.ignored: List[str] = []

    def results(self) -> List["Result"]:
        """Runs the study, or, in a process that is a trial of it, the trial."""
        global _calls
        _calls += 1
        mine = os.environ.get(CALL)
        if mine is None:
            return self._run(_calls)
        if _calls < int(mine):  # a study before the one whose trial this is: it is over
            path = os.path.join(os.path.dirname(os.environ[FOLDER]), "study-%d" % _calls)
            return self._read(path)
        self._train(json.loads(os.environ["MEMROOM_PARAMS"]))
        raise SystemExit(0)

    def _train(self, params: Dict[str, Any]) -> None:
        global _training
        _training = True
        config = _filled(self.config, params)
        target, result = self.trainable.trainable, None
        if inspect.isclass(target) and hasattr(target, "step"):
            self._steps(target, config)
        else:
            if len(inspect.signature(target).parameters) > 1 + len(self.trainable.parameters):
                raise TypeError("the training function takes one argument, the settings")
            result = target(config, **self.trainable.parameters)
        if isinstance(result, dict):
            report(result)
        elif isinstance(result, (int, float)) and self.metric:
            report({self.metric: result})
        if not self.metric:
            _tell({DONE: 0.0}, _reports + 1)

    def _steps(self, target: Any, config: Dict[str, Any]) -> None:
        trainable = target(config)
        if not isinstance(trainable, Trainable):  # Ray's own base class: it has set up itself
            trainable.iteration = 0
        try:
            while True:
                result = dict(trainable.step())
                trainable.iteration += 1
                done = result.pop("done", False)
                report(result)
                result["training_iteration"] = trainable.iteration
                if done or self._reached(result):
                    return
        finally:
            trainable.cleanup()

    def _reached(self, result: Dict[str, Any]) -> bool:
        if callable(self.stop):
            return bool(self.stop("", result))
        return any(k in result and result[k] >= v for k, v in dict(self.stop or {}).items())

    def _run(self, call: int) -> List["Result"]:
        for name in self.ignored:
            _note("tune: %s is not used here" % name)
        folder = os.path.join(_root(), "study-%d" % call)
        os.makedirs(folder)
        path = os.path.join(folder, "study.json")
        with open(path, "w") as file:
            json.dump(self._described(call, folder), file)
        out = os.path.join(folder, "out.json")
        command = [_binary(), "tune", "--json", out]
        if self.quiet:
            command.append("--quiet")
        code = _shown(command + [path])
        if not os.path.exists(out):
            raise RuntimeError(
                "the study could not be run (exit code %d): the lines above say why" % code
            )
        if code == 130:
            raise KeyboardInterrupt
        return self._read(folder)

    def _command(self, folder: str) -> List[str]:
        """What starts a trial."""
        if _script() is not None:
            return _this_script()
        from . import tune_notebook

        return tune_notebook.command(self, folder)

    def _described(self, call: int, folder: str) -> Dict[str, Any]:
        parameters: Dict[str, Any] = {}
        _collect(self.config, "", parameters)
        if not parameters:
            # nothing is searched: repeated runs, which all take the same memory
            parameters["seed"] = {"randint": [0, 2**31]}
        study: Dict[str, Any] = {
            "command": self._command(folder),
            "parameters": parameters,
            "samples": self.samples,
            "metric": self.metric or DONE,
            "mode": self.mode or "",
            "seed": self.seed,
            "retries": self.retries,
            # naming the settings somewhere keeps them out of the script's own arguments
            "env": {CALL: str(call), FOLDER: folder, "MEMROOM_TUNE_SETTINGS": "${params_json}"},
        }
        study.update(self._resources())
        for key, value in (
            ("name", self.name),
            ("concurrent", self.concurrent),
            ("host_mem", self.host_mem),
            ("gpu_mem", self.gpu_mem),
        ):
            if value:
                study[key] = value
        if not self.mode:
            del study["mode"]
        if self.scheduler is not None:
            s = self.scheduler
            study["scheduler"] = "asha"
            study["max_t"], study["grace"] = int(s.max_t), int(s.grace_period)
            study["reduction"] = int(s.reduction_factor)
        return study

    def _resources(self) -> Dict[str, Any]:
        """What each trial asks for, as far as this machine has it. Ray would wait for ever."""
        out: Dict[str, Any] = {}
        there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        cpus = self.resources.get("cpu", self.resources.get("CPU"))
        if cpus:
            if cpus > (there or 1):
                _note("tune: a trial asks for %s processors, there are %s" % (cpus, there))
            out["cpus_per_trial"] = min(cpus, there or 1)
        gpus = self.resources.get("gpu", self.resources.get("GPU"))
        if gpus:
            seen = os.path.exists("/dev/nvidiactl") or os.path.exists("/proc/driver/nvidia/version")
            if not seen:
                _note("tune: a trial asks for %s cards and none is here: it trains without" % gpus)
            out["gpus_per_trial"] = int(math.ceil(gpus)) if seen else 0
        if self.resources.get("memory"):
            out["trial_mem"] = int(self.resources["memory"])
        return out

    def _read(self, folder: str) -> List["Result"]:
        with open(os.path.join(folder, "out.json")) as file:
            trials = json.load(file)["trials"]
        return [Result(t, _filled(self.config, t["params"]), folder, self.metric) for t in trials]


def _root() -> str:
    """The folder of this program's studies, while they are run."""
    root = os.environ.get(FOLDER + "_ROOT")
    if not root:
        root = tempfile.mkdtemp(prefix="memroom-tune-")
        os.environ[FOLDER + "_ROOT"] = root
    return root


def _note(text: str) -> None:
    print("memroom: " + text, file=sys.stderr, flush=True)


def _collect(config: Dict[str, Any], prefix: str, into: Dict[str, Any]) -> None:
    for name, value in config.items():
        value = _domain(value)
        if isinstance(value, Domain):
            into[prefix + name] = value.described()
        elif isinstance(value, dict):
            _collect(value, prefix + name + "/", into)


def _domain(value: Any) -> Any:
    """Ray's older form {"grid_search": [...]} and Ray's own domain objects count too."""
    if isinstance(value, dict) and list(value) == ["grid_search"]:
        return grid_search(value["grid_search"])
    if type(value).__module__.startswith("ray.tune"):
        raise TypeError(
            "%r is a domain of Ray: take it from memroom.tune (from memroom import tune)" % value
        )
    return value


def _filled(config: Dict[str, Any], params: Dict[str, Any], prefix: str = "") -> Dict[str, Any]:
    out = {}
    for name, value in config.items():
        value = _domain(value)
        if isinstance(value, Domain):
            out[name] = value.restored(params[prefix + name])
        elif isinstance(value, dict):
            out[name] = _filled(value, params, prefix + name + "/")
        else:
            out[name] = value
    return out


def _script() -> Optional[List[str]]:
    """The words after Python of the command that started this program; None: it is no script."""
    argv = list(getattr(sys, "orig_argv", []) or [])
    if not argv:
        argv = [sys.executable] + sys.argv
    words = argv[1:]
    if not words or words[-1] == "-" or "ipykernel" in " ".join(words) or hasattr(sys, "ps1"):
        return None
    return words


def _this_script() -> List[str]:
    """The command that started this program: every trial is this program again."""
    words = _script()
    if words is None:
        raise RuntimeError(
            "memroom.tune starts your script again for each trial, and here is no script: "
            "save the program to a file and run that"
        )
    return [sys.executable] + words


def _shown(words: List[str]) -> int:
    """Runs a command whose output is for the user; in a notebook it stands below the cell."""
    if _script() is None:
        from . import tune_notebook

        return tune_notebook.run(words)
    return subprocess.run(words).returncode


def _binary() -> str:
    """The memroom command: named by the environment, installed beside us, or on PATH."""
    beside = os.path.join(sysconfig.get_path("scripts"), "memroom")
    for path in (os.environ.get("MEMROOM_BINARY"), beside, shutil.which("memroom")):
        if path and os.path.exists(path):
            return path
    raise RuntimeError(
        "the memroom command is not installed here: install the wheel with pip, or put the binary "
        "on PATH"
    )


class Result:
    """One trial: its settings, what it reported last, what it took."""

    def __init__(
        self, trial: Dict[str, Any], config: Dict[str, Any], folder: str, metric: Optional[str]
    ) -> None:
        self.config, self.trial_id, self.state = config, trial["id"], trial["state"]
        self.params: Dict[str, Any] = trial["params"]
        self.peak_host_bytes = trial["peak_host_bytes"]
        self.peak_device_bytes = trial["peak_device_bytes"]
        self.reserved_bytes, self.attempts = trial["reserved_bytes"], trial["attempts"]
        self.history: List[Dict[str, Any]] = []
        path = os.path.join(folder, "trial-%s.jsonl" % trial["id"])
        if os.path.exists(path):
            with open(path) as file:
                self.history = [json.loads(line) for line in file if line.endswith("\n")]
        self.metrics = dict(self.history[-1]) if self.history else {}
        if metric and trial["value"] is not None:
            self.metrics[metric] = trial["value"]
        self.metrics["config"] = config
        self.error = None
        if self.state in ("failed", "infeasible"):
            self.error = RuntimeError("trial %s is %s" % (self.trial_id, self.state))

    last_result = property(lambda self: self.metrics)

    @property
    def metrics_dataframe(self) -> Any:
        return _pandas().DataFrame(self.history)

    def __repr__(self) -> str:
        return "Result(trial %s, %s, %r)" % (self.trial_id, self.state, self.config)


def _pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise ImportError("a dataframe needs pandas: pip install pandas") from None
    return pandas


class ResultGrid:
    """All trials of a study."""

    def __init__(
        self, results: List[Result], metric: Optional[str] = None, mode: Optional[str] = None
    ) -> None:
        self._results, self._metric, self._mode = results, metric, mode

    def __len__(self) -> int:
        return len(self._results)

    def __getitem__(self, i: int) -> Result:
        return self._results[i]

    @property
    def errors(self) -> List[Exception]:
        return [r.error for r in self._results if r.error is not None]

    num_errors = property(lambda self: len(self.errors))
    num_terminated = property(lambda self: len(self) - len(self.errors))

    def get_best_result(
        self, metric: Optional[str] = None, mode: Optional[str] = None, scope: str = "last"
    ) -> Result:
        metric, mode = metric or self._metric, mode or self._mode
        if not metric:
            raise ValueError("which metric? get_best_result(metric='loss', mode='min')")
        if mode not in ("min", "max"):
            raise ValueError("mode must be min or max, not %r" % (mode,))
        known = [r for r in self._results if not r.error and _number(r.metrics.get(metric))]
        if not known:
            raise RuntimeError(
                "no trial finished with a value of %s: does the training function report it under "
                "this name?" % metric
            )
        return (min if mode == "min" else max)(known, key=lambda r: r.metrics[metric])

    def get_dataframe(self, **ignored: Any) -> Any:
        rows = []
        for r in self._results:
            row = {k: v for k, v in r.metrics.items() if k != "config"}
            row.update(trial_id=r.trial_id, state=r.state, peak_host_bytes=r.peak_host_bytes)
            row.update(peak_device_bytes=r.peak_device_bytes, attempts=r.attempts)
            _rows(r.config, "config/", row)
            rows.append(row)
        return _pandas().DataFrame(rows)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _rows(config: Dict[str, Any], prefix: str, row: Dict[str, Any]) -> None:
    for name, value in config.items():
        if isinstance(value, dict):
            _rows(value, prefix + name + "/", row)
        else:
            row[prefix + name] = value


class ExperimentAnalysis(ResultGrid):
    """What tune.run gives."""

    trials = property(lambda self: list(self._results))
    best_trial = property(lambda self: self.get_best_result())
    best_config = property(lambda self: self.get_best_result().config)
    best_result = property(lambda self: self.get_best_result().metrics)
    results_df = property(lambda self: self.get_dataframe())

    def get_best_config(self, metric: Optional[str] = None, mode: Optional[str] = None) -> Any:
        return self.get_best_result(metric, mode).config

    def get_best_trial(self, metric: Optional[str] = None, mode: Optional[str] = None) -> Result:
        return self.get_best_result(metric, mode)

    def dataframe(self, metric: Optional[str] = None, mode: Optional[str] = None) -> Any:
        return self.get_dataframe()


# `from memroom.tune.schedulers import ASHAScheduler` reads as it does with Ray.
schedulers = types.ModuleType(__name__ + ".schedulers")
schedulers.__dict__.update(
    ASHAScheduler=ASHAScheduler,
    AsyncHyperBandScheduler=ASHAScheduler,
    FIFOScheduler=FIFOScheduler,
)
sys.modules[schedulers.__name__] = schedulers

_postpone_ray()
if os.environ.get("MEMROOM_TUNE_ADDRESS"):  # a trial of an Optuna objective
    from .tune_objectives import plain_studies

    plain_studies()


def __getattr__(name: str) -> Any:
    """Searches that others drive are loaded when they are first used."""
    if name in ("agent", "hyperparameter_search", "optimize", "sweep"):
        from . import tune_objectives

        return getattr(tune_objectives, name)
    raise AttributeError("module %r has no attribute %r" % (__name__, name))
