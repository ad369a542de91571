"""Who goes on: early stopping and population based training.

A scheduler lives in the program that holds the study. It hears each report before the trial goes
on, through the methods that Ray's schedulers have, so Ray's own objects work here too.
"""

import copy
import inspect
import math
import random
import statistics
from typing import Any, Callable, Dict, List, Optional, Tuple

from .config import note
from .space import Domain, domain


class TrialScheduler:
    """For subclasses: on_trial_result answers CONTINUE or STOP."""

    CONTINUE, PAUSE, STOP = "CONTINUE", "PAUSE", "STOP"
    metric: Optional[str] = None
    mode: Optional[str] = None

    def set_search_properties(
        self, metric: Optional[str], mode: Optional[str], **spec: Any
    ) -> bool:
        if self.metric and metric and self.metric != metric:
            raise ValueError("the scheduler's metric is %r, the study's %r" % (self.metric, metric))
        self.metric, self.mode = self.metric or metric, self.mode or mode
        return True

    def on_trial_add(self, controller: Any, trial: Any) -> None:
        """A trial begins."""

    def on_trial_result(self, controller: Any, trial: Any, result: Dict[str, Any]) -> str:
        return self.CONTINUE

    def on_trial_complete(self, controller: Any, trial: Any, result: Dict[str, Any]) -> None:
        """A trial ended well."""

    def on_trial_error(self, controller: Any, trial: Any) -> None:
        """A trial failed."""

    def _better(self, value: float) -> float:
        """The value, larger is better."""
        return value if self.mode == "max" else -value

    def _needs_metric(self) -> None:
        if not self.metric or self.mode not in ("min", "max"):
            raise ValueError(
                "%s needs metric and mode ('min' or 'max'), in it or in the study"
                % type(self).__name__
            )


class FIFOScheduler(TrialScheduler):
    """Every trial runs to its end."""


class ASHAScheduler(TrialScheduler):
    """Asynchronous successive halving: at each milestone a trial goes on only if it is among the
    best 1/reduction_factor of those that were there before it.
    """

    def __init__(
        self,
        time_attr: str = "training_iteration",
        metric: Optional[str] = None,
        mode: Optional[str] = None,
        max_t: int = 100,
        grace_period: int = 1,
        reduction_factor: float = 4,
        brackets: int = 1,
        stop_last_trials: bool = True,
    ) -> None:
        if not 0 < grace_period <= max_t or reduction_factor <= 1 or brackets < 1:
            raise ValueError(
                "ASHAScheduler needs 0 < grace_period <= max_t, reduction_factor > 1, brackets >= 1"
            )
        self.time_attr, self.metric, self.mode, self.max_t = time_attr, metric, mode, max_t
        self.grace_period, self.reduction_factor = grace_period, reduction_factor
        self.stop_last_trials = stop_last_trials
        self._brackets = [self._rungs(s) for s in range(brackets)]
        self._of: Dict[Any, List[Tuple[float, Dict[Any, float]]]] = {}
        self._random = random.Random(0)

    def _rungs(self, s: int) -> List[Tuple[float, Dict[Any, float]]]:
        ratio = math.log(self.max_t / self.grace_period) / math.log(self.reduction_factor)
        count = int(ratio - s + 1)
        first, factor = self.grace_period, self.reduction_factor
        return [(first * factor ** (k + s), {}) for k in reversed(range(count))]

    def on_trial_add(self, controller: Any, trial: Any) -> None:
        self._needs_metric()
        weights = [math.exp(len(b)) for b in self._brackets]
        self._of[trial] = self._random.choices(self._brackets, weights)[0]

    def on_trial_result(self, controller: Any, trial: Any, result: Dict[str, Any]) -> str:
        if self.time_attr not in result or self.metric not in result:
            return self.CONTINUE
        at, value = result[self.time_attr], self._better(result[self.metric])
        if at >= self.max_t and self.stop_last_trials:
            return self.STOP
        for milestone, seen in self._of[trial]:
            if at < milestone or trial in seen:
                continue
            known = sorted(v for v in seen.values() if not math.isnan(v))
            seen[trial] = value
            if known and value < _quantile(known, 1 - 1 / self.reduction_factor):
                return self.STOP
            break
        return self.CONTINUE


