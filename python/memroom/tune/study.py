"""A study, in the program that starts it and in those of its trials.

The study is run by the `memroom` command: trials are packed by memory, none kills another. A trial
is this very script, started again; there the call of `run` (or `Tuner.fit`) trains with the trial's
settings instead of starting a study, and the process ends.
"""

import atexit
import contextlib
import fcntl
import inspect
import itertools
import json
import math
import os
import pickle
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, List, Optional

from ..command import find
from . import schedulers, session, space, theirs
from .config import FailureConfig, named, note, seconds, whole
from .driver import Driver, Link
from .reporter import reporter_of
from .results import Result, TuneError
from .search import Asked
from .session import FAILED, OVER, PRUNED, Exploit, Session, StopTraining, tell
from .stopper import stopper_of
from .trainable import Prepared, call, is_class, name_of, steps

CALL = "MEMROOM_TUNE_CALL"  # number of the call whose trial this process is
FOLDER = "MEMROOM_TUNE_FOLDER"  # where the study and its trials find each other while it runs
EXPERIMENT = "MEMROOM_TUNE_EXPERIMENT"  # where results are kept, also for a resumed study
ENDLESS = 100_000  # samples: a budget of time or a stop rule ends the study
DONE = "memroom_done"  # stands in for a metric where none is named
DRIVEN = "MEMROOM_TUNE_DRIVEN"  # trials cannot do without the program that holds the study

_calls = itertools.count(1)  # of run and fit in this process
held: List[int] = []  # descriptors for the command and its trials to inherit


