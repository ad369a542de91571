"""Hyperparameter search in Ray Tune's call shape, each trial a process of its own.

    from memroom import tune

    tune.run(train_fn, config={"lr": tune.loguniform(1e-4, 1e-2)}, num_samples=10)

docs/tune.md has a table of every name of ray.tune and what becomes of it here.
"""

import os as _os
from typing import Any, Dict, Optional

from . import schedulers as schedulers
from . import search as search
from . import stopper as stopper
from . import study as _study
from . import theirs as _theirs
from .config import (
    CheckpointConfig,
    FailureConfig,
    PlacementGroupFactory,
    RunConfig,
    TuneConfig,
    refuse,
    resources_of,
    run_config_of,
)
from .reporter import Callback, CLIReporter, JupyterNotebookReporter, ProgressReporter
from .results import ExperimentAnalysis, Result, ResultGrid, TuneError
from .schedulers import (
    ASHAScheduler,
    AsyncHyperBandScheduler,
    FIFOScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    create_scheduler,
)
from .search import create_searcher
from .session import Checkpoint, get_checkpoint, get_context, report
from .session import Context as TuneContext
from .space import (
    Domain,
    choice,
    grid_search,
    lograndint,
    loguniform,
    qlograndint,
    qloguniform,
    qrandint,
    qrandn,
    quniform,
    randint,
    randn,
    sample_from,
    uniform,
)
from .stopper import Stopper
from .trainable import Trainable, with_parameters, with_resources

__all__ = [
    "ASHAScheduler",
    "AsyncHyperBandScheduler",
    "CLIReporter",
    "Callback",
    "Checkpoint",
    "CheckpointConfig",
    "Domain",
    "ExperimentAnalysis",
    "FIFOScheduler",
    "FailureConfig",
    "JupyterNotebookReporter",
    "MedianStoppingRule",
    "PlacementGroupFactory",
    "PopulationBasedTraining",
    "ProgressReporter",
    "Result",
    "ResultGrid",
    "RunConfig",
    "Stopper",
    "Trainable",
    "TuneConfig",
    "TuneContext",
    "TuneError",
    "Tuner",
    "choice",
    "create_scheduler",
    "create_searcher",
    "get_checkpoint",
    "get_context",
    "grid_search",
    "lograndint",
    "loguniform",
    "qlograndint",
    "qloguniform",
    "qrandint",
    "qrandn",
    "quniform",
    "randint",
    "randn",
    "register_trainable",
    "report",
    "run",
    "sample_from",
    "uniform",
    "with_parameters",
    "with_resources",
]

# Names of ray.tune that are not here, and what there is instead.
NOT_HERE = {
    "Experiment": "tune.run takes the function and its settings",
    "ResumeConfig": "`memroom tune resume NAME` goes on with a study",
    "SyncConfig": "results are kept in a folder of this machine: storage_path",
    "register_env": "make the environment in the training function",
    "run_experiments": "call tune.run once for each",
}

_registered: Dict[str, Any] = {}


def register_trainable(name: str, trainable: Any, warn: bool = True) -> None:
    """Lets tune.run and Tuner take a name for a function or class."""
    _registered[name] = trainable


def _trainable(given: Any) -> Any:
    if isinstance(given, str) and given not in _registered:
        raise ValueError(
            "%r is not registered: tune.register_trainable(%r, train)" % (given, given)
        )
    return _registered[given] if isinstance(given, str) else given


