"""Optuna beside a memroom study: reads questions as JSON lines, answers with JSON lines."""

import json
import os
import pickle
import sys

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

optuna.logging.set_verbosity(optuna.logging.ERROR)


def over(trial):
    """The constraint of every trial: above 0 means that it did not fit into memory."""
    return (float(trial.user_attrs.get("memroom_does_not_fit", 0.0)),)


class Beside:
    def open(self, q):
        self.state, self.space = q["state"], {d["name"]: distribution(d) for d in q["space"]}
        sampler = self.restored() or make(optuna.samplers, q["sampler"] or "TPESampler", q["seed"])
        pruner = make(optuna.pruners, q["pruner"], None) if q["pruner"] else None
        self.study = optuna.create_study(
            study_name=q["name"],
            storage=q["storage"],
            sampler=sampler,
            pruner=pruner or optuna.pruners.NopPruner(),
            direction="maximize" if q["mode"] == "max" else "minimize",
            load_if_exists=True,
        )
        self.trials = {}
        for frozen in self.study.get_trials(deepcopy=False):
            if "memroom_trial" in frozen.user_attrs and frozen.state == TrialState.RUNNING:
                trial = optuna.trial.Trial(self.study, frozen._trial_id)
                self.trials[frozen.user_attrs["memroom_trial"]] = trial
        return {}

    def restored(self):
        try:
            with open(self.state, "rb") as file:
                return pickle.load(file)  # written by us, in the study's private folder
        except (OSError, EOFError, pickle.UnpicklingError, AttributeError):
            return None

    def save(self):
        """Keeps the sampler's random state: a study that is taken up again goes on with it."""
        try:
            with open(self.state + ".new", "wb") as file:
                pickle.dump(self.study.sampler, file)
            os.replace(self.state + ".new", self.state)
        except (OSError, pickle.PicklingError, AttributeError, TypeError):
            pass  # some samplers cannot be kept

    def ask(self, q):
        trial = self.trials.get(q["trial"])
        if trial is None:
            trial = self.study.ask(self.space)
            trial.set_user_attr("memroom_trial", q["trial"])
            self.trials[q["trial"]] = trial
            self.save()
        params = trial.params
        return {"params": {name: params[name] for name in self.space}}

    def report(self, q):
        trial = self.trials.get(q["trial"])
        if trial is None:
            return {"prune": False}
        trial.report(q["value"], q["step"])
        return {"prune": bool(trial.should_prune())}

    def tell(self, q):
        trial = self.trials.pop(q["trial"], None)
        if trial is None:
            return {}
        if q["why"]:
            trial.set_user_attr("memroom_why", q["why"])
        if q["state"] == "finished":
            self.study.tell(trial, q["value"])
        elif q["state"] == "infeasible":
            trial.set_user_attr("memroom_does_not_fit", 1.0)
            self.study.tell(trial, state=TrialState.PRUNED)
        elif q["state"] == "stopped":
            self.study.tell(trial, state=TrialState.PRUNED)
        else:
            self.study.tell(trial, state=TrialState.FAIL)
        self.save()
        return {}


def distribution(d):
    kind, low, high, step = d["kind"], d["low"], d["high"], d["step"]
    if kind == "choice":
        return CategoricalDistribution(
            [v if not isinstance(v, (list, dict)) else json.dumps(v) for v in d["values"]]
        )
    if kind in ("int", "logint"):
        return IntDistribution(int(low), int(high), log=kind == "logint", step=int(step or 1))
    return FloatDistribution(low, high, log=kind == "loguniform", step=step or None)


def make(module, name, seed):
    """An object of a class that the user named, with the seed and the constraint where it takes
    them.
    """
    cls = getattr(module, name, None)
    if cls is None:
        known = [n for n in dir(module) if n[:1].isupper() and not n.startswith("Base")]
        raise ValueError("%s is not known; there are %s" % (name, ", ".join(known)))
    import inspect

    takes = inspect.signature(cls).parameters
    given = {}
    if "seed" in takes and seed is not None:
        given["seed"] = seed
    if "constraints_func" in takes:
        given["constraints_func"] = over
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return cls(**given)


def main():
    beside, out = Beside(), sys.stdout
    sys.stdout = sys.stderr  # what libraries print is not for the study
    for line in sys.stdin:
        q = json.loads(line)
        try:
            answer = getattr(beside, q["do"])(q)
        except Exception as error:
            answer = {"error": "%s: %s" % (type(error).__name__, error)}
        out.write(json.dumps(answer) + "\n")
        out.flush()


main()
