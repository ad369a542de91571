"""Ray's own package in a study of ours: it starts no cluster unless the training asks for one, and
what it reports in a trial, as its callbacks for Lightning, Keras and XGBoost do, reaches the study.
"""

import importlib.util
import sys
import threading
from typing import Any, Callable, Dict

from . import session
from .config import note

_SESSION = "ray.train._internal.session"
training = threading.Event()  # in a trial: the training function runs


class _Later:
    """Stands in for ray.init: trials are processes of ours, and a cluster for each of them would
    take more memory than many a model. Ray starts, with the arguments that were given, when the
    training itself asks for it.
    """

    def __init__(self, ray: Any) -> None:
        self.inner = ray.init
        self.kwargs: Dict[str, Any] = {}
        self.args: Any = ()
        self.wanted = False
        self.known, self.asked = ray.is_initialized, False
        ray.init, ray.is_initialized = self, self.started

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if training.is_set():
            return self.inner(*(args or self.args), **(kwargs or self.kwargs))
        if not self.wanted:
            note("ray.init waits until the training uses Ray; the study does not need it")
        self.args, self.kwargs, self.wanted = args, kwargs, True
        return None

    def started(self) -> bool:
        """Stands in for ray.is_initialized. Who asks is about to use Ray itself."""
        if self.wanted and not self.asked and not self.known():
            self.asked = True
            self.inner(*self.args, **self.kwargs)
        return bool(self.known())


class _Session:
    """What Ray's functions ask for where a training reports; world_rank says it is a trial."""

    world_rank = None
    metadata: Dict[str, Any] = {}
    run_id = property(lambda self: session.get_context().get_experiment_name())
    experiment_name = property(lambda self: session.get_context().get_experiment_name())
    trial_name = property(lambda self: session.get_context().get_trial_name())
    trial_id = property(lambda self: session.get_context().get_trial_id())
    trial_dir = property(lambda self: session.get_context().get_trial_dir())

    @property
    def trial_resources(self) -> Any:
        factory = importlib.import_module("ray.tune").PlacementGroupFactory
        return factory(session.get_context().get_trial_resources().bundles)

    def report(self, metrics: Dict[str, Any], checkpoint: Any = None, **_: Any) -> None:
        session.report(metrics, checkpoint=checkpoint)

    @property
    def loaded_checkpoint(self) -> Any:
        found = session.get_checkpoint()
        if found is None:
            return None
        return importlib.import_module("ray.tune").Checkpoint.from_directory(found.path)


class _AfterImport:
    """Stands first on sys.meta_path and calls a function when its module has been imported."""

    def __init__(self, name: str, then: Callable[[Any], Any]) -> None:
        self.name, self.then = name, then

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = getattr(spec.loader, "exec_module", None) if spec else None
        if spec is None or spec.loader is None or run is None:
            return spec

        def exec_module(module: Any) -> None:
            run(module)
            self.then(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _when_imported(name: str, then: Callable[[Any], Any]) -> None:
    if name in sys.modules:
        then(sys.modules[name])
    else:
        sys.meta_path.insert(0, _AfterImport(name, then))


def postpone() -> None:
    """Lets Ray wait, also where it is imported later."""
    _when_imported("ray", lambda ray: isinstance(ray.init, _Later) or _Later(ray))


def train() -> None:
    """From now on this process trains: what it tells Ray is told to the study. Processes that Ray
    starts for it are Ray's own.
    """
    training.set()
    _when_imported(_SESSION, lambda module: setattr(module, "_session", _Session()))
