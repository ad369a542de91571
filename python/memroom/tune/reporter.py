"""Who hears of trials in the program that holds the study: callbacks and tables of progress."""

import time
from typing import Any, Dict, List, Optional, Union

from .space import flat


class Callback:
    """For subclasses: told what happens to trials, with the arguments that Ray's have."""

    def setup(
        self, stop: Any = None, num_samples: Any = None, total_num_samples: Any = None, **info: Any
    ) -> None:  # noqa: E501
        """Before the first trial."""

    def on_step_begin(self, iteration: int, trials: List[Any], **info: Any) -> None:
        """Before a report is heard."""

    def on_step_end(self, iteration: int, trials: List[Any], **info: Any) -> None:
        """After a report was heard."""

    def on_trial_start(self, iteration: int, trials: List[Any], trial: Any, **info: Any) -> None:
        """A trial begins."""

    def on_trial_restore(self, iteration: int, trials: List[Any], trial: Any, **info: Any) -> None:
        """A trial goes on from a checkpoint."""

    def on_trial_save(self, iteration: int, trials: List[Any], trial: Any, **info: Any) -> None:
        """A trial reported a checkpoint."""

    def on_checkpoint(
        self, iteration: int, trials: List[Any], trial: Any, checkpoint: Any, **info: Any
    ) -> None:
        """The same, with the checkpoint."""

    def on_trial_result(
        self, iteration: int, trials: List[Any], trial: Any, result: Dict[str, Any], **info: Any
    ) -> None:
        """A trial reported."""

    def on_trial_complete(self, iteration: int, trials: List[Any], trial: Any, **info: Any) -> None:
        """A trial ended well, or was stopped."""

    def on_trial_recover(self, iteration: int, trials: List[Any], trial: Any, **info: Any) -> None:
        """A trial is tried again."""

    def on_trial_error(self, iteration: int, trials: List[Any], trial: Any, **info: Any) -> None:
        """A trial failed or does not fit. Told at the end of the study."""

    def on_experiment_end(self, trials: List[Any], **info: Any) -> None:
        """The study is over."""

    def get_state(self) -> Optional[Dict[str, Any]]:
        return None

    def set_state(self, state: Dict[str, Any]) -> None:
        """For the subclass."""


Columns = Union[None, List[str], Dict[str, str]]


class ProgressReporter:
    """For subclasses: report is called with the trials."""

    def setup(self, **info: Any) -> None:
        """Before the first trial."""

    def should_report(self, trials: List[Any], done: bool = False) -> bool:
        return True

    def report(self, trials: List[Any], done: bool, *sys_info: Any) -> None:
        raise NotImplementedError("a ProgressReporter needs report(trials, done)")


class CLIReporter(ProgressReporter):
    """A table of trials on the terminal, beside the study's own lines."""

    def __init__(
        self,
        metric_columns: Columns = None,
        parameter_columns: Columns = None,
        total_samples: Optional[int] = None,
        max_progress_rows: int = 20,
        max_error_rows: int = 20,
        max_column_length: int = 20,
        max_report_frequency: float = 5,
        infer_limit: int = 3,
        print_intermediate_tables: Optional[bool] = None,
        metric: Optional[str] = None,
        mode: Optional[str] = None,
        sort_by_metric: bool = False,
    ) -> None:
        self._metrics, self._parameters = _names(metric_columns), _names(parameter_columns)
        self._total, self._rows, self._errors = total_samples, max_progress_rows, max_error_rows
        self._width, self._every, self._infer = max_column_length, max_report_frequency, infer_limit
        self._between = print_intermediate_tables is not False
        self._metric, self._mode, self._sorted = metric, mode, sort_by_metric
        self._last = 0.0

    def add_metric_column(self, metric: str, representation: Optional[str] = None) -> None:
        self._metrics[metric] = representation or metric

    def add_parameter_column(self, parameter: str, representation: Optional[str] = None) -> None:
        self._parameters[parameter] = representation or parameter

    def should_report(self, trials: List[Any], done: bool = False) -> bool:
        if not done and (not self._between or time.monotonic() - self._last < self._every):
            return False
        self._last = time.monotonic()
        return True

    def report(self, trials: List[Any], done: bool, *sys_info: Any) -> None:
        print(self._table(trials), flush=True)

    def _table(self, trials: List[Any]) -> str:
        shown = list(trials)
        if self._sorted and self._metric:
            name, sign = self._metric, -1 if self._mode == "max" else 1
            shown.sort(key=lambda t: sign * (t.last_result or {}).get(name, float("inf") * sign))
        metrics = dict(self._metrics)
        if not metrics and shown:
            hidden = ("pid", "done", "timestamp", "trial_id", "time_this_iter_s", "config")
            names = [n for t in shown for n in flat(t.last_result or {}) if n not in hidden]
            metrics = {n: n for n in list(dict.fromkeys(names))[: self._infer + 2]}
        parameters = dict(self._parameters)
        if not parameters:
            parameters = {n: n for t in shown for n in flat(t.config or {})}
        rows = [["trial", "status", *parameters.values(), *metrics.values()]]
        for t in shown[: self._rows]:
            config, said = flat(t.config or {}), flat(t.last_result or {})
            row = [str(t), t.status, *[_cell(config.get(p)) for p in parameters]]
            rows.append(row + [_cell(said.get(m)) for m in metrics])
        widths = [min(self._width, max(len(r[i]) for r in rows)) for i in range(len(rows[0]))]
        text = ["  ".join(c[:w].ljust(w) for c, w in zip(r, widths)).rstrip() for r in rows]
        if len(shown) > self._rows:
            text.append("... and %d more" % (len(shown) - self._rows))
        failed = [t for t in shown if t.status == "ERROR"][: self._errors]
        text += ["failed: %s" % t for t in failed]
        return "\n".join(text)


JupyterNotebookReporter = CLIReporter


def _names(columns: Columns) -> Dict[str, str]:
    return dict(columns) if isinstance(columns, dict) else {c: c for c in columns or []}


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "%.6g" % value
    return "" if value is None else str(value)


def reporter_of(given: Any) -> Any:
    """Ours as it is; of Ray's own object its columns."""
    if not type(given).__module__.startswith("ray."):
        return given
    out = CLIReporter()
    for ours, theirs in (
        ("_metrics", "_metric_columns"),
        ("_parameters", "_parameter_columns"),
    ):
        setattr(out, ours, _names(getattr(given, theirs, None)))
    return out
