"""Searches that others drive, with each trial a supervised process: an Optuna objective, Hugging
Face's hyperparameter_search, a W&B agent.

    study = optuna.create_study()
    tune.optimize(study, objective, n_trials=20)          # was: study.optimize(objective, ...)

    tune.hyperparameter_search(trainer, n_trials=10)      # was: trainer.hyperparameter_search(...)

    tune.agent(sweep, function=train, count=20)           # was: wandb.agent(sweep_id, ...)

As with tune.run a trial is this very script, started again; there the call runs one trial and the
process ends. Optuna's study, sampler and pruner stay in the program that was started first: a
trial's process asks it for each setting. So with one trial at a time the trials are those of
Optuna's own run with the same seed.
"""

import os
import secrets
import threading
from typing import Any, Callable, Dict, List, Optional, Union

from . import study as running
from . import theirs
from .config import note
from .meeting import Meeting, connect
from .results import Result, ResultGrid
from .session import PRUNED, tell

ADDRESS = "MEMROOM_TUNE_ADDRESS"  # socket of the program that holds Optuna's study
KEY = "MEMROOM_TUNE_KEY"


class _Holder:
    """Optuna's side: answers the processes of trials, one call at a time."""

    def __init__(self, study: Any, callbacks: List[Callable[..., Any]]) -> None:
        self.study, self.callbacks = study, callbacks
        self.trials: Dict[int, Any] = {}  # ours -> Optuna's, as long as it has not ended
        self.lock = threading.Lock()
        self.key = secrets.token_bytes(16)
        self.meeting: Any = None

    def open(self, address: str) -> None:
        self.meeting = Meeting(address, self.key, self._serve)

    def close(self) -> None:
        self.meeting.close()

    def _serve(self, link: Any) -> None:
        try:
            while True:
                ours, name, args, kwargs = link.recv()
                try:
                    with self.lock:
                        answer = (True, self._do(ours, name, args, kwargs))
                except Exception as error:
                    answer = (False, error)
                link.send(answer)
        except (OSError, EOFError):
            link.close()

    def _do(self, ours: int, name: str, args: Any, kwargs: Any) -> Any:
        if ours not in self.trials:  # one that is tried again keeps its settings
            self.trials[ours] = self.study.ask()
        trial = self.trials[ours]
        if name == "tell":
            frozen = self.study.tell(trial, *args, **kwargs)
            del self.trials[ours]
            for callback in self.callbacks:
                callback(self.study, frozen)
            return None
        value = getattr(trial, name)
        return value(*args, **kwargs) if callable(value) else value

    def settle(self, results: List[Result]) -> None:
        """Tells Optuna of trials that ended before they could. What did not fit has the attribute
        memroom_infeasible, for a sampler's constraints_func.
        """
        import optuna

        states = {r.trial_id: r.state for r in results}
        for ours, trial in sorted(self.trials.items()):
            if states.get(ours) == "infeasible":
                trial.set_user_attr("memroom_infeasible", True)
            self.study.tell(trial, state=optuna.trial.TrialState.FAIL)
        self.trials.clear()


def _remote(study: Any) -> Any:
    """Optuna's trial as the objective sees it: each use asks the program that holds the study."""
    import optuna

    link = connect(os.environ[ADDRESS], bytes.fromhex(os.environ[KEY]))
    ours = int(os.environ["MEMROOM_TRIAL"])

    def ask(name: str, *args: Any, **kwargs: Any) -> Any:
        link.send((ours, name, args, kwargs))
        well, answer = link.recv()
        if not well:
            raise answer
        return answer

    def method(name: str) -> Any:
        return lambda self, *args, **kwargs: ask(name, *args, **kwargs)

    def report(self: Any, value: float, step: int) -> None:
        ask("report", float(value), int(step))
        tell({"*": float(value)}, int(step))

    def fact(name: str) -> Any:
        return property(lambda self: ask(name))

    members: Dict[str, Any] = {}
    for name in dir(optuna.trial.Trial):
        if name.startswith("_"):
            continue
        member = getattr(optuna.trial.Trial, name)
        if isinstance(member, property):
            members[name] = fact(name)
        elif callable(member):
            members[name] = method(name)
    members.update(report=report, study=study, tell=method("tell"))
    return type("Trial", (optuna.trial.BaseTrial,), members)()


