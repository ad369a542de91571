"""Who proposes settings, in the program that holds the study. Ray's own search objects work too:
they are asked with suggest and told with on_trial_complete.
"""

from typing import Any, Dict, List, Optional

from ..space import Domain, rebuilt
from ..space import grid_search as grid_search


class Searcher:
    """For subclasses: suggest gives the settings of a trial, on_trial_complete its result."""

    FINISHED = "FINISHED"

    def __init__(self, metric: Optional[str] = None, mode: Optional[str] = None) -> None:
        self._metric, self._mode = metric, mode

    def set_search_properties(
        self, metric: Optional[str], mode: Optional[str], config: Dict[str, Any], **spec: Any
    ) -> bool:
        return False

    def suggest(self, trial_id: str) -> Optional[Dict[str, Any]]:
        raise NotImplementedError("a Searcher needs suggest(trial_id)")

    def on_trial_result(self, trial_id: str, result: Dict[str, Any]) -> None:
        """A trial reported."""

    def on_trial_complete(
        self, trial_id: str, result: Optional[Dict[str, Any]] = None, error: bool = False
    ) -> None:
        """A trial ended."""

    metric = property(lambda self: self._metric)
    mode = property(lambda self: self._mode)


class ConcurrencyLimiter:
    """At most so many trials at once."""

    def __init__(self, searcher: Any, max_concurrent: int, batch: bool = False) -> None:
        if batch:
            raise NotImplementedError("ConcurrencyLimiter(batch=True): leave batch out")
        self.searcher, self.max_concurrent = searcher, max_concurrent


class BasicVariantGenerator:
    """Random and grid search, which the study does by itself."""

    def __init__(
        self,
        points_to_evaluate: Optional[List[Dict[str, Any]]] = None,
        max_concurrent: int = 0,
        constant_grid_search: bool = False,
        random_state: Any = None,
    ) -> None:
        if constant_grid_search:
            raise NotImplementedError("BasicVariantGenerator(constant_grid_search=True)")
        self.points_to_evaluate = points_to_evaluate
        self.max_concurrent, self.random_state = max_concurrent, random_state


class Asked:
    """What a search object says, whoever wrote it."""

    def __init__(self, given: Any) -> None:
        self.concurrent: Optional[int] = None
        self.seed: Optional[int] = None
        while type(given).__name__ == "ConcurrencyLimiter":
            self.concurrent = int(given.max_concurrent)
            given = given.searcher
        if type(given).__name__ == "BasicVariantGenerator":
            self._plain(given)
            given = None
        elif given is not None and not hasattr(given, "suggest"):
            raise TypeError(
                "search_alg=%r: take an object with suggest, such as "
                "memroom.tune.search.optuna.OptunaSearch or one of ray.tune.search" % (given,)
            )
        self.searcher = given

    def prepare(self, metric: Any, mode: Any, config: Dict[str, Any]) -> None:
        """Tells the search object what is searched. Ray's own knows Ray's domains."""
        if self.searcher is None:
            return
        if type(self.searcher).__module__.startswith("ray."):
            config = rebuilt(config, _for_ray)
        self.searcher.set_search_properties(metric, mode, config)

    def _plain(self, given: Any) -> None:
        if getattr(given, "points_to_evaluate", None) or getattr(
            given, "_points_to_evaluate", None
        ):
            raise NotImplementedError(
                "BasicVariantGenerator(points_to_evaluate=): OptunaSearch takes such points"
            )
        if getattr(given, "_constant_grid_search", False):
            raise NotImplementedError("BasicVariantGenerator(constant_grid_search=True)")
        self.concurrent = self.concurrent or getattr(given, "max_concurrent", 0) or None
        state = getattr(given, "random_state", None)
        if state is None:
            state = getattr(given, "_random_state", None)
        if isinstance(state, int):
            self.seed = state


def _for_ray(path: str, one: Domain) -> Any:
    import ray.tune

    made = getattr(ray.tune, one.name)
    return made(one.values) if one.values is not None else made(*one.args)


def create_searcher(search_alg: str, **kwargs: Any) -> Any:
    """A search object by its short name."""
    if search_alg in ("variant_generator", "random"):
        return BasicVariantGenerator(**kwargs)
    if search_alg == "optuna":
        from .optuna import OptunaSearch

        return OptunaSearch(**kwargs)
    raise ValueError(
        "create_searcher: %r is not here; known are random and optuna. "
        "ray.tune.search's own objects work too" % search_alg
    )
