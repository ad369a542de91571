"""Data that is loaded whole."""

import ast
import re
from typing import Any, Iterator, List, Optional, Set, Tuple

from .flow import in_order, variables
from .names import FUNCTIONS, File, constant, key, keyword, method, own, targets, walk, walk_here
from .tensorflow import LOADING


def _loaders(file: File) -> Set[str]:
    """Variables that are DataLoaders, by what they are made from."""
    return {
        key(t)
        for n in file.nodes
        if isinstance(n, ast.Assign)
        and isinstance(n.value, ast.Call)
        and (file.callee(n.value) or "").split(".")[-1] == "DataLoader"
        for t in n.targets
        if key(t)
    }


def moves_to_gpu(node: ast.AST) -> Any:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr == "cuda":
        return True
    return (
        node.func.attr == "to"
        and bool(node.args)
        and (
            str(constant(node.args[0], "")).startswith("cuda")
            or "device" in (key(node.args[0]) or "").lower()
        )
    )


def gathers_on_gpu(file: File, node: ast.ListComp) -> bool:
    """[x.to(device) for x in loader], [torch.load(p).cuda() for p in paths]"""
    batch = variables(node.generators[0].target)
    return any(loads_to_gpu(file, n) for n in walk_here(node.elt)) or any(
        moves_to_gpu(e) and is_batch(e, batch) for e in _parts(node.elt)
    )


def _parts(element: ast.expr) -> List[ast.expr]:
    """(x.to(device), y) -> x.to(device), y"""
    return element.elts if isinstance(element, (ast.Tuple, ast.List)) else [element]


def hub_datasets(file: File) -> Set[str]:
    """Variables that are one split of a Hugging Face dataset: mapped from disk until listed."""
    return {
        key(t)
        for n in file.nodes
        if isinstance(n, ast.Assign)
        and isinstance(n.value, ast.Call)
        and (file.callee(n.value) or "") == "datasets.load_dataset"
        and isinstance(constant(keyword(n.value, "split")), str)
        and "[" not in constant(keyword(n.value, "split"))
        for t in n.targets
        if key(t)
    }


SUMMARY = frozenset("len size shape mean std sum max min item".split())


def loads_to_gpu(file: File, node: ast.AST) -> bool:
    """torch.load(f).cuda(), torch.from_numpy(np.load(f)).to(device)"""
    return moves_to_gpu(node) and any(
        isinstance(n, ast.Call) and (file.callee(n) or "") in _FILES for n in walk_here(node)
    )


_FILES = ("torch.load", "numpy.load", "torchaudio.load", "torchvision.io.read_image")


def iterated(over: ast.expr) -> ast.expr:
    if isinstance(over, ast.Call) and method(over) in ("enumerate", "tqdm") and over.args:
        return over.args[0]
    return over


def is_batch(value: ast.expr, names: Set[str]) -> bool:
    """x, x.to(device), x[0], x.float().cuda(): the data itself, not what a model makes of it."""
    while True:
        if key(value) in names:
            return True
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            if value.func.attr not in ("to", "cuda", "float", "half", "long", "view", "clone"):
                return False
            value = value.func.value
        elif isinstance(value, ast.Subscript):
            value = value.value
        else:
            return False


READ_WHOLE = LOADING + ("torch.load", "pandas.read_json", "pandas.read_excel", "pandas.read_table")


def lists_and_workers(file: File) -> Iterator[Tuple[Any, ...]]:
    """(DataLoader, class, attribute, workers, where the list is filled, whether it is small) of
    datasets that keep Python objects and are read by many workers
    """
    keeping = {
        name: attribute
        for name, c in file.classes.items()
        for attribute in [_python_list(file, c)]
        if attribute
    }
    if not keeping:
        return
    made = {
        key(t): (file.callee(n.value) or "").split(".")[-1]
        for n in file.nodes
        if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call)
        for t in n.targets
        if key(t)
    }
    for call in file.nodes:
        if (
            not isinstance(call, ast.Call)
            or (file.callee(call) or "").split(".")[-1] != "DataLoader"
            or not call.args
        ):
            continue
        workers = _asked_workers(file, keyword(call, "num_workers"))
        first = call.args[0]
        name = (
            (file.callee(first) or "").split(".")[-1]
            if isinstance(first, ast.Call)
            else made.get(key(first))
        )
        if name in keeping and isinstance(workers, int) and workers >= 4:
            gathered = _gathering(file, file.classes[name], keeping[name])
            small = (
                _names_files(file.classes[name], gathered)
                or _describes(file.classes[name], keeping[name])
                or _only_looked_at(file, call)
            )
            yield call, name, keeping[name], workers, gathered, small


