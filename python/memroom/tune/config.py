"""What Ray's TuneConfig, RunConfig and tune.run take. Each name is honoured, or refused by
its name: nothing is dropped without a word.
"""

import datetime
import math
import os
import re
import sys
from typing import Any, Dict, Optional

# Names that have no meaning here, and what there is instead. Their defaults are accepted.
REFUSED = {
    "storage_filesystem": "results are kept in a folder of this machine: storage_path",
    "sync_config": "results are kept in a folder of this machine: storage_path",
    "log_to_file": "the output of each trial is kept with its run: `memroom runs`",
    "export_formats": "save the model in the training function and report it as a checkpoint",
    "resume": "`memroom tune resume NAME` goes on with a study",
    "resume_config": "`memroom tune resume NAME` goes on with a study",
    "local_dir": "take storage_path",
    "chdir_to_trial_dir": "set RAY_CHDIR_TO_TRIAL_DIR=0 in the environment",
    "_remote": "trials are processes of this machine",
    "_remote_string_queue": "trials are processes of this machine",
    "_entrypoint": "it is for Ray itself",
    "_tuner_kwargs": "it is for Ray itself",
    "_tuner_internal": "it is for Ray itself",
    "_checkpoint_keep_all_ranks": "a trial is one process",
    "_checkpoint_upload_from_workers": "a trial is one process",
    "concurrent": "experiments run one after the other",
}
_DEFAULTS = (None, False, 0, "DEPRECATED")


def note(text: str) -> None:
    """Says something to the user, once: not in the trials, which run the same program."""
    if os.environ.get("MEMROOM_TUNE_CALL") is None:
        print("memroom: tune: " + text, file=sys.stderr, flush=True)


def refuse(where: str, given: Dict[str, Any]) -> None:
    """Raises for the first name that is not known, or that has no meaning here."""
    for name, value in given.items():
        if name not in REFUSED:
            raise TypeError("%s got an unexpected keyword argument %r" % (where, name))
        if not any(value is d or value == d for d in _DEFAULTS):
            raise NotImplementedError("%s(%s=) is not here: %s" % (where, name, REFUSED[name]))


class TuneConfig:
    """What is searched and how."""

    def __init__(
        self,
        mode: Optional[str] = None,
        metric: Optional[str] = None,
        search_alg: Any = None,
        scheduler: Any = None,
        num_samples: int = 1,
        max_concurrent_trials: Optional[int] = None,
        time_budget_s: Any = None,
        reuse_actors: Optional[bool] = False,
        trial_name_creator: Any = None,
        trial_dirname_creator: Any = None,
        **given: Any,
    ) -> None:
        refuse("TuneConfig", given)
        self.metric, self.mode, self.num_samples = metric, mode, num_samples
        self.scheduler, self.search_alg = scheduler, search_alg
        self.max_concurrent_trials, self.time_budget_s = max_concurrent_trials, time_budget_s
        self.reuse_actors = reuse_actors
        self.trial_name_creator = trial_name_creator
        self.trial_dirname_creator = trial_dirname_creator


class CheckpointConfig:
    """Which checkpoints are kept, and when a class's are made."""

    def __init__(
        self,
        num_to_keep: Optional[int] = None,
        checkpoint_score_attribute: Optional[str] = None,
        checkpoint_score_order: Optional[str] = "max",
        checkpoint_frequency: Optional[int] = 0,
        checkpoint_at_end: Optional[bool] = None,
        **given: Any,
    ) -> None:
        refuse("CheckpointConfig", given)
        if num_to_keep is not None:
            num_to_keep = whole("num_to_keep", num_to_keep, 1)
        if checkpoint_score_order not in ("min", "max"):
            raise ValueError("checkpoint_score_order must be min or max")
        self.num_to_keep = num_to_keep
        self.checkpoint_frequency = whole("checkpoint_frequency", checkpoint_frequency or 0, 0)
        self.checkpoint_score_attribute = checkpoint_score_attribute
        self.checkpoint_score_order = checkpoint_score_order
        self.checkpoint_at_end = checkpoint_at_end