class Study:
    """One call of run or fit."""

    def __init__(
        self,
        trainable: Any,
        config: Optional[Dict[str, Any]],
        samples: int = 1,
        metric: Optional[str] = None,
        mode: Optional[str] = None,
        scheduler: Any = None,
        search_alg: Any = None,
    ) -> None:
        self.trainable = Prepared(trainable)
        if not callable(self.trainable.trainable):
            raise TypeError(
                "tune.run needs a function or a Trainable, not %r" % (self.trainable.trainable,)
            )
        if (mode or "min") not in ("min", "max"):
            raise ValueError("mode must be min or max, not %r" % (mode,))
        if not isinstance(config or {}, dict):
            raise TypeError("the settings are a dict of values and domains, not %r" % (config,))
        samples = whole("num_samples", samples, -1)
        if samples == 0:
            raise ValueError("num_samples must be at least 1, or -1 for no end, not 0")
        self.config, self.samples = config or {}, samples if samples > 0 else ENDLESS
        self.label = name_of(self.trainable.trainable)
        self.search = Asked(search_alg)
        ruled = schedulers.metric_of(scheduler)
        proposed = schedulers.metric_of(self.search.searcher)
        self.metric = metric or ruled[0] or proposed[0]
        self.mode = mode or ruled[1] or proposed[1]
        if isinstance(self.metric, (list, tuple)):  # several goals: the search alone compares
            self.metric = self.mode = None
        self.rule = schedulers.scheduler_of(scheduler, metric, mode)
        self.resources: Dict[str, Any] = {}
        self.stop: Any = None
        self.stopper: Any = None
        self.callbacks: List[Any] = []
        self.reporter: Any = None
        self.trial_name_creator: Any = None
        self.trial_dirname_creator: Any = None
        self.name: Optional[str] = None
        self.storage: Optional[str] = None
        self.restore: Optional[str] = None
        self.concurrent: Optional[int] = self.search.concurrent
        self.budget: Optional[float] = None
        self.host_mem: Optional[str] = None
        self.gpu_mem: Optional[str] = None
        self.seed: Optional[int] = self.search.seed
        self.quiet = False
        self.failure: Any = FailureConfig()
        self.keep: Any = None
        self.every = 0  # steps of a class between its checkpoints; 0: none
        self.shared: Any = None  # what with_parameters holds, for trials to map
        self.experiment = ""

    def configure(
        self,
        *,
        stop: Any = None,
        name: Optional[str] = None,
        storage_path: Optional[str] = None,
        failure_config: Any = None,
        checkpoint_config: Any = None,
        callbacks: Any = None,
        progress_reporter: Any = None,
        max_concurrent_trials: Optional[int] = None,
        time_budget_s: Any = None,
        verbose: Any = None,
        reuse_actors: Any = None,
        trial_name_creator: Any = None,
        trial_dirname_creator: Any = None,
    ) -> None:
        """Takes what tune.run and the configurations of a Tuner name alike."""
        self.stop, self.stopper, self.name = stop, stopper_of(stop), named(name)
        self.storage = _folder_of(storage_path)
        self.failure = failure_config or FailureConfig()
        self.keep = checkpoint_config
        self.every = getattr(checkpoint_config, "checkpoint_frequency", 0) or 0
        if isinstance(self.rule, schedulers.PopulationBasedTraining) and not self.every:
            self.every = 1  # the others may go on from any
        self.callbacks = list(callbacks or [])
        self.reporter = None if progress_reporter is None else reporter_of(progress_reporter)
        at_once = whole("max_concurrent_trials", max_concurrent_trials or 0, 0)
        self.concurrent = at_once or self.concurrent
        self.budget, self.quiet = seconds(time_budget_s), verbose == 0
        self.trial_name_creator = trial_name_creator
        self.trial_dirname_creator = trial_dirname_creator
        if reuse_actors:
            note("reuse_actors changes nothing here: each trial is a process of its own")

    def results(self) -> List[Result]:
        """Runs the study, or, in a process that is a trial of it, the trial."""
        number = next(_calls)
        mine = os.environ.get(CALL)
        if mine is None:
            return self._run(number)
        if number < int(mine):  # a study before the one whose trial this is: it is over
            path = os.path.join(os.path.dirname(os.environ[FOLDER]), "study-%d" % number)
            if not os.path.isdir(path):
                raise RuntimeError(
                    "an earlier study of this program has gone with the program, and its results "
                    "are asked for: start the script again"
                )
            with open(os.path.join(path, "experiment")) as file:
                self.experiment = file.read()
            return self._read(path)
        if number == int(mine):
            self._train(json.loads(os.environ["MEMROOM_PARAMS"]))
        raise SystemExit(0)  # also from a later call, where the script caught the first one

    # In the process of a trial.

    def _train(self, params: Dict[str, Any]) -> None:
        theirs.train()
        one = session.current = self._begin(params)
        try:
            while True:
                try:
                    self._train_once(one)
                    break
                except Exploit as another:
                    one.config = another.config
                    one.checkpoint = session.Checkpoint(another.checkpoint)
                    one.save_params()
        except StopTraining as stop:
            one.driver.ask("end", one.number)
            if stop.all_of_them:
                tell({OVER: 1.0}, one.count + 1)
            elif stop.early:
                tell({PRUNED: 1.0}, one.count + 1)
            self._no_metric(one)
            return
        except Exception as error:
            one.failed(error)
            if self.failure.fail_fast:
                tell({OVER: FAILED}, one.count + 1)
            # The script may catch exceptions around run, to go on; this process is at its end.
            sys.last_type, sys.last_value = type(error), error
            sys.last_traceback = error.__traceback__
            sys.excepthook(type(error), error, error.__traceback__)
            _where(error)
            raise SystemExit(1) from None
        one.driver.ask("end", one.number)
        self._no_metric(one)

    def _no_metric(self, one: Session) -> None:
        if not self.metric:
            tell({DONE: 0.0}, one.count + 1)

    def _begin(self, params: Dict[str, Any]) -> Session:
        folder, number = os.environ[FOLDER], int(os.environ["MEMROOM_TRIAL"])
        self.experiment = os.environ[EXPERIMENT]
        link = Link(folder)
        config = None if self.search.searcher is not None else self._settings(number, params)
        said = self._asked(link, number, config)
        path = said.get("path") or self._path(number)
        one = Session(number, path, said.get("name") or os.path.basename(path), link, self.keep)
        one.resources, one.metric = dict(self.resources), self.metric
        one.config = said["config"] if config is None else dict(config, **said.get("changed", {}))
        if one.checkpoint is None and self.restore:
            one.checkpoint = session.Checkpoint(os.path.abspath(self.restore))
        one.save_params()
        _move(one.path)
        return one

    def _asked(self, link: Link, number: int, config: Any) -> Dict[str, Any]:
        """What the program that holds the study says of the trial that begins."""
        while True:
            said = link.ask("begin", number, _sendable(config))
            if said is None:
                if os.environ.get(DRIVEN):
                    raise RuntimeError(
                        "the program that holds this study has gone, and its search, scheduler or "
                        "stop rule with it: start the script again"
                    )
                return {}
            if isinstance(said, tuple):
                raise RuntimeError(said[1])
            if "wait" not in said:
                return dict(said)
            if not said["wait"]:  # the search has nothing more
                tell({PRUNED: 1.0}, 1)
                raise SystemExit(0)
            time.sleep(0.2)

    def _settings(self, number: int, params: Dict[str, Any]) -> Dict[str, Any]:
        """The trial's settings. What functions made of them stays when it is tried again."""
        self._same_settings(params)
        path = os.path.join(self.experiment, ".made_%05d.pkl" % number)
        made: Dict[str, Any] = {}
        if os.path.exists(path):
            with open(path, "rb") as file:
                made = pickle.load(file)  # noqa: S301  our own file
        config = dict(space.filled(self.config, params, made))
        if made:
            with contextlib.suppress(Exception):  # what cannot be kept is made once more
                kept = pickle.dumps(made)
                with open(path + ".new", "wb") as out:
                    out.write(kept)
                os.replace(path + ".new", path)
        return config

    def _same_settings(self, params: Dict[str, Any]) -> None:
        """A script that was changed between a study and its `resume` may search something else."""
        domains = space.collected(self.config)
        mine = {path for path, one in domains.items() if not isinstance(one, space.Function)}
        if mine and mine != set(params):
            raise ValueError(
                "the study searches %s, the script %s: has it changed since the study began?"
                % (", ".join(sorted(params)), ", ".join(sorted(mine)))
            )

    def _train_once(self, one: Session) -> None:
        target = self.trainable.trainable
        if is_class(target):
            steps(target, one, self.trainable.parameters, self._saves)
            return
        made = call(target, one.config, self.trainable.parameters)
        for result in made if inspect.isgenerator(made) else [made]:
            if isinstance(result, dict):
                one.report(result)
            elif hasattr(result, "__float__"):
                one.report({self.metric or "_metric": result})
            elif result is not None:
                raise ValueError(
                    "the training function returned %.100r: return a number, a dict of metrics or "
                    "nothing" % (result,)
                )

    def _saves(self, result: Dict[str, Any], done: bool) -> bool:
        """Whether a class makes a checkpoint after this step."""
        if done and getattr(self.keep, "checkpoint_at_end", None):
            return True
        return bool(self.every) and int(result["training_iteration"]) % self.every == 0

    # In the program that starts the study.

    def _run(self, call: int) -> List[Result]:
        folder = os.path.join(root(), "study-%d" % call)
        os.makedirs(folder)
        name = self._free(self.name or "%s-%s" % (self.label, time.strftime("%Y%m%d-%H%M%S")))
        self.name = name if self.name else None
        self.experiment = os.path.join(self.storage or _results(), name)
        os.makedirs(self.experiment)
        with open(os.path.join(folder, "experiment"), "w") as file:
            file.write(self.experiment)
        if self.seed is None:
            self.seed = secrets.randbelow(2**31)
        if not self.quiet:
            note("seed %d" % self.seed)
        if isinstance(self.rule, schedulers.PopulationBasedTraining):
            self.rule.random.seed(self.seed)
        self.search.prepare(self.metric, self.mode, self.config)
        driver = Driver(self, folder)
        try:
            driver.open()
            code = self._work(call, folder)
        finally:
            driver.close()
            self.shared = None
        results = self._read(folder)
        driver.settle(results)
        if code == 130:
            raise KeyboardInterrupt
        if driver.failure is not None:
            note("a callback, scheduler, search or stop rule failed: %r" % driver.failure)
        if self.failure.fail_fast == "raise":
            for one in results:
                if one.error is not None:
                    raise one.error
        return results

    def _work(self, call: int, folder: str) -> int:
        path, out = os.path.join(folder, "study.json"), os.path.join(folder, "out.json")
        with open(path, "w") as file:
            json.dump(self._described(call, folder), file)
        command = [find(), "tune", "--json", out]
        if self.quiet:
            command.append("--quiet")
        code = _shown(command + [path])
        if not os.path.exists(out) or os.path.getsize(out) == 0:
            raise RuntimeError(
                "the study could not be run (exit code %d): the lines above say why" % code
            )
        return code

    def _driven(self) -> bool:
        """Whether trials need this program to go on as they should."""
        return (
            self.search.searcher is not None
            or self.stop is not None
            or not isinstance(self.rule, schedulers.FIFOScheduler)
        )

    def _free(self, name: str) -> str:
        """The name, with a number where a study has it already."""
        taken = [os.path.join(_home(), "studies"), self.storage or _results()]
        free, n = name, 1
        while any(os.path.exists(os.path.join(place, free)) for place in taken):
            n += 1
            free = "%s-%d" % (name, n)
        return free

    def _command(self, folder: str) -> List[str]:
        """What starts a trial."""
        from . import detached

        words = _script()
        if words is None:
            return detached.of_notebook(self, folder)
        found = None
        try:
            found = detached.of_script(self, folder, words)
        except (RuntimeError, TypeError, OSError) as error:
            note("each trial makes a copy of what with_parameters holds: %s" % error)
        return found or _this_script()

    def _described(self, call: int, folder: str) -> Dict[str, Any]:
        parameters: Dict[str, Any] = {}
        if self.search.searcher is None:
            for path, one in space.collected(self.config).items():
                if not isinstance(one, space.Function):
                    parameters[path] = one.described()
        if not parameters:
            # nothing is searched: repeated runs, which all take the same memory
            parameters["seed"] = {"randint": [0, 2**31]}
        study: Dict[str, Any] = {
            "command": self._command(folder),
            "parameters": parameters,
            "samples": self.samples,
            "metric": self.metric or DONE,
            "seed": self.seed,
            "retries": self._retries(),
            # naming the settings somewhere keeps them out of the script's own arguments
            "env": {
                CALL: str(call),
                FOLDER: folder,
                EXPERIMENT: self.experiment,
                DRIVEN: "1" if self._driven() else "",
                "MEMROOM_TUNE_SETTINGS": "${params_json}",
            },
        }
        study.update(self._resources())
        for key, value in (
            ("name", self.name),
            ("mode", self.mode),
            ("concurrent", self.concurrent),
            ("host_mem", self.host_mem),
            ("gpu_mem", self.gpu_mem),
            ("time_budget", self.budget),
        ):
            if value:
                study[key] = value
        return study

    def _retries(self) -> int:
        failures = int(getattr(self.failure, "max_failures", 0) or 0)
        return failures if failures >= 0 else 1_000_000

    def _resources(self) -> Dict[str, Any]:
        """What each trial asks for, as far as this machine has it. Ray would wait for ever."""
        out: Dict[str, Any] = {}
        there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        cpus = self.resources.get("cpu", self.resources.get("CPU"))
        if cpus:
            if cpus > (there or 1):
                note("a trial asks for %s processors, there are %s" % (cpus, there))
            out["cpus_per_trial"] = min(cpus, there or 1)
        gpus = self.resources.get("gpu", self.resources.get("GPU"))
        if gpus:
            seen = os.path.exists("/dev/nvidiactl") or os.path.exists("/proc/driver/nvidia/version")
            if not seen:
                note("a trial asks for %s cards and none is here: it trains without" % gpus)
            out["gpus_per_trial"] = int(math.ceil(gpus)) if seen else 0
        if self.resources.get("memory"):
            out["trial_mem"] = int(self.resources["memory"])
        return out

    def _path(self, number: int) -> str:
        return os.path.join(self.experiment, "%s_%05d" % (self.label, number))

    def _read(self, folder: str) -> List[Result]:
        with open(os.path.join(folder, "out.json")) as file:
            trials = json.load(file)["trials"]
        begun = [t for t in trials if t["attempts"] or t["state"] != "waiting"]
        return [self._result(t) for t in begun]

    def _result(self, trial: Dict[str, Any]) -> Result:
        path = self._path(trial["id"])
        number = "%05d" % trial["id"]
        if not os.path.isdir(path):  # it has a name of its own: its reports tell whose they are
            for name in sorted(os.listdir(self.experiment)):
                found = session.lines(os.path.join(self.experiment, name))
                if found and found[0].get("trial_id") == number:
                    path = os.path.join(self.experiment, name)
        try:
            config = dict(space.filled(self.config, trial["params"]))
        except Exception:  # the trial never began, or its settings were proposed
            config = dict(trial["params"])
        return Result(trial, config, path, self.metric)


