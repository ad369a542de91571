"""Dataset on the GPU.

severity: warning
remedy: stream_data

Data that waits on the card takes the room of activations.

Instead: Keep it on the host and move each batch in the loop, with pin_memory and
non_blocking=True.
"""

import ast
import re
from typing import Any, Dict, Iterator, Optional, Set, Tuple

from .. import evidence
from ..data import (
    READ_WHOLE,
    SUMMARY,
    _loaders,
    gathers_on_gpu,
    hub_datasets,
    is_batch,
    iterated,
    loads_to_gpu,
    moves_to_gpu,
)
from ..findings import Finding, finding
from ..flow import Scope, in_order, resets, scopes, variables
from ..names import File, constant, key, keyword, method, own, pairs, targets, walk, walk_here
from ..reasons import MEMORY


def whole_dataset(file: File) -> Iterator[Finding]:
    """[x.to(device) for x in loader], TensorDataset(x.cuda())"""
    streams = _loaders(file) | hub_datasets(file)
    for node in file.nodes:
        if isinstance(node, ast.Call):
            name = (file.callee(node) or "").split(".")[-1]
            if name == "TensorDataset" and any(moves_to_gpu(a) for a in node.args):
                yield finding(
                    "dataset-on-gpu",
                    node,
                    "the whole dataset is moved to the GPU, where it takes the room of activations",
                    # Token ids and labels are small beside what the model makes of them.
                    hint=all(
                        evidence.SMALL.search(key(a.func.value) or "")
                        for a in node.args
                        if moves_to_gpu(a)
                        and isinstance(a, ast.Call)
                        and isinstance(a.func, ast.Attribute)
                    ),
                )
        elif isinstance(node, ast.ListComp) and len(node.generators) == 1:
            over = key(iterated(node.generators[0].iter))
            if any(loads_to_gpu(file, n) for n in walk_here(node.elt)):
                yield finding(
                    "dataset-on-gpu",
                    node,
                    "every file is loaded to the GPU and kept in a list",
                )
            elif over in streams and gathers_on_gpu(file, node):
                yield finding(
                    "dataset-on-gpu",
                    node,
                    "every batch of `%s` is moved to the GPU and kept in a list" % over,
                )


def lists_on_card(file: File) -> Iterator[Finding]:
    """graphs = [g.to(device) for g in graphs]; DataLoader(graphs[:cut])"""
    if not any(isinstance(n, ast.Call) and method(n) == "DataLoader" for n in file.nodes):
        return
    given = {
        key(a.value) if isinstance(a, ast.Subscript) and key(a) is None else key(a)
        for n in file.nodes
        if isinstance(n, ast.Call)
        and method(n) in ("DataLoader", "random_split", "Subset", "TensorDataset", "ConcatDataset")
        for a in n.args[:1] + [k.value for k in n.keywords if k.arg == "dataset"]
    } - {None}
    for s in file.statements:
        if not isinstance(s, ast.Assign) or not isinstance(s.value, ast.ListComp):
            continue
        name, made = key(s.targets[0]), s.value
        moved = made.elt.elts if isinstance(made.elt, (ast.Tuple, ast.List)) else [made.elt]
        if name in given and any(moves_to_gpu(m) for m in moved):
            yield finding(
                "dataset-on-gpu",
                s,
                "every sample is moved to the GPU before the loader is made: the whole dataset "
                "stays there",
            )


def batches_gathered(file: File) -> Iterator[Finding]:
    """for x in loader: kept.append(x.to(device))"""
    loaders = _loaders(file)
    for loop in [s for s in file.statements if isinstance(s, ast.For)]:
        if key(iterated(loop.iter)) not in loaders:
            continue
        batch = set().union(*[variables(t) for t in targets(loop)])
        moved: Set[Any] = set()
        for s in in_order(loop.body):
            if isinstance(s, ast.Assign) and is_batch(s.value, batch | moved):
                names = {key(t) for t in targets(s)} - {None}
                if moves_to_gpu(s.value) or key(s.value) in moved:
                    moved |= names
                batch |= names
            if not isinstance(s, ast.Expr) or not isinstance(s.value, ast.Call):
                continue
            call = s.value
            if (
                method(call) != "append"
                or not call.args
                or not isinstance(call.func, ast.Attribute)
            ):
                continue
            name = key(call.func.value)
            values = call.args[0].elts if isinstance(call.args[0], ast.Tuple) else call.args
            if name is None or resets(loop, name, None):
                continue
            for v in values:
                if evidence.SMALL.search(name) or evidence.SMALL.search(key(v) or ""):
                    continue  # a number a sample
                if is_batch(v, batch | moved) and (moves_to_gpu(v) or key(v) in moved):
                    yield finding(
                        "dataset-on-gpu",
                        s,
                        "every batch of `%s` is moved to the GPU and kept in `%s`"
                        % (key(iterated(loop.iter)), name),
                    )
                    break


