"""Data loading: what workers, prefetching, caches and buffers hold in host memory."""

import ast
import re
from typing import Iterator, Optional

from . import evidence, rules
from .flow import in_order
from .names import FUNCTIONS, constant, key, keyword, method, pairs, targets, walk, walk_here

_CACHE = re.compile(r"cache|memo|buffer|loaded|stored|_data$|store", re.I)
LARGE_BATCH = 512  # samples
MANY_WORKERS = 16
FEW_WORKERS = 2  # four batches in all
VERY_DEEP = 32  # batches that each worker holds ready


def _loader_calls(file):
    for call in file.nodes:
        if isinstance(call, ast.Call):
            last = (file.callee(call) or "").split(".")[-1]
            if last in ("DataLoader", "WebLoader", "StatefulDataLoader"):
                yield call


def _workers(call) -> object:
    """The number of workers, "cpus" where it is the machine's cores, None where it is unknown, 0
    where there are none.
    """
    value = keyword(call, "num_workers")
    if value is None:
        return None if any(k.arg is None for k in call.keywords) else 0  # **common may hold it
    if isinstance(value, ast.Constant):
        return value.value
    if any(
        isinstance(n, ast.Call) and method(n) in ("cpu_count", "process_cpu_count")
        for n in walk_here(value)
    ):
        return "cpus"
    return None


def buffers(file) -> Iterator[dict]:
    """Workers times prefetched batches, and workers that stay alive between epochs"""
    for call in _loader_calls(file):
        workers = _workers(call)
        if workers == 0:
            continue
        size = keyword(call, "batch_size") or (call.args[1] if len(call.args) > 1 else None)
        batch = constant(size, 1)
        prefetch = constant(keyword(call, "prefetch_factor"), 2)
        stays = constant(keyword(call, "persistent_workers")) is True
        streams = _streams(file, call)
        large = isinstance(batch, int) and batch >= LARGE_BATCH
        many = workers == "cpus" or isinstance(workers, int) and workers >= MANY_WORKERS
        deep = isinstance(prefetch, int) and prefetch >= 8
        very_deep = isinstance(prefetch, int) and prefetch >= VERY_DEEP
        if stays and (streams or large or many) and not (deep and many):
            yield rules.finding(
                "loader-buffers",
                call,
                "persistent_workers keeps every worker alive between epochs, and with it its "
                "batches, shuffle buffers and open shards",
                hint=not streams
                and (not large or isinstance(workers, int) and workers <= FEW_WORKERS),
            )
        elif large and many or deep and (many or large) or very_deep:
            yield rules.finding(
                "loader-buffers",
                keyword(call, "prefetch_factor") or keyword(call, "num_workers") or call,
                "%s each hold %s batches%s ready: all of them lie in host memory at once"
                % (
                    "as many workers as cores"
                    if workers == "cpus"
                    else "the workers"
                    if workers is None
                    else "%s workers" % workers,
                    prefetch,
                    " of %d samples" % batch if isinstance(batch, int) and batch > 1 else "",
                ),
            )


def _streams(file, call) -> bool:
    if (file.callee(call) or "").endswith("WebLoader"):
        return True
    first = call.args[0] if call.args else keyword(call, "dataset")
    name = _class_of(file, first)
    c = file.classes.get(name or "")
    return c is not None and any(
        (file.dotted(b) or "").endswith("IterableDataset") for b in c.bases
    )


def _class_of(file, node) -> Optional[str]:
    if isinstance(node, ast.Call):
        return (file.callee(node) or "").split(".")[-1]
    return file.class_of(key(node)) if node is not None else None


