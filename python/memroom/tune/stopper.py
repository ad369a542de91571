"""Rules that end trials or the whole study, in the program that holds it."""

import datetime
import statistics
import time
from collections import defaultdict, deque
from typing import Any, Callable, Deque, Dict, List, Optional, Union

from .space import flat


class Stopper:
    """For subclasses: __call__ ends a trial, stop_all the study."""

    def __call__(self, trial_id: str, result: Dict[str, Any]) -> bool:
        raise NotImplementedError("a Stopper needs __call__(trial_id, result)")

    def stop_all(self) -> bool:
        raise NotImplementedError("a Stopper needs stop_all()")


class NoopStopper(Stopper):
    def __call__(self, trial_id: str, result: Dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return False


class FunctionStopper(NoopStopper):
    """function(trial_id, result) says whether the trial ends."""

    def __init__(self, function: Callable[[str, Dict[str, Any]], bool]) -> None:
        self._function = function

    def __call__(self, trial_id: str, result: Dict[str, Any]) -> bool:
        return bool(self._function(trial_id, result))


class _Reached(NoopStopper):
    """stop={"training_iteration": 5}: any of the values is reached."""

    def __init__(self, goals: Dict[str, Any]) -> None:
        self._goals = flat(goals)
        for name, goal in self._goals.items():
            if not hasattr(goal, "__float__"):
                raise TypeError("stop: %s=%r is no number that a report could reach" % (name, goal))

    def __call__(self, trial_id: str, result: Dict[str, Any]) -> bool:
        said = flat(result)
        for name, goal in self._goals.items():
            if name not in said:
                raise KeyError(
                    "stop names %r, which is not reported; reported are %s"
                    % (name, ", ".join(sorted(said)))
                )
            if said[name] >= goal:
                return True
        return False


class MaximumIterationStopper(NoopStopper):
    """Ends a trial after so many reports."""

    def __init__(self, max_iter: int) -> None:
        self._max_iter = max_iter
        self._count: Dict[str, int] = defaultdict(int)

    def __call__(self, trial_id: str, result: Dict[str, Any]) -> bool:
        self._count[trial_id] += 1
        return self._count[trial_id] >= self._max_iter


class TimeoutStopper(NoopStopper):
    """Ends the study after some seconds, counted from the first report."""

    def __init__(self, timeout: Union[int, float, datetime.timedelta]) -> None:
        seconds = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else timeout
        if seconds < 0:
            raise ValueError("timeout must not be negative, it is %s" % seconds)
        self._seconds, self._began = seconds, 0.0

    def stop_all(self) -> bool:
        self._began = self._began or time.monotonic()
        return time.monotonic() - self._began >= self._seconds


class TrialPlateauStopper(NoopStopper):
    """Ends a trial whose metric stands still: the deviation of its last results is small."""

    def __init__(
        self,
        metric: str,
        std: float = 0.01,
        num_results: int = 4,
        grace_period: int = 4,
        metric_threshold: Optional[float] = None,
        mode: Optional[str] = None,
    ) -> None:
        if metric_threshold is not None and mode not in ("min", "max"):
            raise ValueError("metric_threshold needs a mode: min or max")
        self._metric, self._std, self._grace = metric, std, grace_period
        self._threshold, self._mode = metric_threshold, mode
        self._count: Dict[str, int] = defaultdict(int)
        self._last: Dict[str, Deque[float]] = defaultdict(lambda: deque(maxlen=num_results))

    def __call__(self, trial_id: str, result: Dict[str, Any]) -> bool:
        value, last = result[self._metric], self._last[trial_id]
        last.append(value)
        self._count[trial_id] += 1
        if self._count[trial_id] < self._grace or len(last) < (last.maxlen or 0):
            return False
        if self._threshold is not None and (
            value > self._threshold if self._mode == "min" else value < self._threshold
        ):
            return False
        return statistics.pstdev(last) < self._std


class ExperimentPlateauStopper(Stopper):
    """Ends the study when its best values stand still."""

    def __init__(
        self, metric: str, std: float = 0.001, top: int = 10, mode: str = "min", patience: int = 0
    ) -> None:
        if mode not in ("min", "max"):
            raise ValueError("mode must be min or max, not %r" % (mode,))
        self._metric, self._std, self._top, self._mode = metric, std, top, mode
        self._patience, self._calm = patience, 0
        self._best: List[float] = []

    def __call__(self, trial_id: str, result: Dict[str, Any]) -> bool:
        self._best = sorted(self._best + [result[self._metric]], reverse=self._mode == "max")
        self._best = self._best[: self._top]
        still = len(self._best) == self._top and statistics.pstdev(self._best) <= self._std
        self._calm = self._calm + 1 if still else 0
        return self.stop_all()

    def stop_all(self) -> bool:
        return self._calm > 0 and self._calm >= self._patience


class CombinedStopper(Stopper):
    def __init__(self, *stoppers: Any) -> None:
        self._stoppers = stoppers

    def __call__(self, trial_id: str, result: Dict[str, Any]) -> bool:
        return any([s(trial_id, result) for s in self._stoppers])

    def stop_all(self) -> bool:
        return any([s.stop_all() for s in self._stoppers])


def stopper_of(stop: Any) -> Any:
    """The rule that `stop=` names: a dict of goals, a function, a Stopper, several of them."""
    if stop is None:
        return NoopStopper()
    if isinstance(stop, dict):
        return _Reached(stop)
    if isinstance(stop, (list, tuple)):
        return CombinedStopper(*[stopper_of(s) for s in stop])
    if hasattr(stop, "stop_all") and callable(stop):
        return stop
    if callable(stop):
        return FunctionStopper(stop)
    raise TypeError(
        "stop=%r: take a dict such as {'training_iteration': 5}, a function of (trial_id, result), "
        "or a Stopper" % (stop,)
    )
