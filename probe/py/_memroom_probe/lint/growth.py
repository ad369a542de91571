"""Things that grow beside the tensors of a step: metrics, compiled programs, worker processes,
records of the allocator, graphs of TensorFlow 1, cycles that nobody collects.
"""

import ast
import re
from typing import Any, Iterator, Optional

from . import rules
from .evidence import few_rounds
from .flow import scopes
from .names import constant, key, keyword, method, own, targets, walk

# Metrics of torchmetrics whose state is a list of all they were shown.
_LISTING = re.compile(
    r"^(Binary|Multiclass|Multilabel)?(AUROC|AveragePrecision|PrecisionRecallCurve|ROC)$|"
    r"^(CatMetric|MeanAveragePrecision|SpearmanCorrCoef|KendallRankCorrCoef|BERTScore|"
    r"StructuralSimilarityIndexMeasure|UniversalImageQualityIndex|Retrieval\w+)$"
)
_BINNED = re.compile(r"(AUROC|AveragePrecision|PrecisionRecallCurve|ROC)$")


def metrics(file: Any) -> Iterator[dict]:
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
        yield rules.finding(
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


def _values(call: ast.Call) -> list:
    return [k.value for k in call.keywords]


def programs(file: Any) -> Iterator[dict]:
    """torch.compile(model) in every round"""
    for s in file.statements:
        loop = _long_loop(file, s)
        if loop is None:
            continue
        for n in own(s):
            if isinstance(n, ast.Call) and (file.callee(n) or "") in (
                "torch.compile",
                "torch.jit.trace",
                "torch.jit.script",
            ):
                yield rules.finding(
                    "compiled-in-loop",
                    s,
                    "every round of the loop compiles a program of its own (`%s`), and the cache "
                    "of compiled code keeps it" % key(n.func),
                    hint=_of_folds(loop),
                )


_FOLDS = re.compile(r"(^|_)(fold|split|seed|repeat)s?($|_)|kfold", re.I)


def _of_folds(loop: Any) -> bool:
    """for fold, (train, val) in enumerate(splits): a handful"""
    head = [loop.target, loop.iter] if isinstance(loop, ast.For) else []
    return any(
        _FOLDS.search((key(n) or "").split(".")[-1])
        for part in head
        for n in walk(part)
        if isinstance(n, (ast.Name, ast.Attribute))
    )


def _long_loop(file: Any, s: ast.stmt) -> Any:
    """The loop around a statement that trains and is not a handful of rounds; not for a loop over
    models or files, each of which is another one.
    """
    loops = file.places[s].loops
    if not loops or few_rounds(loops[-1], file) or file.places[s].ifs[-1:] and _once(file, s):
        return None
    trains = any(
        isinstance(n, ast.Call) and method(n) in ("backward", "step", "fit", "train")
        for n in walk(loops[-1])
    )
    return loops[-1] if trains else None


def _once(file: Any, s: ast.stmt) -> bool:
    """if epoch == start: it happens once"""
    last = file.places[s].ifs[-1]
    return file.places[last].loops == file.places[s].loops


def workers(file: Any) -> Iterator[dict]:
    """DataLoader(..., persistent_workers=True) in every epoch"""
    for s in file.statements:
        if _long_loop(file, s) is None:
            continue
        for n in own(s):
            if (
                isinstance(n, ast.Call)
                and method(n) == "DataLoader"
                and constant(keyword(n, "persistent_workers")) is True
            ):
                yield rules.finding(
                    "workers-in-loop",
                    s,
                    "every round of the loop starts a set of persistent workers, and those of "
                    "earlier rounds live as long as anything refers to their loader",
                )


def records(file: Any) -> Iterator[dict]:
    """torch.cuda.memory._record_memory_history() and never stopped"""
    started = None
    for n in file.nodes:
        if not isinstance(n, ast.Call) or not (file.callee(n) or "").endswith(
            "_record_memory_history"
        ):
            continue
        asked = n.args[0] if n.args else keyword(n, "enabled")
        if asked is not None and constant(asked, "") in (None, False):
            return
        if keyword(n, "max_entries") is None and keyword(n, "trace_alloc_max_entries") is None:
            started = started or n
    trains = any(isinstance(n, ast.Call) and method(n) == "backward" for n in file.nodes)
    if started is None or not trains:
        return
    s = next((s for s in file.statements if started in list(own(s))), None)
    yield rules.finding(
        "memory-history-on",
        started,
        "the allocator writes down every allocation with its stack, without a limit, and nothing "
        "stops it",
        hint=s is not None and any(isinstance(i, ast.If) for i in file.places[s].ifs),
    )


def collector(file: Any) -> Iterator[dict]:
    """gc.disable() and no collect() in a file that trains"""
    off = None
    for n in file.nodes:
        if not isinstance(n, ast.Call):
            continue
        name = file.callee(n) or ""
        if name in ("gc.enable", "gc.collect"):
            return
        if name == "gc.disable":
            off = off or n
    if off is not None and any(scope.trains for scope in scopes(file)):
        yield rules.finding(
            "collector-off",
            off,
            "the garbage collector is switched off and nothing calls collect(): objects that refer "
            "to each other, and the tensors they hold, are never freed",
        )


_SMALL_OPS = re.compile(r"(variables|tables)_initializer$|\.(Session|Graph|ConfigProto)$")


def graph_of_session(file: Any) -> Iterator[dict]:
    """sess.run(tf.assign(v, x)) in a loop: TensorFlow 1 adds an operation in every round"""
    if "tensorflow" not in file.modules:
        return
    for s in file.statements:
        loops = file.places[s].loops
        if not loops or few_rounds(loops[-1], file):
            continue
        for n in own(s):
            if not isinstance(n, ast.Call) or method(n) != "run" or not n.args:
                continue
            owner = key(n.func.value) if isinstance(n.func, ast.Attribute) else None
            if owner is None or "sess" not in owner.lower():
                continue
            built = [
                file.callee(c)
                for c in walk(n.args[0])
                if isinstance(c, ast.Call)
                and (file.callee(c) or "").startswith("tensorflow.")
                and not _SMALL_OPS.search(file.callee(c) or "")
            ]
            if built:
                yield rules.finding(
                    "tf-graph-grows",
                    s,
                    "every round adds `%s` to the graph before it is run, and a graph never "
                    "shrinks" % built[0].replace("tensorflow.", "tf."),
                )