def _only_looked_at(file: File, call: ast.Call) -> bool:
    """x, y = next(iter(loader)), and no loop over it"""
    names = {
        key(t)
        for s in file.statements
        if isinstance(s, ast.Assign) and s.value is call
        for t in targets(s)
    } - {None}
    uses = [
        n
        for n in file.nodes
        if isinstance(n, ast.Name) and n.id in names and isinstance(n.ctx, ast.Load)
    ]
    looked = [
        n
        for n in file.nodes
        if isinstance(n, ast.Call) and method(n) in ("iter", "len", "print")
        for a in n.args
        if key(a) in names
    ]
    return bool(uses) and len(uses) == len(looked)


def _describes(c: ast.ClassDef, name: str) -> bool:
    """self.metadata = json.load(f), self.categories: what is said about the samples, not the
    samples, which __getitem__ takes one by one.
    """
    if re.search(r"meta|config|info$|stats?$|class|split|vocab|mapping|^cat($|s$|eg)", name, re.I):
        return True
    taken = {
        (key(n.value) or "").split(".")[-1]
        for f in c.body
        if isinstance(f, FUNCTIONS) and f.name not in ("__init__", "__len__")
        for n in walk(f)
        if isinstance(n, ast.Subscript)
    }
    return bool(taken) and name not in taken


def _names_files(c: ast.ClassDef, gathered: Any) -> bool:
    """Whether the list holds names of files, of which there may be a hundred: __getitem__, or what
    it calls of the class, reads one. An index of records is as long as the data set.
    """
    made = getattr(gathered, "value", None)
    given = made.args[0] if isinstance(made, ast.Call) and made.args else made
    if isinstance(getattr(given, "elt", given), ast.Dict):
        return False
    methods = {f.name: f for f in c.body if isinstance(f, FUNCTIONS) and f.name != "__init__"}
    waiting, seen = ["__getitem__"], set()
    while waiting:
        name = waiting.pop()
        if name in seen or name not in methods:
            continue
        seen.add(name)
        for n in walk(methods[name]):
            if isinstance(n, ast.Name) and re.search(r"path|file|fname", n.id, re.I):
                return True
            if isinstance(n, ast.Call):
                if _READS.search(method(n)):
                    return True
                waiting.append(method(n))
    return False


_READS = re.compile(r"^open$|^File$|^(im|safe_|pil_|cv)?_?(read|load)(_|$)|_?loader$|Video|decode_")


def _asked_workers(file: File, value: Optional[ast.expr]) -> Any:
    """The number, or the default of the command-line argument that gives it."""
    if isinstance(value, ast.Attribute):
        for n in file.nodes:
            if isinstance(n, ast.Call) and method(n) == "add_argument":
                names = [str(constant(a, "")).lstrip("-").replace("-", "_") for a in n.args]
                if value.attr in names:
                    return constant(keyword(n, "default"), 0)
    return constant(value, 0)


def _gathering(file: File, c: ast.ClassDef, attribute: str) -> Any:
    """The statement in __init__ that puts objects into self.attribute."""
    init = next((f for f in c.body if isinstance(f, FUNCTIONS) and f.name == "__init__"), None)
    for s in in_order(init.body) if init is not None else ():
        if isinstance(s, ast.Assign) and key(s.targets[0]) == "self." + attribute:
            if isinstance(s.value, (ast.ListComp, ast.Call)):
                return s
        for n in own(s):
            if (
                isinstance(n, ast.Call)
                and method(n) in ("append", "extend")
                and isinstance(n.func, ast.Attribute)
                and key(n.func.value) == "self." + attribute
            ):
                return s
    return None


def _is_array(file: File, arguments: List[ast.expr], arrays: Any = frozenset()) -> bool:
    """self.xs.append(np.load(path)): few arrays, whose pages reading does not change"""
    return bool(arguments) and any(
        isinstance(n, ast.Call)
        and (file.callee(n) or "").startswith(("numpy.", "torch."))
        or isinstance(n, ast.Name)
        and n.id in arrays
        for n in walk_here(arguments[0])
    )


