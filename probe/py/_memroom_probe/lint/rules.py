"""All rules. A rule is a generator over a File that yields findings; Go holds the words that go
with each rule's id.
"""

import ast
import os
from typing import Any, Dict, List, Optional

from . import (
    accumulation,
    autocast,
    data,
    devices,
    evaluation,
    growth,
    keeping,
    lifetimes,
    loaders,
    loops,
    of_datasets,
    of_jax,
    quantization,
    ray_tune,
    reasons,
    spent,
    tensorflow,
    trainers,
)
from .names import File, walk

Finding = Dict[str, Any]
Edit = List[Any]  # line, column, end line, end column, text

ALL = (
    keeping.summed_loss,
    keeping.kept_outputs,
    keeping.kept_by_hook,
    keeping.kept_by_cache,
    keeping.kept_by_module,
    keeping.state_of_module,
    keeping.state_brought_up,
    keeping.kept_by_callback,
    accumulation.check,
    accumulation.never_cleared,
    accumulation.summed_before_backward,
    evaluation.check,
    evaluation.phases,
    evaluation.frozen_models,
    autocast.around_loop,
    loops.retain_graph,
    loops.empty_cache,
    loops.loss_to_cpu,
    loops.zeroed_gradients,
    loops.gradcheck,
    loops.profiler,
    loops.anomaly_mode,
    loops.hooks_in_loop,
    data.whole_dataset,
    data.batches_gathered,
    data.files_on_gpu,
    data.card_in_workers,
    data.lists_and_workers,
    data.samples_read_whole,
    data.lists_on_card,
    data.frames_grown,
    loaders.buffers,
    loaders.caches,
    of_datasets.buffers,
    trainers.eval_batch,
    trainers.eval_logits,
    trainers.lightning_outputs,
    trainers.kbit_upcast,
    trainers.model_search,
    trainers.trials_keep_models,
    devices.data_parallel,
    devices.default_card,
    devices.unsynced_gradients,
    devices.graphs_per_shape,
    devices.checkpoint_kept,
    devices.checkpoint_of_every_rank,
    devices.copies,
    devices.states_of_folds,
    devices.copies_by_method,
    devices.models_of_rounds,
    devices.exceptions,
    devices.figures,
    devices.figures_of_helper,
    tensorflow.retracing,
    tensorflow.decayed_attributes,
    tensorflow.whole_arrays,
    tensorflow.growth,
    tensorflow.accumulators,
    tensorflow.tflite,
    tensorflow.models_in_loop,
    tensorflow.models_in_trials,
    tensorflow.predict_in_loop,
    tensorflow.data_buffers,
    tensorflow.tape_around_loop,
    of_jax.compiled_in_loop,
    of_jax.static_argument_changes,
    of_jax.trees_kept,
    ray_tune.resources,
    ray_tune.captures,
    ray_tune.passed_again,
    ray_tune.stopped_trials,
    quantization.check,
    growth.metrics,
    growth.programs,
    growth.workers,
    growth.records,
    growth.collector,
    growth.graph_of_session,
)


def check(tree: ast.Module, path: str = "") -> List[Finding]:
    shorten(tree)
    file = File(tree, path)
    seen = set()
    found = []
    for rule in ALL:
        for finding in rule(file):
            where = (finding["rule"], finding["line"])
            if where not in seen:
                seen.add(where)
                found.append(finding)
    told = _run(file)
    found += _of_the_run(found, told)
    reasons.agreed(found, told)
    spent.correct(file, found)
    found = reasons.hints(file, _said_once(_one_a_pass(file, found)))
    return sorted(found, key=lambda f: (f["line"], f["rule"]))


LONGEST_TABLE = 500  # entries


def shorten(tree: ast.AST) -> None:
    """Cuts tables of constants: generated files have hundreds of thousands of entries."""
    todo = [tree]
    while todo:
        node = todo.pop()
        for name in ("elts", "keys", "values"):
            entries = getattr(node, name, None)
            if isinstance(entries, list) and len(entries) > LONGEST_TABLE:
                del entries[LONGEST_TABLE:]
        todo.extend(ast.iter_child_nodes(node))


def _one_a_pass(file: File, found: List[Finding]) -> List[Finding]:
    """One no_grad mends a function that evaluates, or a loop of one that also trains: the first
    forward pass stands for the others.
    """
    kept, seen = [], set()
    at = {s.lineno: s for s in reversed(file.statements)}
    for f in sorted(found, key=lambda f: (bool(f.get("hint")), f["line"])):
        s = at.get(f["line"])
        if f["rule"] == "eval-without-no-grad" and s is not None:
            place = file.places[s]
            function = place.function
            if function is None or _differentiates(function):
                quiet = [x for x in place.loops if not _differentiates(x)]
                mark = quiet[0] if quiet else s
            else:
                mark = function
            if mark in seen:
                continue
            seen.add(mark)
        kept.append(f)
    return kept


def _differentiates(node: ast.AST) -> bool:
    if not hasattr(node, "_differentiates"):
        node._differentiates = any(
            isinstance(n, ast.Attribute) and "backward" in n.attr for n in walk(node)
        )
    return node._differentiates


def _said_once(found: List[Finding]) -> List[Finding]:
    """Where a line has a mistake of its own, it is not named as part of another one."""
    own = {f["line"] for f in found if not f["rule"].endswith("-here")}
    return [f for f in found if not f["rule"].endswith("-here") or f["line"] not in own]


def _run(file: File) -> List[Finding]:
    """What the abstract run tells; nothing where it fails: what the other rules found stands."""
    try:
        return list(lifetimes.check(file))
    except Exception:  # too deep, or a bug of ours
        if os.environ.get("MEMROOM_LINT_DEBUG"):
            raise
        return []


def _of_the_run(found: List[Finding], told: List[Finding]) -> List[Finding]:
    """What the abstract run adds: findings at lines that no other rule speaks about, and one of its
    own for each line.
    """
    lines = {f["line"] for f in found}
    # These speak about a loop or a file as a whole: the rule that knows the form comes first.
    once = {f["rule"] for f in found} & {"tf-function-retraced", "keras-model-in-loop"}
    more = []
    for finding in sorted(told, key=lambda f: f["rule"] == "graph-kept-here"):
        if finding["line"] not in lines and finding["rule"] not in once:
            lines.add(finding["line"])
            more.append(finding)
    return more


def finding(
    rule: str, node: ast.AST, message: str, edits: Optional[List[Edit]] = None, **more: Any
) -> Finding:
    """message: this case in one sentence. edits: replacements that mend it, as [line, column, end
    line, end column, text]; columns count bytes, lines from 1.
    """
    answer = {"rule": rule, "line": node.lineno, "column": node.col_offset, "message": message}
    if edits:
        answer["edits"] = edits
    answer.update(more)
    return answer


def after(node: ast.AST, text: str) -> Edit:
    """An edit that writes text directly behind an expression."""
    return [node.end_lineno, node.end_col_offset, node.end_lineno, node.end_col_offset, text]


def around(node: ast.AST, before: str, behind: str) -> List[Edit]:
    return [
        [node.lineno, node.col_offset, node.lineno, node.col_offset, before],
        after(node, behind),
    ]
