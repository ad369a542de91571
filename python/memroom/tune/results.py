"""What a study found."""

import math
import os
import pickle
import statistics
from typing import Any, Dict, Iterator, List, Optional, Tuple

from .session import ERROR, PARAMS, Checkpoint, checkpoints, lines
from .space import flat

_STATUS = {"finished": "TERMINATED", "stopped": "TERMINATED", "waiting": "PENDING"}
_STATUS.update(running="RUNNING", failed="ERROR", infeasible="ERROR")


class TuneError(Exception):
    """A study that did not go as it was asked to."""


def pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise ImportError("a dataframe needs pandas: pip install pandas") from None
    return pandas


class Result:
    """One trial: its settings, what it reported last, what it took."""

    def __init__(
        self, trial: Dict[str, Any], config: Dict[str, Any], path: str, metric: Optional[str]
    ) -> None:
        self.trial_id, self.state, self.path = trial["id"], trial["state"], path
        self.status = _STATUS.get(self.state, "PENDING")
        self.config = _kept(path, config)
        self.params: Dict[str, Any] = trial["params"]
        self.peak_host_bytes = trial["peak_host_bytes"]
        self.peak_device_bytes = trial["peak_device_bytes"]
        self.reserved_bytes, self.attempts = trial["reserved_bytes"], trial["attempts"]
        self.history = lines(path)
        self.metrics = dict(self.history[-1]) if self.history else {}
        if metric and trial["value"] is not None:
            self.metrics.setdefault(metric, trial["value"])
        self.metrics["config"] = self.config
        self.error = self._error(trial.get("why") or "") if self.status == "ERROR" else None

    def _error(self, why: str) -> BaseException:
        """The exception that ended the training; where there is none, what became of the trial."""
        try:
            with open(os.path.join(self.path, ERROR), "rb") as file:
                error, _ = pickle.load(file)  # noqa: S301  our own file
            if isinstance(error, BaseException) and self.state == "failed":
                return error
        except Exception:  # noqa: S110  none was kept, or its class is not here
            pass
        text = "trial %s is %s" % (self.trial_id, self.state)
        return TuneError("%s: %s" % (text, why) if why else text)

    @property
    def checkpoint(self) -> Optional[Checkpoint]:
        found = checkpoints(self.path)
        return Checkpoint(found[-1]) if found else None

    @property
    def best_checkpoints(self) -> List[Tuple[Checkpoint, Dict[str, Any]]]:
        return [(Checkpoint(p), self._said(p)) for p in checkpoints(self.path)]

    def _said(self, checkpoint: str) -> Dict[str, Any]:
        at = int(checkpoint[-6:]) - 1
        return self.history[at] if at < len(self.history) else {}

    def get_best_checkpoint(self, metric: str, mode: str) -> Optional[Checkpoint]:
        known: List[Any] = [(flat(said).get(metric), c) for c, said in self.best_checkpoints]
        known = [(v, c) for v, c in known if _number(v)]
        if not known:
            return None
        best: Checkpoint = (min if mode == "min" else max)(known, key=lambda pair: pair[0])[1]
        return best

    def scoped(self, metric: str, mode: str, scope: str, finite: bool = True) -> Optional[float]:
        """The trial's value by a rule: its last, its best, a mean."""
        values = [flat(said).get(metric) for said in self.history]
        if not values:
            values = [self.metrics.get(metric)]
        known: List[Any] = [v for v in values if _number(v, finite)]
        if scope == "last":
            return values[-1] if _number(values[-1], finite) else None
        if not known:
            return None
        if scope == "all":
            answer: Optional[float] = (min if mode == "min" else max)(known)
            return answer
        count = {"avg": len(known), "last-5-avg": 5, "last-10-avg": 10}.get(scope)
        if count is None:
            raise ValueError(
                "scope must be last, all, avg, last-5-avg or last-10-avg, not %r" % scope
            )
        return statistics.fmean(known[-count:])

    last_result = property(lambda self: self.metrics)
    local_path = logdir = property(lambda self: self.path)
    evaluated_params = property(lambda self: self.config)

    @property
    def filesystem(self) -> Any:
        raise NotImplementedError("Result.filesystem: path is a folder of this machine")

    @property
    def metrics_dataframe(self) -> Any:
        return pandas().DataFrame(self.history)

    def __repr__(self) -> str:
        return "Result(trial %s, %s, %r)" % (self.trial_id, self.state, self.config)


def _kept(path: str, config: Dict[str, Any]) -> Dict[str, Any]:
    """The settings that the training had."""
    try:
        with open(os.path.join(path, PARAMS), "rb") as file:
            return dict(pickle.load(file))  # noqa: S301  our own file
    except Exception:  # none were kept
        return config


