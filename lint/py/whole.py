"""Data sets that lie whole in host memory: what reads them, followed to what trains on them.

A read counts only where its result, or a copy of it, reaches training: fit(), a loader, a Keras
Sequence, slices in a loop that steps. Labels, known small sets and arrays mapped from disk do not.
"""

import ast
import os
import re
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

from .data import asked_for, decodes, hub_datasets, iterated, trains
from .evidence import few_rounds
from .findings import Finding, after, finding
from .names import FUNCTIONS, constant, key, keyword, method, own, pairs, walk
from .tensorflow import LOADING, small_set

# Files of this size are no small part of the memory of the machines that train.
LARGE_FILE = 1 << 30

_READERS = frozenset(LOADING) - {"h5py.File"} | {
    "pandas.read_json",
    "pandas.read_table",
    "pandas.read_feather",
    "polars.read_csv",
    "polars.read_parquet",
    "torch.load",
}
_PIECEWISE = frozenset("mmap_mode chunksize iterator nrows memory_map usecols max_rows".split())
# What makes a copy or a view of all of it
_PASSES = frozenset(
    "array asarray ascontiguousarray stack vstack hstack concatenate concat cat from_numpy tensor "
    "as_tensor Tensor FloatTensor LongTensor astype reshape transpose permute expand_dims unsqueeze "
    "squeeze float double long half drop dropna fillna to_numpy copy clone train_test_split "
    "sample shuffle convert_to_tensor fit_transform transform normalize list tuple float32".split()
)
_VIEWS = frozenset(
    "asarray ascontiguousarray from_numpy as_tensor reshape transpose permute expand_dims unsqueeze "
    "squeeze train_test_split list tuple".split()
)
_SUMMARIES = frozenset("shape size dtype ndim columns index name names keys".split())
_LABELS = re.compile(
    r"label|target|path|name|file|(^|_)ids?($|_)|(^|_)y($|_)|vocab|mask|meta|weight|model|"
    r"checkpoint|ckpt|state|config|scaler|class",
    re.I,
)
_LISTS_FILES = frozenset("glob iglob rglob listdir scandir iterdir walk".split())
_STEPS = frozenset("backward apply_gradients train_on_batch train_step value_and_grad".split())
_LOADERS = frozenset("DataLoader TensorDataset Subset random_split".split())
_STREAMS = ("Sequence", "PyDataset")

Scope = Any  # the function around a name, the class for self.x, None for the file


class Read:
    """A place that brings a whole data set into memory."""

    def __init__(self, node: Any, kind: str, call: Any = None) -> None:
        self.node, self.kind, self.call = node, kind, call
        self.name = ""  # the first variable that holds it
        self.streamed = ""  # the class that hands it out as if it were streamed
        self.copies: Set[int] = set()  # lines that make another array of all of it
        self.trains = False