def _arrays(file: File, f: Any) -> Set[str]:
    """Variables of a function that hold arrays, or parts of them."""
    found: Set[str] = set()
    for s in in_order(f.body):
        if isinstance(s, ast.Assign) and _is_array(file, [s.value], found):
            found.update(n.id for t in s.targets for n in walk(t) if isinstance(n, ast.Name))
    return found


_MODES = re.compile(r"(^|_|\.)(mode|split|phase|subset|stage|(is_)?(train|test|val)\w*)$", re.I)


def _of_one_mode(file: File, s: ast.stmt) -> bool:
    """if mode == "test": self.rows.append(...): which dataset is meant is not known"""
    return any(
        _MODES.search(key(n) or "")
        for i in file.places[s].ifs
        if isinstance(i, ast.If)
        for n in walk_here(i.test)
        if isinstance(n, (ast.Name, ast.Attribute))
    )


def _python_list(file: File, c: ast.ClassDef) -> Optional[str]:
    """The attribute of a Dataset in which __init__ gathers Python objects one by one."""
    if not any(
        (file.dotted(b) or "").split(".")[-1] in ("Dataset", "IterableDataset") for b in c.bases
    ):
        return None
    for f in c.body:
        if not isinstance(f, FUNCTIONS) or f.name != "__init__":
            continue
        arrays = _arrays(file, f)
        joined = {
            key(t)
            for s in in_order(f.body)
            if isinstance(s, ast.Assign) and _is_array(file, [s.value])
            for t in targets(s)
        }  # self.images = np.vstack(self.images)
        for node in [
            n for s in in_order(f.body) if not _of_one_mode(file, s) for n in (s, *own(s))
        ]:
            if (
                isinstance(node, ast.Call)
                and method(node) in ("append", "extend")
                and isinstance(node.func, ast.Attribute)
            ):
                name = key(node.func.value) or ""
                if name in joined:
                    continue
                if name.startswith("self.") and not _is_array(file, node.args, arrays):
                    return name.split(".", 1)[1]
            if isinstance(node, ast.Assign) and (
                isinstance(node.value, ast.ListComp)
                and not _is_array(file, [node.value.elt], arrays)
                or isinstance(node.value, ast.Call)
                and (
                    method(node.value) in ("tolist", "readlines", "splitlines")
                    or (file.callee(node.value) or "") in ("json.load", "json.loads")
                )
            ):
                name = key(node.targets[0]) or ""
                if name.startswith("self."):
                    return name.split(".", 1)[1]
    return None


_PRELOADS = re.compile(r"pre_?load|cach|in_?memory|to_?ram|load_?(all|into)|keep", re.I)


def asked_for(file: File, s: ast.stmt) -> bool:
    """if self.preload: the user chose to hold it all"""
    place = file.places.get(s)
    return place is not None and any(
        _PRELOADS.search(key(n) or "")
        for i in place.ifs
        if isinstance(i, ast.If)
        for n in walk(i.test)
        if isinstance(n, (ast.Name, ast.Attribute))
    )


DECODES = (
    "PIL.Image.open",
    "cv2.imread",
    "imageio.imread",
    "skimage.io.imread",
    "matplotlib.pyplot.imread",
    "torchvision.io.read_image",
    "torchaudio.load",
    "librosa.load",
    "soundfile.read",
    "numpy.load",
    "nibabel.load",
)


def decodes(file: File, value: ast.expr, read: Set[str]) -> bool:
    if any(
        isinstance(n, ast.Attribute) and n.attr in SUMMARY for n in walk_here(value)
    ):  # Image.open(p).size
        return False
    return any(
        isinstance(n, ast.Call)
        and (file.callee(n) or "") in DECODES
        and keyword(n, "mmap_mode") is None
        or isinstance(n, ast.Name)
        and n.id in read
        for n in walk_here(value)
    )


def trains(file: File) -> bool:
    return any(
        isinstance(n, ast.Call)
        and (method(n) in ("fit", "backward", "step", "train") or "Trainer" in method(n))
        for n in file.nodes
    )
