"""Outputs of all batches kept on the card.

severity: info
remedy: eval_outputs

Without a graph the outputs still lie on the card. Kept for the whole dataset they take the room
of the model.

Instead: Move each batch's outputs to the host, `preds.append(out.cpu())`, or keep only what the
metric needs (`out.argmax(-1)`).
"""

import ast
import re
from typing import Any, Iterator

from ..evaluation import names_data
from ..evidence import few_rounds
from ..findings import Finding, finding
from ..flow import bounded_containers, in_order, resets
from ..names import FUNCTIONS, key, method, targets, walk
from ..of_jax import compiled_names
from ..reasons import MEMORY, all_words, without_torch


def _rows_of_it(file: Any, line: int) -> bool:
    """while len(left): done = torch.cat((done, left[index])): the rows of one batch, in another order"""
    for s in file.statements:
        if s.lineno != line or not isinstance(s, ast.Assign) or not file.places[s].loops:
            continue
        loop = file.places[s].loops[-1]
        if isinstance(loop, ast.For) and names_data(loop):
            continue
        joined = [n for n in walk(s.value) if isinstance(n, (ast.Tuple, ast.List))]
        own = {key(t) for t in targets(s)}
        for parts in joined[:1]:
            others = [e for e in parts.elts if key(e) not in own]
            if others and all(_is_rows(e) for e in others):
                return True
    return False


def _is_rows(value: ast.AST) -> bool:
    """left[index].reshape(-1, 3).cuda()"""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        value = value.func.value
    return isinstance(value, ast.Subscript) and isinstance(value.value, (ast.Name, ast.Attribute))


def _of_exemplars(file: Any, line: int) -> bool:
    """class ReplayBank: def extract(self, loader): some samples of each class go through the model"""
    around = [
        n.name
        for n in file.nodes
        if isinstance(n, FUNCTIONS + (ast.ClassDef,)) and n.lineno <= line <= (n.end_lineno or 0)
    ]
    return any(MEMORY.search(name) for name in around)


def _one_a_class(file: Any, line: int) -> bool:
    """for c in np.unique(labels): means.append(features_of(c).mean(0))"""
    loops = [x for s in file.statements if s.lineno == line for x in file.places[s].loops[-1:]]
    return any(
        isinstance(n, ast.Call)
        and method(n) in ("unique", "set")
        or isinstance(n, (ast.Name, ast.Attribute))
        and re.search(r"(^|_)(n|num|nb)?_?class(es)?$", (key(n) or "").split(".")[-1], re.I)
        for loop in loops
        if isinstance(loop, ast.For)
        for n in walk(loop.iter)
    )


_TABLES = re.compile(r"tabular|forecast|(^|_)horizon|covtype|time_?series|DataFrame|read_csv", re.I)


_MAPS = re.compile(r"pixel|segm|depth|voxel|heat_?map|imread|ImageFolder|vocab", re.I)


def _rows_of_tables(file: Any, line: int) -> bool:
    """outputs = torch.cat([outputs, forecast]): some numbers a row, where nothing speaks of images"""
    words = all_words(file) | {file.path}
    return any(map(_TABLES.search, words)) and not any(map(_MAPS.search, words))


# Copies of the model, which another rule is about
_MODEL = re.compile(r"^(all_)?(grads?|gradients|params|opt_state|train_state|state|updates)$")


def of_tensorflow(file: Any) -> Iterator[Finding]:
    """outs.append(model(x)) for every batch"""
    if "tensorflow" not in file.modules:
        return
    for s in file.statements:
        loops = file.places[s].loops
        if not loops or not isinstance(loops[-1], ast.For) or not isinstance(s, ast.Expr):
            continue
        name, kept = _appended(s)
        if not name or not _is_output(loops[-1], kept) or resets(loops[-1], name, None):
            continue
        yield finding(
            "outputs-kept-on-card",
            s,
            "`%s` keeps tensors of every batch on the device: `%s.append(value.numpy())` on the host, "
            "or only the number that is needed" % (name, name),
            hint=True,
        )