class Followed:
    """What the variables of a file hold, as far as it was read whole."""

    def __init__(self, file: Any) -> None:
        self.file = file
        self.held: Dict[Tuple[Scope, str], Set[Read]] = {}
        self.samples: Set[Tuple[Scope, str]] = set()  # variables with one decoded file
        self.returned: Dict[str, List[Set[Read]]] = {}
        self.reads: Dict[Any, Read] = {}
        for _ in range(3):  # a helper may stand below its caller
            for s in file.statements:
                self._statement(s)

    def _scope(self, s: Any, name: str) -> Scope:
        place = self.file.places[s]
        return place.klass if name.startswith("self.") else place.function

    def _lookup(self, s: Any, name: Optional[str]) -> Set[Read]:
        if not name:
            return set()
        found = self.held.get((self._scope(s, name), name))
        return found if found is not None else self.held.get((None, name), set())

    def _read(self, node: Any, kind: str, call: Any = None) -> Set[Read]:
        return {self.reads.setdefault(node, Read(node, kind, call))}

    def _statement(self, s: Any) -> None:
        if isinstance(s, ast.Return) and s.value is not None:
            function = self.file.places[s].function
            if function is not None:
                parts = s.value.elts if isinstance(s.value, ast.Tuple) else [s.value]
                self.returned[function.name] = [self.of(p, s) for p in parts]
        elif isinstance(s, ast.Assign):
            for t, value in pairs(s):
                held = self.of(value, s)
                for r in held if _copies(value) else ():
                    r.copies.add(s.lineno)
                name = key(t)
                if name:
                    self._put(s, name, held)
                    if self._decoded(value, s):
                        self.samples.add((self._scope(s, name), name))
                elif isinstance(t, (ast.Tuple, ast.List)):
                    self._unpack(s, t, value, held)
        elif isinstance(s, ast.Expr) and isinstance(s.value, ast.Call):
            call = s.value
            owner = key(call.func.value) if isinstance(call.func, ast.Attribute) else None
            if method(call) == "append" and owner and call.args and self.file.places[s].loops:
                if self._decoded(call.args[0], s) and self._many(s):
                    self._put(s, owner, self._read(s, "files"))

    def _put(self, s: Any, name: str, held: Set[Read]) -> None:
        held = {r for r in held if r.kind == "rows" or not _LABELS.search(name.split(".")[-1])}
        if not held:
            return
        self.held.setdefault((self._scope(s, name), name), set()).update(held)
        for r in held:
            r.name = r.name or name

    def _unpack(self, s: Any, target: Any, value: Any, held: Set[Read]) -> None:
        parts = self._returns(value)
        for i, t in enumerate(target.elts):
            one = parts[i] if i < len(parts) and len(parts) == len(target.elts) else held
            if key(t):
                self._put(s, key(t) or "", one)

    def _returns(self, value: Any) -> List[Set[Read]]:
        return self.returned.get(method(value), []) if isinstance(value, ast.Call) else []

    def _many(self, s: Any) -> bool:
        """A loop over the files of a folder, or over a list that is not short"""
        loops = self.file.places[s].loops
        return all(isinstance(x, ast.For) for x in loops) and not few_rounds(loops[-1], self.file)

    def _decoded(self, value: Any, s: Any) -> bool:
        """Is this one sample, read from its file?"""
        names = {n for f, n in self.samples if f is self.file.places[s].function}
        return bool(decodes(self.file, value, names))

    def of(self, node: Any, s: Any) -> Set[Read]:
        """What this expression holds whole."""
        if isinstance(node, ast.Call):
            return self._of_call(node, s)
        if isinstance(node, (ast.Name, ast.Attribute)):
            found = self._lookup(s, key(node))
            if not found and isinstance(node, ast.Attribute) and node.attr not in _SUMMARIES:
                return self.of(node.value, s)
            return found
        if isinstance(node, ast.Subscript):
            if _everything(node) and self._made_by(node.value, "h5py.File"):
                return self._read(node, "hdf", node)
            return self.of(node.value, s)
        if isinstance(node, ast.BinOp):
            return self.of(node.left, s) | self.of(node.right, s)
        if isinstance(node, (ast.Tuple, ast.List)):
            return set().union(*[self.of(e, s) for e in node.elts])
        if isinstance(node, ast.IfExp):
            return self.of(node.body, s) | self.of(node.orelse, s)
        if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
            return self._of_comprehension(node, s)
        return set()

    def _of_call(self, call: ast.Call, s: Any) -> Set[Read]:
        name = self.file.callee(call) or ""
        if name in _READERS or name.startswith("pickle.load"):
            if any(k.arg in _PIECEWISE for k in call.keywords):
                return set()
            return self._read(call, "file", call)
        own_parts = self._returns(call)
        if own_parts:
            return set().union(*own_parts)
        if method(call) not in _PASSES and method(call) not in _LOADERS:
            return set()
        held = set().union(*[self.of(a, s) for a in call.args])
        if isinstance(call.func, ast.Attribute):
            held |= self.of(call.func.value, s)
        return held

    def _of_comprehension(self, node: Any, s: Any) -> Set[Read]:
        if len(node.generators) != 1 or node.generators[0].ifs and few_rounds(node, self.file):
            return set()
        if self._decoded(node.elt, s) and not few_rounds(node, self.file):
            return self._read(node, "files")
        over = node.generators[0].iter
        opened = self._made_by(over, "open")
        if opened is not None:
            return self._read(node, "lines", opened)
        if isinstance(over, ast.Subscript) and key(over.value) in hub_datasets(self.file):
            if any(isinstance(n, ast.Call) for n in walk(node.elt)):
                return self._read(node, "rows")
        drawn = self.of(over, s)
        names = {n.id for n in walk(node.generators[0].target) if isinstance(n, ast.Name)}
        whole = key(node.elt) in names or (
            isinstance(node.elt, ast.Call)
            and any(isinstance(n, ast.Name) and n.id in names for n in walk(node.elt))
        )
        return drawn if whole else set()

    def _made_by(self, node: Any, opener: str) -> Any:
        """The call of open(...) behind f, and behind f["x"]"""
        while isinstance(node, ast.Subscript):
            node = node.value
        name = key(node)
        calls = (
            c
            for x in self.file.statements
            if name is not None and isinstance(x, (ast.With, ast.Assign))
            for c, t in _opened(x)
            if key(t) == name and (self.file.callee(c) or "") == opener
        )
        return next(calls, None)


