"""Copies of the model pile up.

severity: warning

Each copy is as large as the weights and stays on the model's device.

Instead: Write checkpoints to disk (torch.save), or keep only the best copy, on the CPU: `{k:
v.cpu().clone() for k, v in model.state_dict().items()}`.
"""

import ast
import re
from typing import Any, Iterator, List, Optional, Set, Tuple

from .. import evidence
from ..devices import copies_model, put, trains_by_call
from ..evidence import few_rounds
from ..findings import Finding, finding
from ..flow import Scope, bounded_containers, in_order, is_model_name, resets, scopes
from ..names import File, key, method, own, targets, walk
from ..reasons import small_problem


def trials_keep_models(file: File) -> Iterator[Finding]:
    """models.append(model) or trial.set_user_attr('model', model) in an Optuna objective"""
    if "optuna" not in file.modules:
        return
    objectives = {
        key(c.args[0])
        for c in file.nodes
        if isinstance(c, ast.Call) and method(c) == "optimize" and c.args
    }
    for scope in scopes(file):
        function = scope.function
        if function is None or not (
            function.name in objectives
            or function.name == "objective"
            or any(a.arg == "trial" for a in function.args.args)
        ):
            continue
        made = {
            k
            for s in scope.statements
            if isinstance(s, ast.Assign) and isinstance(s.value, ast.Call)
            for k in map(key, targets(s))
            if k and (k in scope.modules or is_model_name(k))
        }
        own_names = {key(t) for s in scope.statements for t in targets(s)}
        for s in scope.statements:
            value, where = _handed_on(s, own_names)
            if value is not None and key(value) in made:
                yield finding(
                    "model-copies-kept",
                    s,
                    "every trial leaves its model `%s` in %s: the models of all trials stay in "
                    "memory" % (key(value), where),
                )


def _handed_on(s: ast.stmt, own_names: Any) -> Any:
    """(value, container) of what a statement puts into something from outside the function."""
    if isinstance(s, ast.Expr) and isinstance(s.value, ast.Call):
        call = s.value
        if method(call) == "set_user_attr" and len(call.args) > 1:
            return call.args[1], "the study"
        if (
            method(call) in ("append", "add", "appendleft", "put")
            and call.args
            and isinstance(call.func, ast.Attribute)
        ):
            holder = key(call.func.value)
            if holder and holder not in own_names:
                value = call.args[-1]
                if isinstance(value, ast.Tuple):
                    named = [e for e in value.elts if key(e) and is_model_name(key(e))]
                    value = named[0] if named else value
                return value, "`%s`" % holder
    if isinstance(s, ast.Assign) and len(s.targets) == 1:
        target = s.targets[0]
        if isinstance(target, ast.Subscript) and key(target) is None:
            holder = key(target.value)
            if holder and holder not in own_names:
                return s.value, "`%s`" % holder
    return None, ""


def copies(file: File) -> Iterator[Finding]:
    """models.append(copy.deepcopy(model)) in a loop"""
    for scope in scopes(file):
        for s in scope.statements:
            place = file.places.get(s)
            if not place or not place.loops or not isinstance(s, ast.Expr):
                continue
            call = s.value
            if (
                isinstance(call, ast.Call)
                and method(call) == "append"
                and isinstance(call.func, ast.Attribute)
                and call.args
                and copies_model(file, scope, call.args[0])
                and any(scope.has_backward(loop) or trains_by_call(loop) for loop in place.loops)
                and not _trimmed(place.loops[-1], key(call.func.value))
            ):
                yield finding(
                    "model-copies-kept",
                    s,
                    "every round of the loop keeps one more copy of the weights in `%s`, on the "
                    "model's device" % (key(call.func.value) or "a list"),
                )