def run(
    run_or_experiment: Any,
    *,
    name: Optional[str] = None,
    metric: Optional[str] = None,
    mode: Optional[str] = None,
    stop: Any = None,
    time_budget_s: Any = None,
    config: Optional[Dict[str, Any]] = None,
    resources_per_trial: Any = None,
    num_samples: int = 1,
    storage_path: Optional[str] = None,
    search_alg: Any = None,
    scheduler: Any = None,
    checkpoint_config: Any = None,
    verbose: Any = None,
    progress_reporter: Any = None,
    trial_name_creator: Any = None,
    trial_dirname_creator: Any = None,
    max_failures: int = 0,
    fail_fast: Any = False,
    restore: Optional[str] = None,
    reuse_actors: bool = False,
    raise_on_failed_trial: bool = False,
    callbacks: Any = None,
    max_concurrent_trials: Optional[int] = None,
    keep_checkpoints_num: Optional[int] = None,
    checkpoint_score_attr: Optional[str] = None,
    checkpoint_freq: int = 0,
    checkpoint_at_end: bool = False,
    host_mem: Optional[str] = None,
    gpu_mem: Optional[str] = None,
    seed: Optional[int] = None,
    **given: Any,
) -> ExperimentAnalysis:
    """Runs a study and returns its results, as Ray's tune.run does.

    host_mem and gpu_mem are budgets of the whole study ("16GiB"). Without a seed each study draws
    other settings. Trials that failed raise only with raise_on_failed_trial=True.
    """
    refuse("tune.run", given)
    study = _study.Study(
        _trainable(run_or_experiment), config, num_samples, metric, mode, scheduler, search_alg
    )
    if checkpoint_config is None:
        attr, order = checkpoint_score_attr, "max"
        if attr and attr.startswith("min-"):
            attr, order = attr[4:], "min"
        checkpoint_config = CheckpointConfig(
            keep_checkpoints_num, attr, order, checkpoint_freq, checkpoint_at_end
        )
    study.configure(
        stop=stop,
        name=name,
        storage_path=storage_path,
        failure_config=FailureConfig(max_failures, fail_fast),
        checkpoint_config=checkpoint_config,
        callbacks=callbacks,
        progress_reporter=progress_reporter,
        max_concurrent_trials=max_concurrent_trials,
        time_budget_s=time_budget_s,
        verbose=verbose,
        reuse_actors=reuse_actors,
        trial_name_creator=trial_name_creator,
        trial_dirname_creator=trial_dirname_creator,
    )
    study.resources = resources_of(resources_per_trial or study.trainable.resources)
    study.restore, study.host_mem, study.gpu_mem = restore, host_mem, gpu_mem
    study.seed = study.seed if seed is None else seed
    results = study.results()
    if raise_on_failed_trial:
        _study.raise_failed(results)
    return ExperimentAnalysis(results, study.metric, study.mode, study.experiment)


class Tuner:
    """Ray's Tuner: Tuner(train, param_space=..., tune_config=TuneConfig(...)).fit()."""

    def __init__(
        self,
        trainable: Any = None,
        *,
        param_space: Optional[Dict[str, Any]] = None,
        tune_config: Any = None,
        run_config: Any = None,
        host_mem: Optional[str] = None,
        gpu_mem: Optional[str] = None,
        seed: Optional[int] = None,
        **given: Any,
    ) -> None:
        refuse("Tuner", given)
        t, r = tune_config or TuneConfig(), run_config_of(run_config)
        self._of = _study.Study(
            _trainable(trainable),
            param_space,
            t.num_samples,
            t.metric,
            t.mode,
            t.scheduler,
            t.search_alg,
        )
        self._of.configure(
            stop=r.stop,
            name=r.name,
            storage_path=r.storage_path,
            failure_config=r.failure_config,
            checkpoint_config=r.checkpoint_config,
            callbacks=r.callbacks,
            progress_reporter=r.progress_reporter,
            max_concurrent_trials=t.max_concurrent_trials,
            time_budget_s=t.time_budget_s,
            verbose=r.verbose,
            reuse_actors=t.reuse_actors,
            trial_name_creator=t.trial_name_creator,
            trial_dirname_creator=t.trial_dirname_creator,
        )
        self._of.resources = resources_of(self._of.trainable.resources)
        self._of.host_mem, self._of.gpu_mem = host_mem, gpu_mem
        self._of.seed = self._of.seed if seed is None else seed
        self._grid: Optional[ResultGrid] = None

    def fit(self) -> ResultGrid:
        of = self._of
        self._grid = ResultGrid(of.results(), of.metric, of.mode, of.experiment)
        return self._grid

    def get_results(self) -> ResultGrid:
        if self._grid is None:
            raise RuntimeError("get_results: call fit first")
        return self._grid

    @classmethod
    def restore(cls, path: str, trainable: Any = None, **kwargs: Any) -> "Tuner":
        raise NotImplementedError(
            "Tuner.restore is not here: `memroom tune resume NAME` goes on with a study"
        )

    @classmethod
    def can_restore(cls, path: str, **kwargs: Any) -> bool:
        return False


_theirs.postpone()
if _os.environ.get("MEMROOM_TUNE_ADDRESS"):  # a trial of an Optuna objective
    from .objectives import plain_studies

    plain_studies()


def __getattr__(name: str) -> Any:
    """Searches that others drive are loaded when they are first used."""
    if name in ("agent", "hyperparameter_search", "optimize", "sweep"):
        from . import objectives

        return getattr(objectives, name)
    if name in NOT_HERE:
        raise NotImplementedError("tune.%s is not here: %s" % (name, NOT_HERE[name]))
    raise AttributeError("module %r has no attribute %r" % (__name__, name))