def files_on_gpu(file: File) -> Iterator[Finding]:
    """torch.tensor(pd.read_csv(...).values).to(device), used in pieces later"""
    if "torch" not in file.modules:
        return
    loading = _loading_functions(file)
    reading = _reading_functions(file)
    arrays = _reading_functions(file, tensors_only=False)
    for scope in scopes(file):
        whole: Dict[Any, str] = {}  # variable -> the file it came from
        moved = {}  # variable -> the statement that moved it
        for s in scope.statements:
            place = file.places.get(s)
            if isinstance(s, ast.With):  # with h5py.File(path) as f
                for item in s.items:
                    origin = _read_from(file, item.context_expr, whole)
                    if origin and item.optional_vars is not None and key(item.optional_vars):
                        whole[key(item.optional_vars)] = origin
            if not isinstance(s, ast.Assign) or place is None or place.loops:
                continue
            called = loading.get(key(s.value.func)) if isinstance(s.value, ast.Call) else None
            if called:  # xs, ys = load(path, device)
                for t in targets(s):
                    if key(t):
                        moved[key(t)] = called
            read = reading.get(key(s.value.func)) if isinstance(s.value, ast.Call) else None
            if read:  # xs, ys = load(path), on the host
                whole.update((key(t), read) for t in targets(s) if key(t))
                continue
            for target, value in pairs(s):
                k = key(target)
                origin = _read_from(file, value, whole) or _read_by(value, arrays)
                if k and origin:
                    whole[k] = origin
                    if any(moves_to_gpu(n) for n in walk_here(value)) or _made_on_gpu(file, value):
                        moved[k] = (s, origin)
                elif k:
                    whole.pop(k, None)
                if k and key(value) in moved:
                    moved[k] = moved[key(value)]
                elif k and isinstance(value, ast.Subscript) and key(value.value) in moved:
                    moved[k] = moved[key(value.value)]  # images = data["images"]
                elif k and _read_to_gpu(file, value):
                    moved[k] = (s, "`torch.load`")
        told = set()
        for name, (s, origin) in moved.items():
            if evidence.SMALL.search(name) or origin in told:
                continue  # one finding for all parts of a file
            if _used_in_pieces(file, scope, name):
                told.add(origin)
                yield finding(
                    "dataset-on-gpu",
                    s,
                    "everything read by %s is moved to the GPU at once, and the loop uses a piece "
                    "at a time" % origin,
                )


def _read_to_gpu(file: File, value: ast.expr) -> bool:
    """torch.load(path, map_location=device): tensors of a file, if they are used as such"""
    return (
        isinstance(value, ast.Call)
        and (file.callee(value) or "") == "torch.load"
        and _is_gpu(keyword(value, "map_location"))
    )


def _loading_functions(file: File) -> Any:
    """Functions of this file that read a whole file and return it on the card: name -> (the
    statement that moves it, what read it).
    """
    found: Dict[str, Tuple[ast.stmt, str]] = {}
    for name, function in file.plain_functions.items():
        whole: Dict[Any, str] = {}
        moved: Dict[Any, Tuple[ast.stmt, str]] = {}
        for s in in_order(function.body):
            if isinstance(s, ast.Assign):
                for target, value in pairs(s):
                    origin = _read_from(file, value, whole)
                    if key(target) and origin:
                        whole[key(target)] = origin
                        if any(moves_to_gpu(n) for n in walk_here(value)):
                            moved[key(target)] = (s, origin)
            if isinstance(s, ast.Return) and s.value is not None:
                origin = _read_from(file, s.value, whole)
                if origin and any(moves_to_gpu(n) for n in walk_here(s.value)):
                    found[name] = (s, origin)
                for k in variables(s.value) & set(moved):
                    found[name] = moved[k]
    return found


