"""In a trial of a study: what training libraries log is reported to the study.

The user's program logs as it always does: Hugging Face's Trainer, Lightning, Keras, Weights &
Biases, Optuna's trial.report, Ray's tune.report. Each is hooked when the program imports it; the
library's own function runs as before.
"""

import json
import os
import sys
from typing import Any, Callable, Dict, Optional

from .. import faults, imports, link
from . import wrapping

MOST_VALUES = 200  # of one message; a library that logs a weight a name is not what is meant


def wait() -> None:
    """Hooks each library when it is imported."""
    for name, hook in _hooks.items():
        imports.when_imported(name, hook)


def tell(values: Any, step: Any = None) -> None:
    """Sends the numbers among the values. Never raises."""
    try:
        numbers: Dict[str, float] = {}
        for name, value in dict(values).items():
            number = _number(value)
            if number is not None and len(numbers) < MOST_VALUES:
                numbers[str(name)] = number
        if numbers:
            link.send("report", {"step": int(step or 0), "values": numbers})
    except Exception as error:
        faults.note("metrics", error)


def _number(value: Any) -> Optional[float]:
    """A number, or a tensor or array of one; None for everything else."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return None
    try:
        return float(value)
    except Exception:
        return None


def _around(owner: Any, name: str, after: Callable[..., None]) -> None:
    """Lets `after` see each call of a method, with its arguments, when it has been made."""

    def around(inner: Any) -> Any:
        def outer(*args: Any, **kwargs: Any) -> Any:
            result = inner(*args, **kwargs)
            try:
                after(*args, **kwargs)
            except Exception as error:
                faults.note("metrics of " + name, error)
            return result

        return outer

    wrapping.once(owner, name, around)


def _transformers(module: Any) -> None:
    def logged(self: Any, logs: Any, *args: Any, **kwargs: Any) -> None:
        if self.is_world_process_zero():
            tell(logs, self.state.global_step)

    _around(module.Trainer, "log", logged)


def _lightning(module: Any) -> None:
    def updated(self: Any, *args: Any, **kwargs: Any) -> None:
        trainer = self.trainer
        if trainer.is_global_zero and not trainer.sanity_checking:
            tell(trainer.callback_metrics, trainer.global_step)

    for name in ("update_eval_epoch_metrics", "update_train_epoch_metrics"):
        _around(module._LoggerConnector, name, updated)


def _keras(module: Any) -> None:
    def ended(self: Any, epoch: int, logs: Any = None, *args: Any, **kwargs: Any) -> None:
        tell(logs or {}, epoch + 1)

    _around(module.CallbackList, "on_epoch_end", ended)


def _wandb(module: Any) -> None:
    def logged(self: Any, data: Any, step: Any = None, *args: Any, **kwargs: Any) -> None:
        tell(data, step)

    _around(module.Run, "log", logged)


def _wandb_init(module: Any) -> None:
    """A sweep's program reads its settings from wandb.config: in a trial they are the trial's."""

    def around(inner: Any) -> Any:
        def init(*args: Any, **kwargs: Any) -> Any:
            run = inner(*args, **kwargs)
            try:
                settings = _nested(json.loads(os.environ.get("MEMROOM_PARAMS") or "{}"))
                run.config.update(settings, allow_val_change=True)
            except Exception as error:
                faults.note("settings of a sweep", error)
            return run

        return init

    wrapping.once(module, "init", around)


def _nested(settings: Dict[str, Any]) -> Dict[str, Any]:
    """optimizer.lr is lr in the table optimizer, as in the sweep."""
    out: Dict[str, Any] = {}
    for name, value in settings.items():
        table, words = out, name.split(".")
        for word in words[:-1]:
            table = table.setdefault(word, {})
        table[words[-1]] = value
    return out


def _optuna(module: Any) -> None:
    def reported(self: Any, value: Any, step: Any) -> None:
        tell({"*": value}, step)

    _around(module.Trial, "report", reported)


def _ray(module: Any) -> None:
    """Ray's report works inside of its own trials only; in ours it has us to talk to."""

    def around(inner: Any) -> Any:
        def report(metrics: Any = None, *args: Any, **kwargs: Any) -> Any:
            tell(metrics if isinstance(metrics, dict) else kwargs)
            train = sys.modules.get("ray.train._internal.session")
            if train is not None and getattr(train, "_session", None) is not None:
                return inner(metrics, *args, **kwargs)
            return None

        return report

    wrapping.once(module, "report", around)


_CONNECTOR = "trainer.connectors.logger_connector.logger_connector"

_hooks = {
    "transformers.trainer": _transformers,
    "lightning.pytorch." + _CONNECTOR: _lightning,
    "pytorch_lightning." + _CONNECTOR: _lightning,
    "keras.src.callbacks.callback_list": _keras,
    "keras.src.callbacks": _keras,
    "keras.callbacks": _keras,
    "wandb.sdk.wandb_run": _wandb,
    "wandb.sdk.wandb_init": _wandb_init,
    "optuna.trial._trial": _optuna,
    "ray.tune": _ray,
    "ray.train": _ray,
    "ray.air.session": _ray,
}
