"""TensorFlow and Keras."""

import ast
import re
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

from .flow import in_order
from .names import (
    File,
    constant,
    key,
    keyword,
    method,
    targets,
    walk,
)

LOADING = (
    "numpy.load",
    "numpy.loadtxt",
    "numpy.genfromtxt",
    "numpy.fromfile",
    "pandas.read_csv",
    "pandas.read_parquet",
    "pandas.read_pickle",
    "pandas.read_hdf",
    "pandas.read_feather",
    "pickle.load",
    "joblib.load",
    "h5py.File",
    "scipy.io.loadmat",
)


def uses(file: File) -> bool:
    return "tensorflow" in file.modules or "keras" in file.modules


def _loaded(file: File) -> Dict[str, str]:
    """Variables that hold a whole file's content."""
    found = {}
    for s in file.statements:
        if isinstance(s, ast.Assign) and isinstance(s.value, ast.Call):
            name = file.callee(s.value) or ""
            if name in LOADING and constant(keyword(s.value, "mmap_mode")) is None:
                for t in targets(s):
                    if key(t):
                        found[key(t)] = name
    return found


# A number or a name for each sample: small beside the samples.
_SMALL = re.compile(r"label|target|path|name|file|(^|_)ids?($|_)|(^|_)y($|_)|vocab", re.I)


def whole_arrays(file: File) -> Iterator[Tuple[ast.Call, str, str, str]]:
    """(call, its function, samples, what read them) of tf.constant(data) and the like, for data
    that was read whole
    """
    if "tensorflow" not in file.modules:
        return
    loaded = _loaded(file)
    for call in file.nodes:
        if not isinstance(call, ast.Call) or not call.args:
            continue
        first = call.args[0]
        parts = first.elts if isinstance(first, (ast.Tuple, ast.List)) else [first]
        part, reader = _samples_of(file, parts, loaded)
        if reader is not None:
            yield call, file.callee(call) or "", part, reader


# Numbers written as text are seldom as large as memory.
TEXT_TABLES = ("pandas.read_csv", "numpy.loadtxt", "numpy.genfromtxt")


def _samples_of(
    file: File, parts: List[ast.expr], loaded: Dict[str, str]
) -> Tuple[str, Optional[str]]:
    """The first part that is not small by its name, and what read it: the samples themselves. What
    stands behind them in a tuple (lengths, weights) is small beside them.
    """
    for p in parts:
        inline = (file.callee(p) or "") if isinstance(p, ast.Call) else ""
        name = ast_name(p) if inline else key(p) or ""
        if name and _SMALL.search(name):
            continue
        return name, inline if inline in LOADING else loaded.get(name)
    return "", None


def ast_name(call: Any) -> str:
    return key(call.func) or "the array"


# models built in a loop


def builds(file: File, call: ast.Call, builders: Set[Any]) -> bool:
    name = file.callee(call) or ""
    last = name.split(".")[-1]
    if last in builders:
        return True
    return last in ("Sequential", "Model") and ("keras" in name or "keras" in file.modules)


def _builders(file: File) -> Set[Any]:
    """Functions that return a Keras model, and subclasses of keras.Model."""
    found = {
        name
        for name, c in file.classes.items()
        if any(
            (file.dotted(b) or "").endswith(("keras.Model", "models.Model"))
            or (file.dotted(b) or "") == "keras.Model"
            for b in c.bases
        )
    }
    for name, f in file.plain_functions.items():
        makes = any(
            isinstance(n, ast.Call)
            and (file.callee(n) or "").split(".")[-1] in ("Sequential", "Model")
            and "keras" in (file.callee(n) or "")
            for n in walk(f)
        )
        if makes and any(
            isinstance(n, ast.Return) and n.value is not None for n in in_order(f.body)
        ):
            found.add(name)
    return found


def fits(loop: Any, name: str) -> bool:
    return any(
        isinstance(n, ast.Call)
        and isinstance(n.func, ast.Attribute)
        and n.func.attr in ("fit", "fit_generator", "train_on_batch")
        and key(n.func.value) == name
        for n in walk(loop)
    )


def clears(loop: Any) -> bool:
    return any(
        isinstance(n, ast.Call)
        and method(n) in ("clear_session", "reset_default_graph", "Process", "Pool")
        for n in walk(loop)
    )


# tf.data


# Bytes of a decoded sample, float32, and samples of the sets that Keras and tfds bring along.
_KNOWN_SETS = {
    "mnist": (28 * 28 * 4, 70_000),
    "fashion_mnist": (28 * 28 * 4, 70_000),
    "kmnist": (28 * 28 * 4, 70_000),
    "cifar10": (32 * 32 * 3 * 4, 60_000),
    "cifar100": (32 * 32 * 3 * 4, 60_000),
    "imdb": (4 << 10, 50_000),
    "reuters": (4 << 10, 11_228),
    "boston_housing": (52, 506),
    "iris": (16, 150),
}


_SMALL_SET = 1 << 30  # bytes; the machines that train have more to spare


def small_set(file: File, size: Any) -> bool:
    """Is the data a set whose size is known and small? size: samples that the buffer asks for."""
    named = {
        n.attr if isinstance(n, ast.Attribute) else n.value if isinstance(n, ast.Constant) else n.id
        for n in file.nodes
        if isinstance(n, (ast.Attribute, ast.Name))
        or isinstance(n, ast.Constant)
        and isinstance(n.value, str)
    } | {a.split(".")[-1] for a in file.aliases.values()}
    # "/data/CIFAR10/test" names the set too
    parts = {p.lower() for x in named if isinstance(x, str) for p in re.split(r"[\\/.\s]", x)}
    known = [_KNOWN_SETS[x] for x in parts if x in _KNOWN_SETS]
    if not known:
        return False
    return all(
        sample * (min(size, count) if isinstance(size, int) else count) < _SMALL_SET
        for sample, count in known
    )