class _Objective(running.Study):
    """An Optuna objective. Settings are found inside of it, so the study knows trials by number."""

    def __init__(
        self, study: Any, objective: Callable[..., Any], n_trials: int, callbacks: Any
    ) -> None:
        super().__init__(objective, {}, n_trials, "objective")
        self.configure()
        self.study, self.heard = study, list(callbacks or [])
        many = len(study.directions) > 1
        self.metric = None if many else "objective"
        self.mode = None if many else str(study.direction.name).lower()[:3]
        self.address, self.key = "", b""

    def _described(self, call: int, folder: str) -> Dict[str, Any]:
        described = super()._described(call, folder)
        described["parameters"] = {
            "trial": {"grid_search": ["#%d" % i for i in range(self.samples)]}
        }
        described["search"] = "grid"
        described["env"].update({ADDRESS: self.address, KEY: self.key.hex()})
        return described

    def _run(self, call: int) -> List[Result]:
        holder = _Holder(self.study, self.heard)
        self.address = os.path.join(running.root(), "optuna-%d" % call)
        self.key = holder.key
        holder.open(self.address)
        try:
            results = super()._run(call)
        finally:
            holder.close()
        holder.settle(results)
        return results

    def _train(self, params: Dict[str, Any]) -> None:
        import optuna

        theirs.train()
        trial = _remote(self.study)
        try:
            value = self.trainable.trainable(trial)
        except optuna.TrialPruned:
            trial.tell(state=optuna.trial.TrialState.PRUNED)
            tell({PRUNED: 1.0}, None)
            return
        trial.tell(value)
        tell({self.metric: value} if self.metric else {running.DONE: 0.0}, None)


def optimize(
    study: Any,
    objective: Callable[..., Any],
    n_trials: int = 10,
    *,
    callbacks: Any = None,
    host_mem: Optional[str] = None,
    gpu_mem: Optional[str] = None,
    resources_per_trial: Optional[Dict[str, Any]] = None,
    max_concurrent_trials: Optional[int] = None,
    timeout: Optional[float] = None,
    n_jobs: Optional[int] = None,
    catch: Any = (),
    gc_after_trial: bool = False,
    show_progress_bar: bool = False,
) -> Any:
    """study.optimize(objective, n_trials=...) with each trial a supervised process.

    The study's own sampler and pruner decide. Returns the study, which has the trials afterwards.
    """
    if n_trials is None:
        raise NotImplementedError("optimize needs n_trials: how many trials there are at most")
    if catch:
        raise NotImplementedError("optimize(catch=): a trial that fails never ends the search here")
    one = _Objective(study, objective, n_trials, callbacks)
    jobs = n_jobs if n_jobs and n_jobs > 0 else None  # -1: as many as fit
    one.resources, one.concurrent = resources_per_trial or {}, max_concurrent_trials or jobs
    one.host_mem, one.gpu_mem, one.budget = host_mem, gpu_mem, timeout
    one.results()
    return study


def plain_studies() -> None:
    """In a trial create_study keeps off the caller's storage: the study is there already."""
    import optuna

    inner = optuna.create_study
    if getattr(inner, "_memroom", False):
        return

    def create_study(*, storage: Any = None, load_if_exists: bool = False, **kwargs: Any) -> Any:
        return inner(**kwargs)

    create_study._memroom = True  # type: ignore[attr-defined]
    optuna.create_study = create_study