def _copies(value: Any) -> bool:
    """x / 255, x.astype("float32"), np.concatenate([x, y])"""
    return any(
        isinstance(n, ast.BinOp) or isinstance(n, ast.Call) and method(n) in _PASSES - _VIEWS
        for n in walk(value)
    )


def _opened(s: Any) -> List[Tuple[Any, Any]]:
    if isinstance(s, ast.With):
        return [
            (i.context_expr, i.optional_vars)
            for i in s.items
            if isinstance(i.context_expr, ast.Call) and i.optional_vars is not None
        ]
    return [(s.value, t) for t in s.targets] if isinstance(s.value, ast.Call) else []


def _everything(node: ast.Subscript) -> bool:
    """x[:], x[...], x[()]"""
    at = node.slice
    if isinstance(at, ast.Slice):
        return at.lower is None and at.upper is None
    return isinstance(at, ast.Tuple) and not at.elts or constant(at, None) is ...


def _is_stream(file: Any, c: Any) -> bool:
    return any((file.dotted(b) or "").split(".")[-1] in _STREAMS for b in c.bases)


def _into_training(file: Any, known: Followed) -> None:
    """Marks the reads that something trains on."""
    classes = {
        n: c
        for n, c in file.classes.items()
        if _is_stream(file, c) or any("Dataset" in (file.dotted(b) or "") for b in c.bases)
    }
    for s in file.statements:
        for r in known.of(iterated(s.iter), s) if isinstance(s, ast.For) and _trains(s) else ():
            r.trains = True
        for call in [n for n in own(s) if isinstance(n, ast.Call)]:
            name = method(call)
            given: List[Any] = []
            if name in ("fit", "train_on_batch") and _is_keras(file, call):
                given = [*call.args[:1], keyword(call, "x")]
            elif name in _LOADERS or name in ("from_tensor_slices", "from_tensors"):
                given = [*call.args, keyword(call, "dataset")]
            elif name in classes:
                given = [*call.args, *[k.value for k in call.keywords]]
            elif name.endswith("Trainer"):
                given = [keyword(call, "train_dataset")]
            for a in [g for g in given if g is not None]:
                for r in known.of(a, s):
                    r.trains = True
                    if name in classes and _is_stream(file, classes[name]):
                        r.streamed = name
        if any(_trains(x) for x in file.places[s].loops):
            for n in own(s):
                if isinstance(n, ast.Subscript) and _is_batch(n):
                    for r in known.of(n.value, s):
                        r.trains = True
    for c in classes.values():
        get = next((f for f in c.body if getattr(f, "name", "") == "__getitem__"), None)
        for n in walk(get) if get is not None else ():
            for r in known.held.get((c, key(n) or ""), ()) if isinstance(n, ast.Attribute) else ():
                if _is_stream(file, c):
                    r.trains, r.streamed = True, c.name
                elif r.kind not in ("files", "lines"):  # other rules know those
                    r.trains = True