def _move(path: str) -> None:
    """Goes to the trial's folder, as in Ray: what trials write under one relative name must not be
    one file. RAY_CHDIR_TO_TRIAL_DIR=0 prevents it, for Ray as for us.
    """
    if os.environ.get("RAY_CHDIR_TO_TRIAL_DIR", "1") != "0":
        here = os.getcwd()
        os.environ.setdefault("TUNE_ORIG_WORKING_DIR", here)
        sys.path[:] = [os.path.join(here, place) for place in sys.path]  # "" is this folder
        os.chdir(path)


def _where(error: Exception) -> None:
    """Says where a file is that a training looked for in its trial's folder."""
    name, here = getattr(error, "filename", None), os.environ.get("TUNE_ORIG_WORKING_DIR")
    if not isinstance(error, FileNotFoundError) or not isinstance(name, str) or not here:
        return
    if not os.path.isabs(name) and os.path.exists(os.path.join(here, name)):
        print(
            "FileNotFoundError: %r is in %s, and a training runs in its trial's folder: take "
            "os.path.abspath(%r) before tune.run, or set RAY_CHDIR_TO_TRIAL_DIR=0"
            % (name, here, name),
            file=sys.stderr,
        )


def _sendable(config: Any) -> Any:
    """Settings that another process can have; objects that cannot be pickled as their text."""

    def one(value: Any) -> Any:
        try:
            pickle.dumps(value)
        except Exception:
            return repr(value)
        return value

    return None if config is None else {k: one(v) for k, v in config.items()}