def hyperparameter_search(trainer: Any, n_trials: int = 20, **kwargs: Any) -> Any:
    """trainer.hyperparameter_search(...) with each trial a supervised process. Optuna searches.

    host_mem, gpu_mem, resources_per_trial and max_concurrent_trials are as in optimize.
    """
    import optuna

    if kwargs.pop("backend", None) not in (None, "optuna"):
        raise NotImplementedError(
            "hyperparameter_search works with Optuna alone here: backend='optuna'"
        )
    ours = {
        name: kwargs.pop(name, None)
        for name in ("host_mem", "gpu_mem", "resources_per_trial", "max_concurrent_trials")
    }

    def supervised(self: Any, func: Callable[..., Any], n_trials: int = 20, **more: Any) -> None:
        if not ours["max_concurrent_trials"] and more.get("n_jobs") == 1:
            more.pop("n_jobs")  # the Trainer's default, not a wish
        optimize(self, func, n_trials, **dict(ours, **more))

    inner = optuna.Study.optimize
    optuna.Study.optimize = supervised
    try:
        return trainer.hyperparameter_search(n_trials=n_trials, backend="optuna", **kwargs)
    finally:
        optuna.Study.optimize = inner


class _Agent(running.Study):
    """A W&B sweep whose trials we run: wandb.init in a trial finds the settings in its config."""

    def __init__(
        self, sweep: Dict[str, Any], function: Callable[..., Any], count: Optional[int]
    ) -> None:
        metric = sweep.get("metric") or {}
        super().__init__(
            function,
            {},
            count or int(sweep.get("run_cap") or 10),
            metric.get("name"),
            str(metric.get("goal", "minimize"))[:3],
        )
        self.configure()
        self.sweep = sweep

    def _described(self, call: int, folder: str) -> Dict[str, Any]:
        described = super()._described(call, folder)
        described["parameters"] = self.sweep["parameters"]
        method = self.sweep.get("method", "random")
        if method == "bayes":
            note("method bayes is searched quasi-randomly here")
        described["search"] = {"bayes": "quasi"}.get(method, method)
        stop = self.sweep.get("early_terminate")
        if stop:
            described["scheduler"] = "asha"
            described["grace"] = int(stop.get("min_iter", 1))
            described["reduction"] = int(stop.get("eta", 3))
            described["max_t"] = int(stop.get("max_iter", 100 * described["grace"]))
        return described

    def _train(self, params: Dict[str, Any]) -> None:
        theirs.train()
        self.trainable.trainable()

    def _read(self, folder: str) -> List[Result]:
        results = super()._read(folder)
        for result in results:
            result.config = result.metrics["config"] = result.params
        return results


def sweep(
    sweep: Union[str, Dict[str, Any]],
    entity: Optional[str] = None,
    project: Optional[str] = None,
    prior_runs: Any = None,
) -> Any:
    """Stands in for wandb.sweep where tune.agent runs the trials: gives the sweep itself. entity
    and project are for wandb.init; no server hears of the sweep.
    """
    if prior_runs:
        raise NotImplementedError("sweep(prior_runs=): no server is asked")
    return sweep


def agent(
    sweep: Union[str, Dict[str, Any]],
    function: Callable[..., Any],
    count: Optional[int] = None,
    *,
    host_mem: Optional[str] = None,
    gpu_mem: Optional[str] = None,
    seed: Optional[int] = None,
    resources_per_trial: Optional[Dict[str, Any]] = None,
    entity: Optional[str] = None,
    project: Optional[str] = None,
) -> ResultGrid:
    """wandb.agent(...) with each trial a supervised process.

    sweep is the sweep's dictionary, not an id: no server is asked for the next settings.
    """
    if not isinstance(sweep, dict) or not sweep.get("parameters"):
        raise TypeError("tune.agent takes the sweep itself, a dict with parameters, not its id")
    one = _Agent(sweep, function, count)
    one.resources, one.seed = resources_per_trial or {}, seed
    one.host_mem, one.gpu_mem = host_mem, gpu_mem
    return ResultGrid(one.results(), one.metric, one.mode)