class ResultGrid:
    """All trials of a study."""

    experiment_path = ""

    def __init__(
        self,
        results: List[Result],
        metric: Optional[str] = None,
        mode: Optional[str] = None,
        experiment: str = "",
    ) -> None:
        self._results, self._metric, self._mode = results, metric, mode
        self.experiment_path = experiment

    def __len__(self) -> int:
        return len(self._results)

    def __getitem__(self, i: int) -> Result:
        return self._results[i]

    def __iter__(self) -> Iterator[Result]:
        return iter(self._results)

    @property
    def errors(self) -> List[BaseException]:
        return [r.error for r in self._results if r.error is not None]

    @property
    def filesystem(self) -> Any:
        raise NotImplementedError("filesystem: experiment_path is a folder of this machine")

    num_errors = property(lambda self: len(self.errors))
    num_terminated = property(lambda self: len(self) - len(self.errors))

    def get_best_result(
        self,
        metric: Optional[str] = None,
        mode: Optional[str] = None,
        scope: str = "last",
        filter_nan_and_inf: bool = True,
    ) -> Result:
        metric, mode = metric or self._metric, mode or self._mode
        if not metric:
            raise ValueError("which metric? get_best_result(metric='loss', mode='min')")
        if mode not in ("min", "max"):
            raise ValueError("mode must be min or max, not %r" % (mode,))
        ended = [r for r in self._results if not r.error]
        known = [(r.scoped(metric, mode, scope, filter_nan_and_inf), r) for r in ended]
        scored = [(v, r) for v, r in known if v is not None]
        if not scored:
            why = "does the training function report it under this name?"
            if self.errors:
                count = (self.num_errors, len(self))
                why = "%d of %d failed, the first with %.300r" % (*count, self.errors[0])
            raise RuntimeError("no trial finished with a value of %s: %s" % (metric, why))
        return (min if mode == "min" else max)(scored, key=lambda pair: pair[0])[1]

    def get_dataframe(
        self, filter_metric: Optional[str] = None, filter_mode: Optional[str] = None
    ) -> Any:
        rows = []
        for r in self._results:
            said = r.metrics
            if filter_metric and r.history:
                known = [h for h in r.history if _number(flat(h).get(filter_metric))]
                pick = min if filter_mode == "min" else max
                said = pick(known, key=lambda h: flat(h)[filter_metric]) if known else said
            row = {k: v for k, v in flat(said).items() if not k.startswith("config/")}
            row.update(trial_id=r.trial_id, state=r.state, peak_host_bytes=r.peak_host_bytes)
            row.update(peak_device_bytes=r.peak_device_bytes, attempts=r.attempts)
            row.update({"config/" + k: v for k, v in flat(r.config).items()}, logdir=r.path)
            rows.append(row)
        return pandas().DataFrame(rows)


def _number(value: Any, finite: bool = True) -> bool:
    return isinstance(value, (int, float)) and (math.isfinite(value) or not finite)


class ExperimentAnalysis(ResultGrid):
    """What tune.run gives."""

    trials = property(lambda self: list(self._results))
    best_trial = property(lambda self: self.get_best_result())
    best_config = property(lambda self: self.get_best_result().config)
    best_result = property(lambda self: self.get_best_result().metrics)
    best_checkpoint = property(lambda self: self.get_best_checkpoint(self.best_trial))
    best_dataframe = property(lambda self: self.best_trial.metrics_dataframe)
    best_result_df = property(lambda self: pandas().DataFrame([flat(self.best_result)]))
    results = property(lambda self: {r.trial_id: r.metrics for r in self._results})
    results_df = property(lambda self: self.get_dataframe())
    trial_dataframes = property(lambda self: {r.path: r.metrics_dataframe for r in self._results})

    def get_best_trial(
        self,
        metric: Optional[str] = None,
        mode: Optional[str] = None,
        scope: str = "last",
        filter_nan_and_inf: bool = True,
    ) -> Result:
        return self.get_best_result(metric, mode, scope, filter_nan_and_inf)

    def get_best_config(
        self, metric: Optional[str] = None, mode: Optional[str] = None, scope: str = "last"
    ) -> Any:
        return self.get_best_result(metric, mode, scope).config

    def get_best_checkpoint(
        self,
        trial: Result,
        metric: Optional[str] = None,
        mode: Optional[str] = None,
        return_path: bool = False,
    ) -> Any:
        metric, mode = metric or self._metric, mode or self._mode
        if not metric or mode not in ("min", "max"):
            raise ValueError("get_best_checkpoint needs a metric and a mode")
        found = trial.get_best_checkpoint(metric, mode)
        return found.path if found is not None and return_path else found

    def get_last_checkpoint(
        self, trial: Optional[Result] = None, metric: str = "training_iteration", mode: str = "max"
    ) -> Optional[Checkpoint]:
        trial = trial or self.get_best_result(metric, mode)
        return trial.checkpoint

    def get_all_configs(self, prefix: bool = False) -> Dict[str, Dict[str, Any]]:
        configs = {r.path: r.config for r in self._results}
        if prefix:
            return {p: {"config/" + k: v for k, v in c.items()} for p, c in configs.items()}
        return configs

    def dataframe(self, metric: Optional[str] = None, mode: Optional[str] = None) -> Any:
        return self.get_dataframe(metric, mode)
