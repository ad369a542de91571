"""A training as a class, and what is wrapped around trainings."""

import contextlib
import functools
import inspect
import os
import tempfile
from typing import Any, Dict, Iterator, Optional

from .config import resources_of
from .session import Checkpoint, Session


class Trainable:
    """A training as a class: `setup` once, `step` until `done` or the stop criteria."""

    def __init__(self, config: Optional[Dict[str, Any]] = None, **parameters: Any) -> None:
        self.config = config or {}
        self.iteration = 0
        self._session: Optional[Session] = None
        self.setup(self.config, **parameters)

    def setup(self, config: Dict[str, Any]) -> None:
        """For the subclass: prepare."""

    def step(self) -> Dict[str, Any]:
        raise NotImplementedError("a Trainable needs a step method that gives a dict of metrics")

    def cleanup(self) -> None:
        """For the subclass: tidy up."""

    def save_checkpoint(self, checkpoint_dir: str) -> Any:
        raise NotImplementedError("%s has no save_checkpoint" % type(self).__name__)

    def load_checkpoint(self, checkpoint: Any) -> None:
        raise NotImplementedError("%s has no load_checkpoint" % type(self).__name__)

    def reset_config(self, new_config: Dict[str, Any]) -> bool:
        return False

    def get_config(self) -> Dict[str, Any]:
        return self.config

    # What a study does with a training, for a program that does it by itself.

    def train(self) -> Dict[str, Any]:
        """One step, with its number."""
        result = dict(self.step())
        self.iteration += 1
        result.setdefault("training_iteration", self.iteration)
        return result

    def save(self, checkpoint_dir: Optional[str] = None) -> Checkpoint:
        """A checkpoint that restore() takes."""
        made = _save(self, checkpoint_dir or tempfile.mkdtemp(prefix="checkpoint-"))
        made.update_metadata({"training_iteration": self.iteration})
        return made

    def restore(self, checkpoint_path: Any) -> None:
        """Goes on from a checkpoint, or from the path of one."""
        made = Checkpoint(getattr(checkpoint_path, "path", checkpoint_path))
        _load(self, made.path)
        self.iteration = int(made.get_metadata().get("training_iteration", 0))

    def stop(self) -> None:
        self.cleanup()

    training_iteration = property(lambda self: self.iteration)
    trial_id = property(lambda self: self._session.trial_id if self._session else "default")
    trial_name = property(lambda self: self._session.name if self._session else "default")
    logdir = property(lambda self: self._session.path if self._session else os.getcwd())


class Prepared:
    """A training function or class with what was wrapped around it."""

    def __init__(self, trainable: Any) -> None:
        inner = trainable if isinstance(trainable, Prepared) else None
        self.trainable: Any = inner.trainable if inner else trainable
        self.resources: Optional[Dict[str, Any]] = inner.resources if inner else None
        self.parameters: Dict[str, Any] = dict(inner.parameters) if inner else {}


def with_resources(trainable: Any, resources: Any) -> Any:
    """Says what each trial needs: {"cpu": 2, "gpu": 1, "memory": bytes}."""
    if callable(resources) and not hasattr(resources, "bundles"):  # Ray's own can be called
        raise NotImplementedError("with_resources: a function of the settings; name the resources")
    holder = Prepared(trainable)
    holder.resources = resources_of(resources)
    return holder


def with_parameters(trainable: Any, **kwargs: Any) -> Any:
    """Hands objects to every trial beside its settings."""
    holder = Prepared(trainable)
    holder.parameters.update(kwargs)
    return holder


def is_class(target: Any) -> bool:
    return inspect.isclass(target) and hasattr(target, "step")


def name_of(target: Any) -> str:
    while isinstance(target, functools.partial):
        target = target.func
    return str(getattr(target, "__name__", type(target).__name__)).strip("<>")


def call(target: Any, config: Dict[str, Any], parameters: Dict[str, Any]) -> Any:
    """Calls a training function with the settings. Further arguments have defaults, or come from a
    partial or with_parameters.
    """
    try:
        inspect.signature(target).bind(config, **parameters)
    except TypeError as error:
        raise TypeError(
            "the training function takes the settings as its one argument; others need a default, "
            "functools.partial or tune.with_parameters (%s)" % error
        ) from None
    except ValueError:  # a builtin without a signature
        pass
    return target(config, **parameters)


def steps(target: Any, session: Session, parameters: Dict[str, Any], saves: Any) -> None:
    """Trains a class to its end. saves(result, done) says whether a checkpoint is due."""
    trainable = target(session.config, **parameters)
    trainable._session = session
    counter = "iteration" if isinstance(trainable, Trainable) else "_iteration"  # Ray's own class
    if session.checkpoint is not None:
        _load(trainable, session.checkpoint.path)
        setattr(trainable, counter, session.count)
    try:
        while True:
            result = dict(trainable.step())
            setattr(trainable, counter, trainable.iteration + 1)
            done = bool(result.get("done", False))
            result.setdefault("training_iteration", trainable.iteration)
            with _saved(trainable, saves(result, done)) as checkpoint:
                wanted = session.report(result, checkpoint)
            if done:
                return
            if wanted:
                with _saved(trainable) as checkpoint:
                    session.save(checkpoint)
    finally:
        trainable.cleanup()


@contextlib.contextmanager
def _saved(trainable: Any, due: bool = True) -> Iterator[Optional[Checkpoint]]:
    """A checkpoint until the session has copied it; None: none is due."""
    if due:
        with tempfile.TemporaryDirectory(prefix="checkpoint-") as folder:
            yield _save(trainable, folder)
    else:
        yield None


def _save(trainable: Any, folder: str) -> Checkpoint:
    os.makedirs(folder, exist_ok=True)
    made = trainable.save_checkpoint(folder)
    if isinstance(made, dict):
        import pickle

        with open(os.path.join(folder, "_dict.pkl"), "wb") as file:
            pickle.dump(made, file)
    return Checkpoint(folder)


def _load(trainable: Any, path: str) -> None:
    import pickle

    kept = os.path.join(path, "_dict.pkl")
    if os.path.exists(kept):
        with open(kept, "rb") as file:
            trainable.load_checkpoint(pickle.load(file))  # noqa: S301  our own file
    else:
        trainable.load_checkpoint(path)