def _read_by(value: ast.expr, arrays: Dict[str, str]) -> Optional[str]:
    """torch.from_numpy(read_table(path)), where read_table is of this file"""
    for n in walk_here(value):
        if isinstance(n, ast.Call) and key(n.func) in arrays:
            return arrays[key(n.func)]
    return None


def _reading_functions(file: File, tensors_only: bool = True) -> Dict[str, str]:
    """Functions of this file that read a whole file and return tensors of it on the host, or arrays:
    name -> what read it.
    """
    found: Dict[str, str] = {}
    for name, function in file.plain_functions.items():
        whole: Dict[Any, str] = {}
        tensors: Set[Any] = set()
        for s in in_order(function.body):
            if isinstance(s, ast.Assign):
                for target, value in pairs(s):
                    origin = _read_from(file, value, whole)
                    if key(target) and origin:
                        whole[key(target)] = origin
                        if _is_tensor(file, value) or variables(value) & tensors:
                            tensors.add(key(target))
            if isinstance(s, ast.Return) and s.value is not None:
                origin = _read_from(file, s.value, whole)
                tensor = _is_tensor(file, s.value) or variables(s.value) & tensors
                if origin and (tensor or not tensors_only and not _small_part(s.value)):
                    found[name] = origin
    return found


def _small_part(value: ast.expr) -> bool:
    """return frame["label"].unique(), len(frame), frame.columns, (rows, names)"""
    asked = {n.attr for n in walk_here(value) if isinstance(n, ast.Attribute)}
    return (
        bool(asked & SUMMARY or asked & {"unique", "columns", "index", "keys", "item", "iloc"})
        or isinstance(value, (ast.Tuple, ast.Dict, ast.List))
        or isinstance(value, ast.Call)
        and method(value) in ("len", "int", "float", "str")
    )


def _is_tensor(file: File, value: ast.expr) -> bool:
    return any(
        isinstance(n, ast.Call)
        and (file.callee(n) or "").split(".")[-1]
        in ("tensor", "from_numpy", "as_tensor", "FloatTensor", "Tensor")
        for n in walk_here(value)
    )


def _read_from(file: File, value: ast.expr, whole: Any) -> Any:
    """The call that read the file this value is made from, or None."""
    for n in walk_here(value):
        if isinstance(n, ast.Call):
            name = file.callee(n) or ""
            if name in READ_WHOLE and not _is_model(n, name):
                return "`%s`" % key(n.func)
        if isinstance(n, ast.Name) and n.id in whole and isinstance(n.ctx, ast.Load):
            return whole[n.id]
    return None


def _is_model(call: ast.Call, name: str) -> bool:
    """torch.load of weights is not data."""
    text = " ".join(str(constant(a, "")) + " " + (key(a) or "") for a in call.args)
    return name == "torch.load" and not re.search(
        r"data|feature|embed|train|sample|input|image", text
    )


def _made_on_gpu(file: File, value: ast.expr) -> bool:
    """torch.tensor(x, device=device)"""
    return any(
        isinstance(n, ast.Call)
        and (file.callee(n) or "") in ("torch.tensor", "torch.as_tensor")
        and _is_gpu(keyword(n, "device"))
        for n in walk_here(value)
    )


def _is_gpu(node: Optional[ast.expr]) -> bool:
    if node is None:
        return False
    return str(constant(node, "")).startswith("cuda") or "device" in (key(node) or "").lower()


def _used_in_pieces(file: File, scope: Scope, name: str) -> bool:
    """TensorDataset(x, y), x[i : i + batch] or x[indices] in a loop that trains"""
    for s in scope.statements:
        if isinstance(s, ast.For) and scope.has_backward(s):  # for x in data.split(64)
            over = s.iter.args if isinstance(s.iter, ast.Call) else [s.iter]
            if isinstance(s.iter, ast.Call) and isinstance(s.iter.func, ast.Attribute):
                if method(s.iter) in ("split", "chunk", "unbind"):
                    over = [*over, s.iter.func.value]
            if any(key(part) == name for part in over):
                return True
        for n in own(s):
            if isinstance(n, ast.Call) and (file.callee(n) or "").split(".")[-1] == "TensorDataset":
                if any(key(a) == name for a in n.args) and not _all_in_one(file):
                    return True
            if isinstance(n, ast.Subscript) and key(n.value) == name:
                loops = file.places[s].loops
                if loops and isinstance(n.ctx, ast.Load) and not isinstance(n.slice, ast.Constant):
                    if any(scope.has_backward(loop) for loop in loops):
                        return True
    return False