def caches(file) -> Iterator[dict]:
    """self.cache[i] = item in __getitem__, lru_cache on it"""
    workers = [_workers(c) for c in _loader_calls(file)]
    parallel = any(w != 0 for w in workers)
    for c in file.classes.values():
        if not any((file.dotted(b) or "").split(".")[-1].endswith("Dataset") for b in c.bases):
            continue
        for f in [f for f in c.body if isinstance(f, FUNCTIONS)]:
            if not _reads_items(c, f):
                continue
            hit = _unbounded_lru(file, f) or _stores_items(c, f)
            if hit is None or hit[0] in file.places and evidence.keeps_little(file, hit[0]):
                continue
            yield rules.finding(
                "dataset-cache-per-worker" if parallel else "dataset-cache-grows",
                hit[0],
                "%s keeps every sample that is read%s"
                % (hit[1], ", and each worker keeps its own copy" if parallel else ""),
                # Who loads from it, and how, is decided elsewhere.
                hint=not workers
                or not parallel
                and isinstance(hit[0], ast.Assign)
                and (_rows_at_hand(c, hit[0].value) or not reads_sample(c, f, hit[0].value)),
            )


def _reads_items(c, f) -> bool:
    """__getitem__, or a method that it calls."""
    if f.name == "__getitem__":
        return True
    get = next((g for g in c.body if isinstance(g, FUNCTIONS) and g.name == "__getitem__"), None)
    return get is not None and any(
        isinstance(n, ast.Call) and key(n.func) == "self." + f.name for n in walk_here(get)
    )


def _unbounded_lru(file, f):
    for d in f.decorator_list:
        name = (file.dotted(d.func if isinstance(d, ast.Call) else d) or "").split(".")[-1]
        if name == "cache":
            return d, "`functools.cache` on `%s`" % f.name
        if name == "lru_cache" and isinstance(d, ast.Call):
            size = d.args[0] if d.args else keyword(d, "maxsize")
            if isinstance(size, ast.Constant) and (size.value is None or size.value > 4096):
                return d, "`lru_cache` on `%s`" % f.name
    return None


def _stores_items(c, f):
    """self.x[index] = ..., where index is a parameter and x is a dict or list of this object."""
    indexes = {a.arg for a in f.args.args[1:]}
    for s in in_order(f.body):  # name = self.names[index] stands for the index
        if isinstance(s, ast.Assign):
            names = {n.id for n in walk_here(s.value) if isinstance(n, ast.Name)}
            if names & indexes and isinstance(s.value, (ast.Subscript, ast.Name, ast.BinOp)):
                indexes |= {t.id for t in targets(s) if isinstance(t, ast.Name)}
    for s in walk_here(f):
        if not isinstance(s, ast.Assign):
            continue
        for t in targets(s):
            if not isinstance(t, ast.Subscript) or key(t.value) is None:
                continue
            name = key(t.value)
            index = t.slice
            if index.__class__.__name__ == "Index":
                index = getattr(index, "value", index)
            if (
                name.startswith("self.")
                and any(isinstance(n, ast.Name) and n.id in indexes for n in walk_here(index))
                and (_CACHE.search(name) or _starts_empty(c, name))
                and not _evicts(c, name)
                and not _limited(c, name)
                and not NOTES.search(name)
                and not isinstance(s.value, ast.Constant)
                and not _is_small(s.value)
            ):
                return s, "`%s`" % name
    return None


_CONVERTS = frozenset(
    "list tuple tensor as_tensor from_numpy array asarray Tensor FloatTensor copy clone".split()
)
_ARRAYS = frozenset("array asarray stack vstack concatenate zeros to_numpy read_csv".split())
_SMALL_SETS = frozenset("MNIST FashionMNIST KMNIST EMNIST QMNIST USPS CIFAR10 CIFAR100".split())


def _rows_at_hand(c, value) -> bool:
    """torch.tensor(self.x[i]), where self.x is an array of this object or a set that is known to be
    small: no file is read again, the cache only saves the conversion.
    """
    if {method(n) for n in walk_here(value) if isinstance(n, ast.Call)} - _CONVERTS:
        return False
    rows = {key(n.value) for n in walk_here(value) if isinstance(n, ast.Subscript)}
    made = {
        name: method(n)
        for s in walk(c)
        if isinstance(s, ast.Assign)
        for name in {key(t) for t in targets(s)}
        for n in walk_here(s.value)
        if isinstance(n, ast.Call) and method(n) in _ARRAYS | _SMALL_SETS
    }
    return bool(rows & set(made))