def raise_failed(results: List[Result]) -> None:
    failed = [r for r in results if r.error is not None]
    if failed:
        raise TuneError("trials did not complete: %s" % ", ".join(str(r.trial_id) for r in failed))


def _folder_of(storage_path: Any) -> Optional[str]:
    if storage_path is None:
        return None
    path = os.fspath(storage_path)
    if "://" in path:
        if not path.startswith(("file://", "local://")):
            raise NotImplementedError(
                "storage_path=%r: results are kept in a folder of this machine" % path
            )
        path = path.split("://", 1)[1]
    answer: Optional[str] = os.path.abspath(os.path.expanduser(path))
    return answer


def _home() -> str:
    """Where the command keeps its records."""
    home, data = os.environ.get("MEMROOM_HOME"), os.environ.get("XDG_DATA_HOME", "")
    if home:
        return os.path.abspath(home)
    if os.path.isabs(data):
        return os.path.join(data, "memroom")
    return os.path.join(os.path.expanduser("~"), ".local", "share", "memroom")


def _results() -> str:
    return os.path.join(os.path.dirname(_home()), os.path.basename(_home()) + "-results")


def root() -> str:
    """The folder of this program's studies, while they are run."""
    place = os.environ.get(FOLDER + "_ROOT")
    if not place:
        place = tempfile.mkdtemp(prefix="memroom-tune-")
        os.environ[FOLDER + "_ROOT"] = place
        _hold(place)
        atexit.register(_remove, place, os.getpid())
    return place