class FailureConfig:
    """How often a trial that fails is tried again; -1: always."""

    def __init__(self, max_failures: int = 0, fail_fast: Any = False) -> None:
        if fail_fast not in (True, False, "raise"):
            raise ValueError("fail_fast must be True, False or 'raise', not %r" % (fail_fast,))
        if fail_fast and max_failures:
            raise ValueError("max_failures must be 0 with fail_fast")
        self.max_failures, self.fail_fast = whole("max_failures", max_failures, -1), fail_fast


class RunConfig:
    """Name, place and end of a study."""

    def __init__(
        self,
        name: Optional[str] = None,
        storage_path: Optional[str] = None,
        storage_filesystem: Any = None,
        failure_config: Any = None,
        checkpoint_config: Any = None,
        sync_config: Any = None,
        verbose: Any = None,
        stop: Any = None,
        callbacks: Any = None,
        progress_reporter: Any = None,
        log_to_file: Any = False,
        **given: Any,
    ) -> None:
        given.update(
            storage_filesystem=storage_filesystem, sync_config=sync_config, log_to_file=log_to_file
        )
        refuse("RunConfig", given)
        self.name, self.storage_path, self.verbose, self.stop = name, storage_path, verbose, stop
        self.failure_config, self.checkpoint_config = failure_config, checkpoint_config
        self.callbacks, self.progress_reporter = callbacks, progress_reporter


def run_config_of(given: Any) -> Any:
    """Ours as it is; Ray's own object with what it holds."""
    if given is None:
        return RunConfig()
    if isinstance(given, RunConfig):
        return given
    names = [*("name", "storage_path", "failure_config", "checkpoint_config", "verbose", "stop")]
    names += ["callbacks", "progress_reporter", "storage_filesystem", "sync_config", "log_to_file"]
    if not hasattr(given, "storage_path"):
        raise TypeError("run_config=%r is no RunConfig" % (given,))
    values = {name: getattr(given, name, None) for name in names}
    if values["storage_path"] and values["storage_path"].endswith("ray_results"):
        values["storage_path"] = None  # Ray fills in its default
    if type(values["sync_config"]).__name__ == "SyncConfig":
        values["sync_config"] = None  # it fills in this one too
    return RunConfig(**values)


def whole(name: str, value: Any, least: int) -> int:
    """A whole number; NumPy's count too, a truth value or text does not."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or int(value) < least:
        raise ValueError("%s must be a whole number, at least %d, not %r" % (name, least, value))
    return int(value)


def seconds(value: Any) -> Any:
    """A budget of time: a number of seconds, a timedelta, or text such as 2h."""
    if isinstance(value, datetime.timedelta):
        value = value.total_seconds()
    if value is None or isinstance(value, str):
        return value
    number = not isinstance(value, bool) and hasattr(value, "__float__")
    if not number or not 0 < value < math.inf:
        raise ValueError(
            "time_budget_s must be a positive number of seconds, not %r; None: no end" % (value,)
        )
    return float(value)


def named(name: Optional[str]) -> Optional[str]:
    """The name of a study, which is that of its folders too."""
    if name and not (
        isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name)
    ):
        raise ValueError(
            "name=%r: use letters, digits, dots, dashes and underscores, at most 100, and begin "
            "with a letter or a digit" % (name,)
        )
    return name


def resources_of(given: Any) -> Dict[str, Any]:
    """What a trial asks for: a dict, or a PlacementGroupFactory of one bundle."""
    bundles = getattr(given, "bundles", None)
    if bundles is None:
        asked = dict(given or {})
        for one, much in asked.items():
            if one.lower() not in ("cpu", "gpu", "memory"):
                raise NotImplementedError(
                    "resources: %r is not here: a trial asks for cpu, gpu and memory" % one
                )
            if not 0 <= much < math.inf:
                raise ValueError("resources: %s=%r is no number from 0 on" % (one, much))
        return asked
    if len(bundles) != 1:
        raise NotImplementedError(
            "PlacementGroupFactory with %d bundles: a trial is one process, name one bundle"
            % len(bundles)
        )
    return resources_of(dict(bundles[0]))


class PlacementGroupFactory:
    """What a trial asks for, in Ray's words."""

    def __init__(self, bundles: Any, strategy: str = "PACK", *args: Any, **kwargs: Any) -> None:
        self.bundles, self.strategy = [dict(b) for b in bundles], strategy
        self.required_resources = resources_of(self)

    head_bundle_is_empty = False
    head_cpus = property(lambda self: self.required_resources.get("CPU", 0))
