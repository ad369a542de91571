"""Dataset read whole before training.

severity: info
remedy: stream_data

All samples lie in host memory for the whole run, decoded ones many times larger than their files.
Each copy (astype, a split, a normalised version) comes on top.

Instead: Keep the paths and decode in `__getitem__`, or read from disk by rows:
`np.load(path, mmap_mode="r")`, np.memmap, LMDB, Arrow, `memroom.Stream(path)`.
"""

import ast
import re
from typing import Any, Iterator, List, Optional, Set, Tuple

from .. import evidence
from ..data import DECODES, asked_for, decodes
from ..findings import Finding, finding
from ..flow import in_order
from ..names import FUNCTIONS, File, Function, key, method, targets, walk, walk_here
from ..whole import check


def samples_read_whole(file: File) -> Iterator[Finding]:
    """A Dataset whose __init__ decodes every file into a list. Where the file makes no loader, what
    it is used for, and on how many samples, is decided elsewhere.
    """
    loaded = any(isinstance(n, ast.Call) and method(n).endswith("Loader") for n in file.nodes)
    for c in file.classes.values():
        if not any((file.dotted(b) or "").split(".")[-1] == "Dataset" for b in c.bases):
            continue
        for f in c.body:
            if not isinstance(f, FUNCTIONS) or f.name != "__init__":
                continue
            text = _whole_text(file, f)
            if text is not None:
                yield finding(
                    "dataset-read-whole",
                    text[0],
                    "the whole file is read into `%s`, one Python string a line: several times its "
                    "size in host memory, and each worker copies what it touches" % text[1],
                    hint=not loaded,
                )
                continue
            hit = _decodes_all(file, f)
            if hit is not None:
                yield finding(
                    "dataset-read-whole",
                    hit[0],
                    "every file is decoded into `%s` before the first batch: the whole dataset "
                    "stays in host memory" % hit[1],
                    hint=not loaded
                    or asked_for(file, hit[0])
                    or bool(_MASKS.search(hit[1]))
                    or any(evidence.few_rounds(x, file) for x in _rounds_of(file, hit[0])),
                )


def _rounds_of(file: File, s: Any) -> List[Any]:
    """The loops around a statement, and the comprehension in it."""
    comprehensions = [n for n in walk_here(s) if isinstance(n, (ast.ListComp, ast.DictComp))]
    return [*file.places[s].loops, *comprehensions]


# One byte a pixel, or less: small beside the pictures they belong to.
_MASKS = re.compile(r"mask|label|annot|box|target|palette", re.I)


# Names of what a list of files or of classes is called: a line each, and no sample in it.
_LISTING = re.compile(
    r"path|file|name|image|img|class|categor|label|vocab|(^|_|\.)(ids?|keys?|index|split|list)$",
    re.I,
)


def _opens_files(file: File, f: Function) -> bool:
    """Does the class open what the lines name? Then they are paths, not samples."""
    around = file.places[f].klass
    return around is not None and any(
        isinstance(n, ast.Call) and (file.callee(n) or "") in DECODES for n in walk(around)
    )


def _whole_text(file: File, f: Function) -> Any:
    """(statement, attribute) of self.lines = f.read().splitlines(), f.readlines(), list(f)"""
    opened = {
        key(item.optional_vars)
        for s in in_order(f.body)
        if isinstance(s, ast.With)
        for item in s.items
        if item.optional_vars is not None
        and isinstance(item.context_expr, ast.Call)
        and method(item.context_expr) == "open"
    }
    for s in in_order(f.body):
        if not isinstance(s, ast.Assign) or not isinstance(s.value, ast.Call):
            continue
        name, call = key(s.targets[0]) or "", s.value
        if not name.startswith("self.") or _LISTING.search(name) or _opens_files(file, f):
            continue
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        reads = isinstance(owner, ast.Call) and method(owner) in ("read", "read_text")
        if method(call) in ("splitlines", "split") and reads:
            return s, name
        if method(call) == "readlines" or (
            method(call) == "list" and call.args and key(call.args[0]) in opened
        ):
            return s, name
    return None


def _decodes_all(file: File, f: Any) -> Optional[Tuple[ast.stmt, str]]:
    """(statement, attribute) of self.x = [read(p) for p in paths] and self.x.append(read(p))"""
    read: Set[Any] = set()  # variables that hold a decoded sample
    for s in in_order(f.body):
        if isinstance(s, ast.Assign):
            name = key(s.targets[0]) or ""
            loops = file.places[s].loops
            if loops and decodes(file, s.value, read):
                read.update(k for k in map(key, targets(s)) if k)
            if name.startswith("self.") and isinstance(s.value, (ast.ListComp, ast.DictComp)):
                made = s.value.value if isinstance(s.value, ast.DictComp) else s.value.elt
                if decodes(file, made, read):
                    return s, name
        if isinstance(s, ast.Expr) and isinstance(s.value, ast.Call) and file.places[s].loops:
            call = s.value
            name = key(call.func.value) if isinstance(call.func, ast.Attribute) else None
            if method(call) == "append" and name and name.startswith("self.") and call.args:
                if decodes(file, call.args[0], read):
                    return s, name
    return None


CHECKS = (samples_read_whole, check)