AsyncHyperBandScheduler = ASHAScheduler


class HyperBandScheduler(ASHAScheduler):
    """HyperBand's brackets, in which nobody waits: Ray's pauses trials until others have come as
    far, which would hold their memory.
    """

    def __init__(
        self,
        time_attr: str = "training_iteration",
        metric: Optional[str] = None,
        mode: Optional[str] = None,
        max_t: int = 81,
        reduction_factor: float = 3,
        stop_last_trials: bool = True,
    ) -> None:
        most = round(math.log(max_t) / math.log(reduction_factor)) + 1
        first = max(1, int(max_t * reduction_factor ** (1 - most)))
        super().__init__(
            time_attr, metric, mode, max_t, first, reduction_factor, most, stop_last_trials
        )
        note("HyperBandScheduler decides at once, as ASHAScheduler(brackets=%d) does" % most)


class ResourceChangingScheduler:
    """Its base alone: trials get memory as they need it, processors as they are free."""

    def __new__(cls, base_scheduler: Any = None, resources_allocation_function: Any = None) -> Any:
        note("ResourceChangingScheduler leaves what a trial asks for as it is")
        return base_scheduler or FIFOScheduler()


def _quantile(known: List[float], q: float) -> float:
    at = q * (len(known) - 1)
    low = int(at)
    high = min(low + 1, len(known) - 1)
    if known[low] == known[high]:
        return known[low]
    return known[low] + (at - low) * (known[high] - known[low])


class MedianStoppingRule(TrialScheduler):
    """Ends a trial whose best value is worse than the median of the others' means so far."""

    def __init__(
        self,
        time_attr: str = "time_total_s",
        metric: Optional[str] = None,
        mode: Optional[str] = None,
        grace_period: float = 60.0,
        min_samples_required: int = 3,
        min_time_slice: int = 0,
        hard_stop: bool = True,
    ) -> None:
        self.time_attr, self.metric, self.mode = time_attr, metric, mode
        self.grace_period, self.min_samples_required = grace_period, min_samples_required
        self.hard_stop = hard_stop  # otherwise Ray lets it wait, and then go on to its end
        self._seen: Dict[Any, List[Tuple[float, float]]] = {}

    def on_trial_add(self, controller: Any, trial: Any) -> None:
        self._needs_metric()

    def on_trial_result(self, controller: Any, trial: Any, result: Dict[str, Any]) -> str:
        if self.time_attr not in result or self.metric not in result:
            return self.CONTINUE
        at = result[self.time_attr]
        self._seen.setdefault(trial, []).append((at, self._better(result[self.metric])))
        if at < self.grace_period:
            return self.CONTINUE
        means = []
        for other, seen in self._seen.items():
            scoped = [v for t, v in seen if self.grace_period <= t <= at]
            if other is not trial and seen[-1][0] >= at and scoped:
                means.append(statistics.fmean(scoped))
        means = [m for m in means if math.isfinite(m)]
        if len(means) < self.min_samples_required or not self.hard_stop:
            return self.CONTINUE
        best = max(v for _, v in self._seen[trial])
        return self.STOP if statistics.median(means) > best else self.CONTINUE

    def on_trial_complete(self, controller: Any, trial: Any, result: Dict[str, Any]) -> None:
        if self.time_attr in result and self.metric in result:
            value = self._better(result[self.metric])
            self._seen.setdefault(trial, []).append((result[self.time_attr], value))