def models_of_rounds(file: File) -> Iterator[Finding]:
    """results.append((score, model)) in a loop that builds and trains a model in every round, to
    choose the best of them afterwards
    """
    if not {"torch", "tensorflow", "keras"} & file.modules:
        return
    for scope in scopes(file):
        for s in scope.statements:
            value, container = put(s)
            place = file.places[s]
            if value is None or not container or not place.loops:
                continue
            parts = _members(value)
            if len(parts) < 2:
                continue  # models.append(model): an ensemble needs them all
            loop = next(
                (
                    x
                    for x in place.loops
                    if any(key(p) in _built_in(scope, x) for p in parts)
                    and (scope.has_backward(x) or trains_by_call(x) or _fits(x))
                ),
                None,
            )
            if loop is None or resets(loop, container, scope):
                continue
            if all(key(p) in _built_in(scope, loop) for p in parts):
                continue  # (encoder, head) of each: nothing to choose by, all are used
            name = next(key(p) for p in parts if key(p) in _built_in(scope, loop))
            yield finding(
                "model-copies-kept",
                s,
                "every round's model `%s` stays in `%s`: the models of all rounds are in memory "
                "at once" % (name, container),
                hint=evidence.few_rounds(loop, file) or bool(_TOGETHER.search(container)),
            )


# Models that are asked together: none of them is kept for nothing.
_TOGETHER = re.compile(r"ensemble|shadow|committee|bagg|member|population|experts", re.I)


def _members(value: ast.expr) -> List[ast.expr]:
    """The parts of (score, model), {"model": model}, Result(score, model)"""
    if isinstance(value, (ast.Tuple, ast.List)):
        return value.elts
    if isinstance(value, ast.Dict):
        return [v for v in value.values if v is not None]
    if (
        isinstance(value, ast.Call)
        and method(value)[:1].isupper()
        or (isinstance(value, ast.Call) and method(value) == "dict")
    ):
        return value.args + [k.value for k in value.keywords]
    return []


def _fits(loop: Any) -> bool:
    return any(
        isinstance(n, ast.Call) and method(n) in ("fit", "train", "train_on_batch")
        for s in in_order(loop.body)
        for n in own(s)
    )


def _built_in(scope: Scope, loop: Any) -> Set[str]:
    """Models that each round of a loop makes."""
    return {
        k
        for s in in_order(loop.body)
        if isinstance(s, ast.Assign) and isinstance(s.value, ast.Call)
        for k in map(key, targets(s))
        if k and (k in scope.modules or is_model_name(k))
    }


def _trimmed(loop: Any, name: Optional[str]) -> bool:
    return any(
        isinstance(n, ast.Call)
        and isinstance(n.func, ast.Attribute)
        and n.func.attr in ("pop", "popleft", "clear")
        and key(n.func.value) == name
        for s in in_order(loop.body)
        for n in own(s)
    )


def _put(s: ast.stmt) -> Tuple[Optional[str], Optional[ast.expr]]:
    """(container, value) of log.append(value) and log[step] = value"""
    if isinstance(s, ast.Expr) and isinstance(s.value, ast.Call):
        call = s.value
        if method(call) == "append" and call.args and isinstance(call.func, ast.Attribute):
            return key(call.func.value), call.args[0]
    if isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Subscript):
        if not isinstance(s.targets[0].slice, ast.Constant):
            return key(s.targets[0].value), s.value
    return None, None


def _entries(value: Optional[ast.expr]) -> List[str]:
    """The variables of params, (params, loss) and {"params": params}"""
    if isinstance(value, (ast.Tuple, ast.List)):
        return [key(e) or "" for e in value.elts]
    if isinstance(value, ast.Dict):
        return [key(e) or "" for e in value.values]
    return [key(value) or ""] if value is not None else []


_TREES = re.compile(r"^(all_)?(grads?|gradients|params|opt_state|train_state|state|updates)$")