def _appended(s: Any) -> Any:
    call = s.value
    if isinstance(call, ast.Call) and method(call) == "append" and call.args:
        if isinstance(call.func, ast.Attribute):
            return key(call.func.value), call.args[0]
    return None, None


def _is_output(loop: Any, value: Any) -> bool:
    if isinstance(value, ast.Name):
        values = [
            s.value
            for s in in_order(loop.body)
            if isinstance(s, ast.Assign) and any(key(t) == value.id for t in s.targets)
        ]
        return (
            len(values) == 1 and not isinstance(values[0], ast.Name) and _is_output(loop, values[0])
        )
    if not isinstance(value, ast.Call):
        return False
    called = key(value.func) or ""
    new = {n.id for n in walk(loop.target) if isinstance(n, ast.Name)}
    new |= {
        k
        for s in in_order(loop.body)
        if isinstance(s, ast.Assign)
        for k in map(key, targets(s))
        if k
    }
    given = {n.id for a in value.args for n in walk(a) if isinstance(n, ast.Name)}
    return bool(_MAKES.search(called)) and bool(new & given)


# A network's results, and gradients of a tape
_MAKES = re.compile(r"(^|[._])(model|net|network|encoder|t(ape)?\.gradient)$")


def _makes_dict(value: Any) -> bool:
    return isinstance(value, ast.Call) and key(value.func) == "dict"


def _entered(file: Any, s: Any, loop: Any) -> Any:
    """history[step] = out, where history is a dict: a NumPy array would take a copy"""
    if not isinstance(s, ast.Assign) or not isinstance(s.targets[0], ast.Subscript):
        return None, None
    at, name = s.targets[0].slice, key(s.targets[0].value)
    drawn = {n.id for n in walk(getattr(loop, "target", loop)) if isinstance(n, ast.Name)}
    dicts = {
        key(t)
        for x in file.statements
        if isinstance(x, ast.Assign) and (isinstance(x.value, ast.Dict) or _makes_dict(x.value))
        for t in x.targets
    }
    if isinstance(loop, ast.For) and isinstance(at, ast.Name) and at.id in drawn and name in dicts:
        return name, s.value
    return None, None


_SCALARS = re.compile(r"loss|acc|metric|score|norm|reward|return|time|lr|cost|err|^l$", re.I)


def of_jax(file: Any) -> Iterator[Finding]:
    """history.append(output of a compiled step) in every round"""
    if "jax" not in file.modules:
        return
    compiled = compiled_names(file)
    for s in file.statements:
        loops = file.places[s].loops
        if not loops or few_rounds(loops[-1], file) or file.places[s].ifs:
            continue
        name, value = _appended(s) if isinstance(s, ast.Expr) else _entered(file, s, loops[-1])
        parts = (
            value.elts
            if isinstance(value, (ast.Tuple, ast.List))
            else value.values
            if isinstance(value, ast.Dict)
            else [value]
        )
        for kept in [key(p) or "" for p in parts if p is not None]:
            made = any(
                isinstance(x, ast.Assign)
                and isinstance(x.value, ast.Call)
                and method(x.value) in compiled
                and any(key(t) == kept for t in targets(x))
                for x in in_order(loops[-1].body)
            )
            if not name or not made or _SCALARS.search(kept) or _MODEL.match(kept):
                continue
            if resets(loops[-1], name, None) or name in bounded_containers(file):
                continue
            yield finding(
                "outputs-kept-on-card",
                s,
                "`%s` keeps `%s` of every step as an array on the device: "
                "`jax.device_get(%s)` moves it to the host" % (name, kept, kept),
                hint=True,
            )
            break


CHECKS = (of_tensorflow, of_jax)
HINTS = (
    without_torch,
    _rows_of_it,
    _of_exemplars,
    _one_a_class,
    _rows_of_tables,
)
