"""The program that holds a study, as its trials see it: they report here and hear whether they go
on. Scheduler, stop rule, search and callbacks are objects of that program, and are asked one at a
time.
"""

import json
import os
import secrets
import shutil
import threading
import traceback
from typing import Any, Callable, Dict, List, Optional, Tuple

from . import schedulers
from .config import note
from .meeting import Meeting, connect
from .session import Checkpoint, exploited, put
from .space import flat

SAVE = "should_checkpoint"  # in a result: a callback wants a checkpoint of a class
FILE = "driver.json"  # in the study's folder: the key
SOCKET = "socket"  # beside it: where the program listens


class Trial:
    """A trial as schedulers, callbacks and reporters see it."""

    PENDING, RUNNING, TERMINATED, ERROR = "PENDING", "RUNNING", "TERMINATED", "ERROR"

    def __init__(self, number: int, name: str, config: Dict[str, Any]) -> None:
        self.number, self.trial_id = number, "%05d" % number
        self.trainable_name, self.config, self.status = name, config, self.PENDING
        self.experiment_tag = str(number)
        self.last_result: Dict[str, Any] = {}
        self.checkpoint: Optional[Checkpoint] = None
        self.path = ""
        self.custom_name: Optional[str] = None
        self._next: Optional[Tuple[str, Any, str]] = None
        self.heard = 0  # reports that were decided about
        self.begun = 0
        self.first: Dict[str, Any] = {}  # the settings before a scheduler changed them

    evaluated_params = property(lambda self: self.config)
    local_path = logdir = property(lambda self: self.path)

    def exploit(self, config: Dict[str, Any], checkpoint: Checkpoint) -> None:
        """Goes on from another trial's checkpoint with these settings. It is copied: the
        other may delete its own, and this one needs it again where it is tried again.
        """
        before = exploited(self.path)
        kept = os.path.join(self.path, ".exploited_%06d" % self.heard)
        put(checkpoint.path, kept)
        if before and before != kept:
            shutil.rmtree(before, ignore_errors=True)
        self.config, self._next = config, ("exploit", config, kept)

    def taken(self) -> Optional[Tuple[str, Any, str]]:
        out, self._next = self._next, None
        return out

    def __str__(self) -> str:
        return self.custom_name or "%s_%s" % (self.trainable_name, self.trial_id)

    __repr__ = __str__


def merged(config: Dict[str, Any], found: Dict[str, Any]) -> Dict[str, Any]:
    """The settings that are given, with those that a search proposed in their place."""
    out = dict(config)
    for name, value in found.items():
        inner: Any = out.get(name)
        both = isinstance(inner, dict) and isinstance(value, dict)
        out[name] = merged(inner, value) if both else value
    return out