def _trains(loop: Any) -> bool:
    return any(isinstance(n, ast.Call) and method(n) in _STEPS for n in walk(loop))


def _is_batch(node: ast.Subscript) -> bool:
    """x[i : i + size], x[order[i : j]]"""
    at = node.slice
    if isinstance(at, ast.Slice):
        return any(b is not None and not isinstance(b, ast.Constant) for b in (at.lower, at.upper))
    return isinstance(at, ast.Name) and bool(re.search(r"idx|ind|batch|sel", at.id, re.I))


def _is_keras(file: Any, call: ast.Call) -> bool:
    owner = key(call.func.value) if isinstance(call.func, ast.Attribute) else None
    made = (file.made_from(owner) or "").split(".")[0] if owner else ""
    return bool({"tensorflow", "keras"} & file.modules) and made not in (
        "sklearn",
        "xgboost",
        "lightgbm",
    )


def check(file: Any) -> Iterator[Finding]:
    """Whole data sets that training then takes batches from"""
    if not file.modules & {"torch", "tensorflow", "keras", "jax", "transformers", "lightning"}:
        return
    known = Followed(file)
    if not known.reads:
        yield from streams_of_arguments(file, set())
        return
    _into_training(file, known)
    said = set()
    for r in known.reads.values():
        if not r.trains:
            continue
        said.add(r.streamed)
        size = _bytes_on_disk(file, r.call)
        if size >= LARGE_FILE:
            yield finding(
                "large-file-read-whole",
                r.node,
                "`%s` reads %.1f GiB of disk into memory before the first step; %s"
                % (_code(r.call), size / (1 << 30), _cure(file, r)),
            )
            continue
        yield finding(
            "dataset-read-whole",
            r.node,
            _words(file, r),
            _mapped(file, r),
            hint=not _worth_saying(file, r) or small_set(file, None) or not trains(file),
        )
    yield from streams_of_arguments(file, said)


def _worth_saying(file: Any, r: Read) -> bool:
    """A class that is there to stream and does not, or decoded files of a whole folder"""
    if r.kind == "rows":
        return True
    if r.kind != "files":
        return bool(r.streamed) and not _is_text(r.call)
    s = r.node if isinstance(r.node, ast.stmt) else _statement_of(file, r.node)
    if s is None or asked_for(file, s):
        return False
    around = file.places[s].function or file.tree
    return any(isinstance(n, ast.Call) and method(n) in _LISTS_FILES for n in walk(around)) or bool(
        r.streamed
    )


def _statement_of(file: Any, node: Any) -> Any:
    return next((s for s in file.statements if any(n is node for n in own(s))), None)


def _is_text(call: Any) -> bool:
    return isinstance(call, ast.Call) and method(call) in ("read_csv", "loadtxt", "genfromtxt")


def _code(node: Any) -> str:
    text = ast.unparse(node) if hasattr(ast, "unparse") else method(node)
    return text if len(text) < 60 else method(node) + "(...)"


def _words(file: Any, r: Read) -> str:
    if r.kind == "files":
        what = "every file is decoded into `%s` before the first step" % (r.name or "a list")
    elif r.kind == "rows":
        what = "every row is worked on before the first step and kept in `%s`" % (
            r.name or "a list"
        )
    elif r.kind == "lines":
        what = "every line of `%s` is kept in `%s` before the first step" % (
            _code(r.call),
            r.name or "a list",
        )
    else:
        what = "`%s` brings the whole data set into memory before the first step" % _code(r.call)
    if r.streamed:
        what += ", and `%s` only cuts batches from it" % r.streamed
    return "%s: %s%s" % (what, _cure(file, r), _copied(r))