def _hold(place: str) -> None:
    """Locks the folder as long as this program or one of its trials lives: what no process holds
    any more is removed by the next `memroom tune`."""
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    held.append(descriptor)


def _remove(place: str, owner: int) -> None:
    """Removes the folder where its program ends; a forked child of it leaves it alone."""
    if os.getpid() == owner:
        shutil.rmtree(place, ignore_errors=True)


def _script() -> Optional[List[str]]:
    """The words after Python of the command that started this program; None: it is no script."""
    argv = list(getattr(sys, "orig_argv", []) or [])
    if not argv:
        argv = [sys.executable] + sys.argv
    words = argv[1:]
    if not words or words[-1] == "-" or "ipykernel" in " ".join(words) or hasattr(sys, "ps1"):
        return None
    return words


def _this_script() -> List[str]:
    """The command that started this program: every trial is this program again."""
    words = _script()
    if words is None:
        raise RuntimeError(
            "memroom.tune starts your script again for each trial, and here is no script: "
            "save the program to a file and run that"
        )
    return [sys.executable] + words


def _shown(words: List[str]) -> int:
    """Runs a command whose output is for the user; in a notebook it stands below the cell."""
    if _script() is None:
        from . import detached

        return detached.run(words, held)
    return subprocess.run(words, pass_fds=held).returncode