class PopulationBasedTraining(TrialScheduler):
    """The worst trials go on from the checkpoint of a good one, with its settings changed a little.
    The training function reports checkpoints and begins with tune.get_checkpoint().
    """

    def __init__(
        self,
        time_attr: str = "time_total_s",
        metric: Optional[str] = None,
        mode: Optional[str] = None,
        perturbation_interval: float = 60.0,
        burn_in_period: float = 0.0,
        hyperparam_mutations: Optional[Dict[str, Any]] = None,
        quantile_fraction: float = 0.25,
        resample_probability: float = 0.25,
        perturbation_factors: Tuple[float, float] = (1.2, 0.8),
        custom_explore_fn: Optional[Callable[..., Any]] = None,
        log_config: bool = True,
        require_attrs: bool = True,
        synch: bool = False,
    ) -> None:
        if synch:
            raise NotImplementedError(
                "PopulationBasedTraining(synch=True) is not here: trials are packed by memory, so "
                "they do not all run at the same time; leave synch out"
            )
        if not hyperparam_mutations and custom_explore_fn is None:
            raise ValueError("PopulationBasedTraining needs hyperparam_mutations")
        if not 0 <= quantile_fraction <= 0.5:
            raise ValueError("quantile_fraction must be between 0 and 0.5")
        self.time_attr, self.metric, self.mode = time_attr, metric, mode
        self.interval, self.burn_in = perturbation_interval, burn_in_period
        self.mutations = hyperparam_mutations or {}
        self.fraction, self.resample = quantile_fraction, resample_probability
        self.factors, self.explore_fn = perturbation_factors, custom_explore_fn
        self.require_attrs = require_attrs
        self.random = random.Random(0)
        self._last: Dict[Any, float] = {}
        self._score: Dict[Any, float] = {}
        self.exploited = 0

    def on_trial_add(self, controller: Any, trial: Any) -> None:
        self._needs_metric()
        self._last.setdefault(trial, 0.0)
        for name, how in self.mutations.items():  # what the space leaves out is drawn
            if name not in trial.config and not isinstance(how, dict):
                trial.config[name] = self._drawn(how)

    def on_trial_result(self, controller: Any, trial: Any, result: Dict[str, Any]) -> str:
        missing = [n for n in (self.time_attr, self.metric) if n not in result]
        if missing:
            if self.require_attrs:
                raise KeyError("PopulationBasedTraining needs %r in each report" % missing[0])
            return self.CONTINUE
        at = result[self.time_attr]
        if at < self.burn_in or at - self._last[trial] < self.interval:
            return self.CONTINUE
        self._last[trial] = at
        self._score[trial] = self._better(result[str(self.metric)])
        ranked = sorted(self._score, key=lambda t: self._score[t])
        count = max(1, math.ceil(len(ranked) * self.fraction)) if len(ranked) > 1 else 0
        count = min(count, len(ranked) // 2)
        donors = [t for t in ranked[len(ranked) - count :] if t.checkpoint is not None]
        if trial in ranked[:count] and donors:
            donor = self.random.choice(donors)
            self.exploited += 1
            trial.exploit(self._explored(donor.config), donor.checkpoint)
        return self.CONTINUE

    def _explored(self, config: Dict[str, Any]) -> Dict[str, Any]:
        out = self._mutated(copy.deepcopy(config), self.mutations)
        if self.explore_fn is not None:
            out = self.explore_fn(out)
        return out

    def _mutated(self, config: Dict[str, Any], mutations: Dict[str, Any]) -> Dict[str, Any]:
        for name, how in mutations.items():
            how = domain(how)
            if isinstance(how, dict):
                config[name] = self._mutated(config.get(name, {}), how)
                continue
            values = how.values if isinstance(how, Domain) else how
            old = config.get(name)
            if self.random.random() < self.resample or old is None:
                config[name] = self._drawn(how)
            elif isinstance(values, (list, tuple)):
                if old not in values:
                    config[name] = self._drawn(how)
                    continue
                at = list(values).index(old) + self.random.choice((-1, 1))
                config[name] = values[max(0, min(at, len(values) - 1))]
            else:
                config[name] = old * self.random.choice(self.factors)
            if isinstance(old, int) and not isinstance(values, (list, tuple)):
                config[name] = type(old)(round(config[name]))
        return config

    def _drawn(self, how: Any) -> Any:
        how = domain(how)
        if isinstance(how, Domain):
            return how.sample(random_state=self.random)
        if not callable(how):
            return self.random.choice(list(how))
        try:
            inspect.signature(how).bind()
        except TypeError:  # it takes one argument, as in Ray's own example
            return how(None)
        except ValueError:  # a builtin without a signature
            pass
        return how()


_NOT_HERE = {
    "HyperBandForBOHB": "ASHAScheduler(brackets=3) is its asynchronous form",
    "PopulationBasedTrainingReplay": "replay a policy in the training function",
    "PB2": "take PopulationBasedTraining",
}


def __getattr__(name: str) -> Any:
    if name in _NOT_HERE:
        raise NotImplementedError("tune.schedulers.%s is not here: %s" % (name, _NOT_HERE[name]))
    raise AttributeError("module %r has no attribute %r" % (__name__, name))


def create_scheduler(scheduler: str, **kwargs: Any) -> Any:
    """A scheduler by its short name."""
    known = {
        "fifo": FIFOScheduler,
        "async_hyperband": ASHAScheduler,
        "asynchyperband": ASHAScheduler,
        "asha": ASHAScheduler,
        "median_stopping_rule": MedianStoppingRule,
        "medianstopping": MedianStoppingRule,
        "hyperband": HyperBandScheduler,
        "pbt": PopulationBasedTraining,
    }
    if scheduler.lower() not in known:
        raise ValueError(
            "create_scheduler: %r is not here; known are %s" % (scheduler, ", ".join(known))
        )
    return known[scheduler.lower()](**kwargs)


def scheduler_of(given: Any, metric: Optional[str], mode: Optional[str]) -> Any:
    """The scheduler to use: ours, or Ray's object where all it needs is to hear reports."""
    if given is None:
        return FIFOScheduler()
    name = type(given).__name__
    if name in _NOT_HERE:
        raise NotImplementedError("scheduler %s is not here: %s" % (name, _NOT_HERE[name]))
    if not hasattr(given, "on_trial_result"):
        raise TypeError(
            "scheduler %r is none: take tune.ASHAScheduler, another of tune.schedulers, or leave "
            "it out" % (given,)
        )
    if type(given).__module__.startswith("ray.tune"):
        if name == "PopulationBasedTraining":
            return _pbt_of(given, metric, mode)
        if name == "HyperBandScheduler":
            given = HyperBandScheduler(
                given._time_attr,
                given._metric,
                given._mode,
                given._max_t_attr,
                given._eta,
                given._stop_last_trials,
            )
        if name == "ResourceChangingScheduler":
            base = ResourceChangingScheduler(given._base_scheduler)
            return scheduler_of(base, metric, mode)
    given.set_search_properties(metric, mode)
    return given


def _pbt_of(given: Any, metric: Optional[str], mode: Optional[str]) -> PopulationBasedTraining:
    out = PopulationBasedTraining(
        given._time_attr,
        given._metric or metric,
        given._mode or mode,
        given._perturbation_interval,
        given._burn_in_period,
        given._hyperparam_mutations,
        given._quantile_fraction,
        given._resample_probability,
        tuple(given._perturbation_factors),
        given._custom_explore_fn,
        synch=given._synch,
    )
    return out


def metric_of(scheduler: Any) -> Tuple[Optional[str], Optional[str]]:
    """Metric and mode that a scheduler was given, ours or Ray's."""
    found = [
        getattr(scheduler, name, None) or getattr(scheduler, "_" + name, None)
        for name in ("metric", "mode")
    ]
    return found[0], found[1]


def reached(scheduler: Any, result: Dict[str, Any]) -> bool:
    """Whether a scheduler that said STOP did so because the trial is as long as it may be."""
    most = getattr(scheduler, "max_t", None) or getattr(scheduler, "_max_t", None)
    attr = str(getattr(scheduler, "time_attr", None) or getattr(scheduler, "_time_attr", ""))
    return most is not None and result.get(attr, -math.inf) >= most
