"""Optuna's samplers as a search object."""

from typing import Any, Dict, List, Optional

from ..space import Domain, collected, filled
from . import Searcher


class OptunaSearch(Searcher):
    """Settings from Optuna: the study's domains, a dict of Optuna's distributions, or a function
    of Optuna's trial.
    """

    def __init__(
        self,
        space: Any = None,
        metric: Any = None,
        mode: Any = None,
        points_to_evaluate: Optional[List[Dict[str, Any]]] = None,
        sampler: Any = None,
        study_name: Optional[str] = None,
        storage: Any = None,
        seed: Optional[int] = None,
        evaluated_rewards: Optional[List[Any]] = None,
    ) -> None:
        super().__init__(metric, mode)
        if evaluated_rewards:
            raise NotImplementedError(
                "OptunaSearch(evaluated_rewards=): add the trials to the study of storage= with "
                "Optuna's add_trial"
            )
        self._space, self._points = space, list(points_to_evaluate or [])
        self._sampler, self._name, self._storage = sampler, study_name, storage
        self._seed = seed
        self._constants: Dict[str, Any] = {}
        self._study: Any = None
        self._trials: Dict[str, Any] = {}

    def set_search_properties(
        self, metric: Any, mode: Any, config: Dict[str, Any], **spec: Any
    ) -> bool:
        if self._space is None:
            self._space = config
        else:
            self._constants = config
        self._metric, self._mode = self._metric or metric, self._mode or mode
        return True

    def _open(self) -> Any:
        import optuna

        metrics = self._metric if isinstance(self._metric, (list, tuple)) else [self._metric]
        modes = self._mode if isinstance(self._mode, (list, tuple)) else [self._mode or "max"]
        if not metrics[0]:
            raise ValueError("OptunaSearch needs a metric and a mode, in it or in the study")
        sampler = self._sampler
        if sampler is None:
            sampler = optuna.samplers.TPESampler(seed=self._seed)
        study = optuna.create_study(
            directions=["minimize" if m == "min" else "maximize" for m in modes],
            sampler=sampler,
            study_name=self._name,
            storage=self._storage,
            load_if_exists=True,
        )
        for point in self._points:
            study.enqueue_trial(point)
        return study

    def suggest(self, trial_id: str) -> Optional[Dict[str, Any]]:
        if self._study is None:
            self._study = self._open()
        if callable(self._space):
            trial = self._study.ask()
            constants = self._space(trial) or {}
            self._trials[trial_id] = trial
            return dict(self._constants, **constants, **trial.params)
        domains = collected(self._space)
        if not domains:  # Optuna's own distributions
            trial = self._trials[trial_id] = self._study.ask(self._space)
            return dict(self._constants, **trial.params)
        trial = self._trials[trial_id] = self._study.ask()
        values = {path: _suggest(trial, path, d) for path, d in domains.items()}
        return dict(self._constants, **filled(self._space, values))

    def on_trial_result(self, trial_id: str, result: Dict[str, Any]) -> None:
        if isinstance(self._metric, str) and self._metric in result:
            self._trials[trial_id].report(result[self._metric], result["training_iteration"])

    def on_trial_complete(
        self, trial_id: str, result: Optional[Dict[str, Any]] = None, error: bool = False
    ) -> None:
        import optuna

        trial = self._trials.pop(trial_id, None)
        if trial is None:
            return
        names = self._metric if isinstance(self._metric, (list, tuple)) else [self._metric]
        values = [(result or {}).get(str(n)) for n in names]
        if error or any(v is None or v != v for v in values):
            self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            self._study.tell(trial, values)


def _suggest(trial: Any, path: str, d: Domain) -> Any:
    """The word of the command for what Optuna chooses."""
    name, args = d.name, list(d.args)
    if d.values is not None:
        return trial.suggest_categorical(path, d._words())
    step = args.pop() if name.startswith("q") else None
    log = "log" in name
    if name.endswith("randn"):
        raise NotImplementedError("OptunaSearch: Optuna has no normal distribution (%s)" % path)
    if name == "sample_from":
        return None
    if name.endswith("int"):
        high = args[1] if step else args[1] - 1
        return trial.suggest_int(path, args[0], high, step=1 if log else int(step or 1), log=log)
    return trial.suggest_float(path, args[0], args[1], step=None if log else step, log=log)