# Tools that are made once for each kind of file, and notes about a sample: not the sample.
NOTES = re.compile(
    r"landmark|key_?point|box|label|annot|meta|info|len|size|shape|count|offset|handle|reader|"
    r"resampl|transform|tokeni[sz]er|lock",
    re.I,
)


def is_tool(value) -> bool:
    """Resample(rate, new_rate), h5py.File(path): an object, whose class begins with a capital"""
    name = method(value) if isinstance(value, ast.Call) else ""
    return name[:1].isupper() and not name.isupper() and not name.endswith("Tensor")


def reads_sample(c, f, value) -> bool:
    """Is what is kept read from a file here, or by a method that reads one?"""
    made = [value]
    names = {n.id for n in walk_here(value) if isinstance(n, ast.Name)}
    for s in in_order(f.body):
        if isinstance(s, ast.Assign) and any(key(t) in names for t in targets(s)):
            made.append(s.value)
    helpers = {g.name: g for g in c.body if isinstance(g, FUNCTIONS) and g is not f}
    todo = [n for m in made for n in walk_here(m) if isinstance(n, ast.Call)]
    inside = [
        n
        for call in todo
        for g in [helpers.get(method(call) or "")]
        if g is not None and (key(call.func) or "").startswith("self.")
        for n in walk(g)
        if isinstance(n, ast.Call)
    ]
    return any(_READS.search(method(n) or "") for n in todo + inside)


_READS = re.compile(r"read|load|open|decode|get_fdata|fetch|parse", re.I)


def _is_small(value) -> bool:
    """image.shape, len(text), counts[i] + 1: a few numbers, no sample"""
    return is_tool(value) or any(
        isinstance(n, ast.Attribute)
        and n.attr in ("shape", "size", "ndim", "dtype")
        or isinstance(n, ast.Call)
        and method(n) in ("len", "size", "int", "float", "sum", "mean", "max", "min")
        for n in walk_here(value)
    )


def _starts_empty(c, name: str) -> bool:
    """self.images = {} or [None] * n in __init__: it is there to be filled."""
    return any(
        prefix + (key(target) or "") == name
        and (
            isinstance(value, ast.Dict)
            and not value.keys
            or isinstance(value, ast.Call)
            and method(value) in ("dict", "defaultdict", "OrderedDict")
            and not value.keywords
            or isinstance(value, ast.BinOp)
            and isinstance(value.left, ast.List)
        )
        for n, prefix in [
            (n, "")
            for f in c.body
            if isinstance(f, FUNCTIONS) and f.name == "__init__"
            for n in walk_here(f)
        ]
        + [(n, "self.") for n in c.body]
        if isinstance(n, (ast.Assign, ast.AnnAssign)) and n.value is not None
        for target, value in pairs(n)
    )


def _limited(c, name: str) -> bool:
    """if len(self.cache) < self.cache_size: the cache has a bound"""
    return any(
        isinstance(n, ast.Compare)
        and any(
            isinstance(x, ast.Call) and method(x) == "len" and x.args and key(x.args[0]) == name
            for x in [n.left, *n.comparators]
        )
        and any(isinstance(o, (ast.Lt, ast.LtE, ast.Gt, ast.GtE)) for o in n.ops)
        for n in walk(c)
    )


def _evicts(c, name: str) -> bool:
    return any(
        isinstance(n, ast.Call)
        and isinstance(n.func, ast.Attribute)
        and n.func.attr in ("pop", "popitem", "clear")
        and key(n.func.value) == name
        or isinstance(n, ast.Delete)
        and any(key(getattr(t, "value", t)) == name for t in n.targets)
        for n in walk(c)
    )
