"""Metric that is never reset.

severity: warning

Some metrics (AUROC, average precision, CatMetric, mAP) keep all predictions and targets until
they are reset. compute() does not reset them.

Instead: Call `metric.reset()` after `compute()`, or log the metric object itself in Lightning,
which resets it. A binned form (`thresholds=200`) keeps counts only.
"""

import ast
import re
from typing import Any, Iterator, List, Optional

from ..findings import Finding, finding
from ..names import key, keyword, method, own, targets

# Metrics of torchmetrics whose state is a list of all they were shown.
_LISTING = re.compile(
    r"^(Binary|Multiclass|Multilabel)?(AUROC|AveragePrecision|PrecisionRecallCurve|ROC)$|"
    r"^(CatMetric|MeanAveragePrecision|SpearmanCorrCoef|KendallRankCorrCoef|BERTScore|"
    r"StructuralSimilarityIndexMeasure|UniversalImageQualityIndex|Retrieval\w+)$"
)


_BINNED = re.compile(r"(AUROC|AveragePrecision|PrecisionRecallCurve|ROC)$")


def metrics(file: Any) -> Iterator[Finding]:
    """auroc.update(score, y) at every evaluation, auroc.reset() nowhere"""
    if not file.modules & {"torchmetrics", "pytorch_lightning", "lightning"}:
        return
    made = {}
    for s in file.statements:
        if not isinstance(s, ast.Assign) or file.places[s].loops:
            continue
        call = _bottom(s.value)
        if call is not None and _lists_all(file, call):
            made.update({key(t): s for t in targets(s) if key(t)})
    if not made or _resets_any(file):
        return
    for name, s in made.items():
        use = _use(file, name)
        again = file.places[s].function is not file.places[use].function if use else False
        if use is None or not again and len(file.places[use].loops) < 2:
            continue
        if not _computed(file, name) or _handed_over(file, name):
            continue
        yield finding(
            "metric-never-reset",
            use,
            "`%s` keeps every prediction it is shown until reset(), and nothing resets it: the "
            "predictions of all evaluations pile up" % name,
            hint=_tested_once(file.places[use].function),  # trainer.test() runs once
        )


def _tested_once(function: Any) -> bool:
    return getattr(function, "name", "") in ("test_step", "on_test_batch_end", "test_epoch_end")


def _bottom(value: Any) -> Optional[ast.Call]:
    """AUROC(...) in AUROC(...).to(device)"""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        if not isinstance(value.func.value, ast.Call):
            break
        value = value.func.value
    return value if isinstance(value, ast.Call) else None


def _lists_all(file: Any, call: ast.Call) -> bool:
    name = file.callee(call) or ""
    last = name.split(".")[-1]
    if "metric" not in name.split(".")[0] and not name.startswith(("lightning", "pytorch_light")):
        return False
    if not _LISTING.match(last):
        return False
    return not (_BINNED.search(last) and keyword(call, "thresholds") is not None)


def _resets_any(file: Any) -> bool:
    """metric.reset(), for m in metrics: m.reset(): who resets one knows of it"""
    return any(
        isinstance(n, ast.Call) and method(n) in ("reset", "_reset", "reset_metrics")
        for n in file.nodes
    )


def _use(file: Any, name: str) -> Any:
    """The statement that shows it a batch."""
    for s in file.statements:
        for n in own(s):
            if not isinstance(n, ast.Call) or len(n.args) + len(n.keywords) < 1:
                continue
            if key(n.func) == name or (
                isinstance(n.func, ast.Attribute)
                and n.func.attr == "update"
                and key(n.func.value) == name
            ):
                return s
    return None


def _computed(file: Any, name: str) -> bool:
    return any(
        isinstance(n, ast.Call)
        and isinstance(n.func, ast.Attribute)
        and n.func.attr == "compute"
        and key(n.func.value) == name
        for n in file.nodes
    )


def _handed_over(file: Any, name: str) -> bool:
    """self.log("auroc", self.auroc): Lightning resets it. Anybody else may."""
    return any(
        isinstance(n, ast.Call) and any(key(a) == name for a in [*n.args, *_values(n)])
        for n in file.nodes
    )


def _values(call: ast.Call) -> List[Any]:
    return [k.value for k in call.keywords]


CHECKS = (metrics,)