def _all_in_one(file: File) -> bool:
    """DataLoader(dataset, batch_size=len(points)): one batch of all"""
    made = {
        key(t)
        for s in file.statements
        if isinstance(s, ast.Assign)
        and isinstance(s.value, ast.Call)
        and method(s.value) == "TensorDataset"
        for t in targets(s)
    }
    sizes = [
        keyword(n, "batch_size")
        for n in file.nodes
        if isinstance(n, ast.Call)
        and method(n) == "DataLoader"
        and any(
            key(a) in made or isinstance(a, ast.Call) and method(a) == "TensorDataset"
            for a in n.args[:1]
        )
    ]
    return bool(sizes) and all(isinstance(s, ast.Call) and key(s.func) == "len" for s in sizes)


def _until_full(file: Any, line: int) -> bool:
    """if len(kept) < limit: kept.append(batch.cuda()), or if len(kept) >= limit: break above it"""
    for s in file.statements:
        call = s.value if s.lineno == line and isinstance(s, ast.Expr) else None
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        name = key(call.func.value)
        if any(
            _compares_length(i.test, name, (ast.Lt, ast.LtE))
            for i in file.places[s].ifs
            if isinstance(i, ast.If)
        ):
            return True
        if any(_stops_when_full(loop, name) for loop in file.places[s].loops[-1:]):
            return True
    return False


def _stops_when_full(loop: Any, name: Any) -> bool:
    """if len(kept) >= limit: break, or if seen > limit: break behind seen += 1"""
    return any(
        isinstance(i, ast.If)
        and (
            _compares_length(i.test, name, (ast.Gt, ast.GtE, ast.Eq)) or _counted_off(loop, i.test)
        )
        and isinstance(i.body[-1], (ast.Break, ast.Return))
        for i in getattr(loop, "body", [])
    )


def _counted_off(loop: Any, test: Any) -> bool:
    """seen >= limit, where the loop counts seen"""
    if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], (ast.Gt, ast.GtE, ast.Eq)):
        return False
    over = getattr(loop, "iter", None)
    counted = {key(n.target) for n in walk(loop) if isinstance(n, ast.AugAssign)}
    if isinstance(over, ast.Call) and method(over) == "enumerate":
        counted |= {key(t) for t in targets(loop)[:1]}
    return key(test.left) in counted - {None}


def _compares_length(test: Any, name: Any, operators: Tuple[type, ...]) -> bool:
    return any(
        isinstance(c, ast.Compare)
        and isinstance(c.ops[0], operators)
        and isinstance(c.left, ast.Call)
        and method(c.left) == "len"
        and any(key(a) == name for a in c.left.args)
        for c in walk(test)
    )


_STATE = re.compile(r"state|model|optim|sched|epoch|weights|scaler|net($|_)", re.I)


def _is_checkpoint(file: Any, line: int) -> bool:
    """saved = torch.load(path, map_location=device); model.load_state_dict(saved["model"])"""
    names = {
        key(t)
        for s in file.statements
        if isinstance(s, ast.Assign) and s.lineno == line
        for t in targets(s)
    } - {None}
    for n in file.nodes:
        if isinstance(n, ast.Call) and method(n).startswith("load_state"):
            if any(key(x) in names for a in n.args for x in walk(a) if isinstance(x, ast.Name)):
                return True
        if isinstance(n, ast.Subscript) and key(n.value) in names:
            if _STATE.search((key(n) or "").split("[")[-1]):
                return True
    return False


def _is_memory(file: Any, line: int) -> bool:
    """memory_bank = torch.from_numpy(memory_bank).to(device): some samples of each class"""
    return any(
        MEMORY.search(key(t) or "")
        for s in file.statements
        if isinstance(s, ast.Assign) and s.lineno == line
        for t in targets(s)
    )


CHECKS = (
    whole_dataset,
    batches_gathered,
    files_on_gpu,
    lists_on_card,
)
HINTS = (
    _until_full,
    _is_checkpoint,
    _is_memory,
)