class Driver:
    """Answers the processes of trials."""

    def __init__(self, study: Any, folder: str) -> None:
        self.study, self.folder = study, folder
        self.trials: Dict[int, Trial] = {}
        self.lock = threading.RLock()
        self.key = secrets.token_bytes(16)
        self.meeting: Any = None
        self.steps = 0
        self.failure: Optional[BaseException] = None  # of a callback or a rule
        self.over = False

    def open(self) -> None:
        self.meeting = Meeting(os.path.join(self.folder, SOCKET), self.key, self._serve)
        path = os.path.join(self.folder, FILE)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump({"key": self.key.hex()}, file)
        self._call("setup", stop=self.study.stop, num_samples=self.study.samples)

    def close(self) -> None:
        if self.meeting is not None:
            self.meeting.close()

    def _serve(self, link: Any) -> None:
        try:
            while True:
                name, args = link.recv()
                try:
                    with self.lock:
                        answer = (True, getattr(self, "on_" + name)(*args))
                except BaseException as error:
                    self.failure = self.failure or error
                    text = traceback.format_exception_only(type(error), error)[-1].strip()
                    answer = (False, text)
                link.send(answer)
        except (OSError, EOFError):
            link.close()

    def _call(self, name: str, *args: Any, **kwargs: Any) -> None:
        for one in self.study.callbacks:
            method = getattr(one, name, None)
            if method is None:
                continue
            if name in ("setup", "on_experiment_end"):
                method(*args, **kwargs)
            else:
                method(self.steps, list(self.trials.values()), *args, **kwargs)

    def on_begin(self, number: int, config: Optional[Dict[str, Any]]) -> Dict[str, Any]:
        """A trial begins, perhaps once more. config is None where a search proposes it."""
        trial = self.trials.get(number)
        if trial is None:
            trial = Trial(number, self.study.label, config if config is not None else {})
            if self.study.search.searcher is not None:
                proposed = self._proposed(trial)
                if proposed is None:
                    return {"wait": bool(self._live())}
                trial.config = proposed
            self._named(trial)
            self.trials[number] = trial
            trial.first = dict(trial.config)
            self.study.rule.on_trial_add(self, trial)
        trial.begun += 1
        trial.status = trial.RUNNING
        self._call("on_trial_start" if trial.begun == 1 else "on_trial_recover", trial=trial)
        first = trial.first
        changed = {k: v for k, v in trial.config.items() if k not in first or v is not first[k]}
        answer = {"config": trial.config, "changed": changed, "path": trial.path}
        return dict(answer, name=str(trial))

    def _proposed(self, trial: Trial) -> Optional[Dict[str, Any]]:
        """The settings of the next trial. The study's own table knows of a number alone."""
        found = self.study.search.searcher.suggest(trial.trial_id)
        if not isinstance(found, dict):
            return None
        settings = ("%s=%.100r" % pair for pair in flat(found).items())
        note("trial %d has %s" % (int(trial.trial_id), " ".join(settings)))
        return merged(self.study.config, found)

    def _named(self, trial: Trial) -> None:
        study = self.study
        if study.trial_name_creator is not None:
            trial.custom_name = str(study.trial_name_creator(trial))
        folder = str(trial)
        if study.trial_dirname_creator is not None:
            folder = os.path.basename(str(study.trial_dirname_creator(trial)))
        trial.path = os.path.join(study.experiment, folder)
        if any(t.path == trial.path for t in self.trials.values()):
            trial.path += "_" + trial.trial_id

    def on_result(
        self, number: int, count: int, result: Dict[str, Any], checkpoint: Optional[str]
    ) -> Any:
        trial = self.trials[number]
        # A trial that is tried again repeats what it reported: that is decided already.
        if count <= trial.heard:
            return ("go on",)
        trial.heard = count
        self.steps += 1
        self._call("on_step_begin")
        trial.last_result = dict(result, config=trial.config)
        if checkpoint is not None:
            trial.checkpoint = Checkpoint(checkpoint)
        self._call("on_trial_result", trial=trial, result=trial.last_result)
        if checkpoint is not None:
            self._call("on_trial_save", trial=trial)
            self._call("on_checkpoint", trial=trial, checkpoint=trial.checkpoint)
        searcher = self.study.search.searcher
        if searcher is not None:
            searcher.on_trial_result(trial.trial_id, flat(trial.last_result))
        answer = self._decide(trial)
        if answer == ("go on",) and checkpoint is None and trial.last_result.get(SAVE):
            answer = ("save",)
        self._call("on_step_end")
        self.show(False)
        return answer

    def on_saved(self, number: int, checkpoint: str) -> None:
        """A trial made the checkpoint that a callback asked for."""
        trial = self.trials[number]
        trial.checkpoint = Checkpoint(checkpoint)
        self._call("on_trial_save", trial=trial)
        self._call("on_checkpoint", trial=trial, checkpoint=trial.checkpoint)

    def _decide(self, trial: Trial) -> Any:
        result, stop, rule = trial.last_result, self.study.stopper, self.study.rule
        ends = bool(stop(trial.trial_id, result)) or bool(result.get("done"))
        if stop.stop_all():
            self.over = True
        if self.over:
            return ("all",)
        if ends:
            return ("stop",)
        result = flat(result)  # metric="valid/loss" is result["valid"]["loss"]
        said = rule.on_trial_result(self, trial, result)
        if said == schedulers.TrialScheduler.STOP:
            return ("stop",) if schedulers.reached(rule, result) else ("early",)
        return trial.taken() or ("go on",)

    def on_end(self, number: int) -> None:
        trial = self.trials[number]
        if trial.status != trial.RUNNING:
            return
        trial.status = trial.TERMINATED
        shutil.rmtree(exploited(trial.path) or "", ignore_errors=True)
        trial.last_result["done"] = True
        self.study.rule.on_trial_complete(self, trial, flat(trial.last_result))
        self._told(trial, False)
        self._call("on_trial_complete", trial=trial)

    def _told(self, trial: Trial, error: bool) -> None:
        searcher = self.study.search.searcher
        if searcher is not None:
            last = None if error else flat(trial.last_result)
            searcher.on_trial_complete(trial.trial_id, last, error=error)

    def settle(self, results: List[Any]) -> None:
        """Tells of trials that could not tell themselves: killed, failed, too large."""
        for one in results:
            trial = self.trials.get(one.trial_id)
            if trial is None or trial.status != trial.RUNNING:
                continue
            if one.error is None:
                self.on_end(one.trial_id)
                continue
            trial.status = trial.ERROR
            self.study.rule.on_trial_error(self, trial)
            self._told(trial, True)
            self._call("on_trial_error", trial=trial)
        self._call("on_experiment_end", trials=list(self.trials.values()))
        self.show(True)

    def show(self, done: bool) -> None:
        one, trials = self.study.reporter, list(self.trials.values())
        if one is not None and one.should_report(trials, done):
            one.report(trials, done)

    # What Ray's schedulers ask of the program that holds a study.
    def get_trials(self) -> List[Trial]:
        return list(self.trials.values())

    def _live(self) -> List[Trial]:
        return [t for t in self.trials.values() if t.status == t.RUNNING]

    get_live_trials = _live


class Link:
    """The trial's side. Where nobody answers any more, the training goes on alone."""

    def __init__(self, folder: str) -> None:
        self.link: Any = None
        try:
            with open(os.path.join(folder, FILE)) as file:
                said = json.load(file)
            key = bytes.fromhex(said["key"])
            self.link = connect(os.path.join(folder, SOCKET), key)
        except (OSError, EOFError, ValueError):
            pass
        self.lock = threading.Lock()

    def ask(self, name: str, *args: Any, otherwise: Optional[Callable[..., Any]] = None) -> Any:
        with self.lock:
            try:
                if self.link is None:
                    raise EOFError
                self.link.send((name, args))
                well, answer = self.link.recv()
            except (OSError, EOFError):
                self.link = None
                return None if otherwise is None else otherwise()
        return answer if well else ("error", answer)