def trees_kept(file: File) -> Iterator[Finding]:
    """log.append(grads) in every step: a copy of the model's size on the device"""
    if not {"jax", "flax", "equinox", "optax"} & file.modules:
        return
    for s in file.statements:
        loops = file.places[s].loops
        if not loops:
            continue
        name, value = _put(s)
        kept = next((k for k in _entries(value) if _TREES.match(k)), "")
        if not name or not kept:
            continue
        made = any(
            isinstance(x, ast.Assign)
            and isinstance(x.value, ast.Call)
            and any(key(t) == kept for t in targets(x))
            for x in in_order(loops[-1].body)
        )
        if made and not file.places[s].ifs and not few_rounds(loops[-1]):
            if resets(loops[-1], name, None) or name in bounded_containers(file):
                continue
            if not _steps(file, kept):
                continue
            yield finding(
                "model-copies-kept",
                s,
                "every round keeps `%s` in `%s`: one more copy of the model's size on the device"
                % (kept, name),
            )


def _steps(file: File, kept: str) -> bool:
    """Does the file differentiate? `state` alone may be that of an environment."""
    differentiates = any(
        isinstance(n, ast.Call) and method(n) in ("value_and_grad", "grad", "apply_gradients")
        for n in file.nodes
    )
    trains = any(
        isinstance(n, ast.Call)
        and method(n) in ("apply_gradients", "TrainState", "create_train_state")
        for n in file.nodes
    )
    return differentiates and (kept != "state" or trains)


# One model for each client, task or member is what the method is about: they are averaged, asked or
# trained on.
_EACH = re.compile(
    r"client|local|shadow|task|worker|user|member|ensemble|part(y|ies)$|site|domain|expert|"
    r"population|offspring|particle|(^|_)seeds?($|_)",
    re.I,
)


def _all_wanted(file: Any, line: int) -> bool:
    """clients.append(copy.deepcopy(model))"""
    for s in file.statements:
        if s.lineno != line:
            continue
        called = {n.func for n in walk(s) if isinstance(n, ast.Call)}
        names = {
            key(n) or ""
            for n in walk(s)
            if isinstance(n, (ast.Name, ast.Attribute)) and n not in called
        }
        for loop in file.places[s].loops[-1:]:
            head = [loop.target, loop.iter] if isinstance(loop, ast.For) else [loop.test]
            names |= {key(n) or "" for h in head for n in walk(h)}
        if any(_EACH.search(n.split(".")[-1]) for n in names):
            return True
    return False


def _replaces(file: Any, line: int) -> bool:
    """for i, state in enumerate(self.parents): ...; self.parents[i] = copy of the weights"""
    for s in file.statements:
        if s.lineno != line or not isinstance(s, ast.Assign) or not file.places[s].loops:
            continue
        for t in s.targets:
            if isinstance(t, ast.Subscript) and any(
                isinstance(loop, ast.For)
                and any(key(n) == key(t.value) for n in walk(loop.iter) if key(n))
                for loop in file.places[s].loops
            ):
                return True
    return False


_JOINS = re.compile(r"average|avg|mean|aggregat|merge|combine|fuse|soup|interpolat", re.I)


def _joined(file: Any, line: int) -> bool:
    """states.append(copy of the weights) in a loop, average(states) behind it: all of them at once
    are what is wanted
    """
    for s in file.statements:
        call = s.value if isinstance(s, ast.Expr) else None
        if s.lineno != line or not isinstance(call, ast.Call) or method(call) != "append":
            continue
        name = key(call.func.value) if isinstance(call.func, ast.Attribute) else None
        around = file.places[s].function or file.tree
        if name and any(
            isinstance(n, ast.Call)
            and n.lineno > line
            and _JOINS.search(method(n))
            and any(key(a) == name for a in n.args)
            for n in walk(around)
        ):
            return True
    return False


CHECKS = (
    trials_keep_models,
    copies,
    models_of_rounds,
    trees_kept,
)
HINTS = (
    _all_wanted,
    _joined,
    _replaces,
    small_problem,
)