def _copied(r: Read) -> str:
    lines = sorted(r.copies)
    if not lines:
        return ""
    names = ", ".join(map(str, lines[:3])) + (", ..." if len(lines) > 3 else "")
    many = len(lines) > 1
    return "; line%s %s make%s a copy of all of it: do that with each batch" % (
        "s" if many else "",
        names,
        "" if many else "s",
    )


def _cure(file: Any, r: Read) -> str:
    """What to write instead, in the user's own names"""
    if r.kind == "files":
        return "keep the paths and decode one batch at a time"
    if r.kind == "rows":
        return "`.map(function, batched=True)` keeps the result in a file that is mapped"
    if r.kind == "hdf":
        return "keep `%s` open and index it per batch" % _code(r.call.value)
    name = method(r.call)
    given = _code(r.call.args[0]) if r.call.args else "path"
    if name == "load" and (file.callee(r.call) or "") == "numpy.load":
        if given.rstrip("\"'").endswith(".npz") or _has_keys(file, r.name):
            return "arrays in an .npz cannot be mapped; save them as .npy and map those"
        return '`np.load(%s, mmap_mode="r")` reads only what a batch needs' % given
    if name in ("read_csv", "read_table", "read_json", "read_parquet", "open"):
        return "`memroom.Stream(%s)` brings rows as they are needed" % given
    return "store it in a form that is read by rows (.npy mapped, Arrow, HDF5)"


def _has_keys(file: Any, name: str) -> bool:
    """blob["x"]: what was loaded is an archive of arrays"""
    return any(
        isinstance(n, ast.Subscript) and key(n.value) == name and isinstance(constant(n.slice), str)
        for n in file.nodes
    )


def _mapped(file: Any, r: Read) -> Optional[List[List[Any]]]:
    """The edit that maps the file: `mmap_mode="r"` behind the arguments of np.load"""
    call = r.call
    if (
        r.kind != "file"
        or r.copies
        or not isinstance(call, ast.Call)
        or key(call.func) != "np.load"
    ):
        return None
    if _has_keys(file, r.name) or len(call.args) != 1 or call.keywords:
        return None
    if str(constant(call.args[0], "")).endswith(".npz"):
        return None
    return [after(call.args[0], ', mmap_mode="r"')]


def _bytes_on_disk(file: Any, call: Any) -> int:
    """The size of the file that is read, 0 where it is not known here"""
    path = constant(call.args[0]) if isinstance(call, ast.Call) and call.args else None
    if not isinstance(path, str):
        return 0
    for start in ("", os.path.dirname(file.path)):
        try:
            return os.stat(os.path.join(start, path)).st_size
        except (OSError, ValueError):
            continue
    return 0


def streams_of_arguments(file: Any, said: Set[str]) -> Iterator[Finding]:
    """class Batches(Sequence) that keeps the arrays it is given and cuts slices from them"""
    for c in file.classes.values():
        if not _is_stream(file, c) or c.name in said:
            continue
        methods = {f.name: f for f in c.body if isinstance(f, FUNCTIONS)}
        init, get = methods.get("__init__"), methods.get("__getitem__")
        if init is None or get is None:
            continue
        given = {a.arg for a in init.args.args[1:]}
        kept = {
            key(t): s
            for s in init.body
            if isinstance(s, ast.Assign)
            for t, v in pairs(s)
            if isinstance(v, ast.Name) and v.id in given and not _LABELS.search(v.id)
        }
        opens = any(
            isinstance(n, ast.Call) and re.search(r"open|load|read", method(n), re.I)
            for f in methods.values()
            for n in walk(f)
        )
        for n in walk(get):
            if isinstance(n, ast.Subscript) and key(n.value) in kept and not opens:
                if not isinstance(n.slice, ast.Slice):
                    continue
                yield finding(
                    "dataset-read-whole",
                    kept[key(n.value)],
                    "`%s` cuts batches from arrays that it is given: unless they are mapped from "
                    "disk, the whole data set lies in memory" % c.name,
                    hint=True,
                )
                break
