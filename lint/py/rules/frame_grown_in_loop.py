"""Frame grown piece by piece.

severity: warning
remedy: stream_data

Every concat copies all earlier rows into a new frame. At the last piece the data exists twice.

Instead: Gather the pieces in a list and join them once: `pd.concat(parts)`. Or write them to
Parquet one by one.
"""

import ast
import re
from typing import Any, Iterator

from .. import evidence
from ..data import READ_WHOLE
from ..findings import finding
from ..flow import in_order, resets
from ..names import File, constant, key, method, own, targets, walk, walk_here

# Names of things that come in pieces: files, days, shards.
_PIECES = re.compile(r"path|file|chunk|shard|part|csv|parquet|reader|glob|listdir", re.I)


def frames_grown(file: File) -> Iterator[Any]:
    """frame = pd.concat([frame, day]) in a loop over files"""
    if "pandas" not in file.modules:
        return
    for s in file.statements:
        place = file.places[s]
        if not place.loops or not isinstance(s, ast.Assign) or not isinstance(s.value, ast.Call):
            continue
        name, call = key(s.targets[0]), s.value
        joins = (file.callee(call) or "") == "pandas.concat" and call.args
        appends = (
            method(call) == "append"
            and isinstance(call.func, ast.Attribute)
            and key(call.func.value) == name
        )
        if not name or not (joins or appends):
            continue
        parts = (
            call.args[0].elts if joins and isinstance(call.args[0], (ast.List, ast.Tuple)) else []
        )
        if joins and not any(key(p) == name for p in parts):
            continue
        loop = place.loops[-1]
        if resets(loop, name, None) and any(
            x is not s and any(key(g) == name for g in targets(x)) for x in in_order(loop.body)
        ):
            continue
        if not _over_pieces(file, loop) or evidence.few_rounds(loop, file):
            continue
        yield finding(
            "frame-grown-in-loop",
            s,
            "`%s` is copied whole in every round to add a piece: at the end the data exists twice"
            % name,
            hint=not _reads_pieces(file, loop)
            or _small_tables(s, loop)
            or not _large_pieces(file, loop),
        )


_NOTES = re.compile(
    r"bbox|bounding|annot|label|meta|(^|_)folds?($|_)|score|result|metric|stat(s|istics)?(_|$)|summary|"
    r"history|class|categor|info",
    re.I,
)


def _small_tables(s: Any, loop: Any) -> bool:
    """Tables about the data: boxes, labels, scores. A row of them is some numbers."""
    words = [
        n.id if isinstance(n, ast.Name) else getattr(n, "attr", None) or str(constant(n))
        for node in (s, *(x for x in in_order(loop.body) if isinstance(x, ast.Assign)))
        for n in own(node)
        if isinstance(n, (ast.Name, ast.Attribute))
        or isinstance(n, ast.Constant)
        and isinstance(n.value, str)
    ]
    return any(_NOTES.search(w) for w in words)


def _large_pieces(file: File, loop: Any) -> bool:
    """Formats that are for much data, and reading by chunks"""
    return any(
        isinstance(n, ast.Call)
        and (method(n) in ("read_parquet", "read_feather", "read_hdf", "ParquetFile", "read_table"))
        or isinstance(n, ast.keyword)
        and n.arg == "chunksize"
        or isinstance(n, (ast.Name, ast.Attribute))
        and bool(re.search(r"chunk|shard", key(n) or "", re.I))
        for n in walk(loop)
    )


def _reads_pieces(file: File, loop: Any) -> bool:
    """What is added is read from a file, or comes in chunks: not rows that are made up here."""
    called = [
        file.callee(n) or "" for s in in_order(loop.body) for n in own(s) if isinstance(n, ast.Call)
    ]
    called += [
        file.callee(n) or ""
        for name in called
        if name in file.plain_functions
        for n in walk(file.plain_functions[name])
        if isinstance(n, ast.Call)
    ]
    return any(name in READ_WHOLE for name in called) or any(
        re.search(r"chunk|shard|reader|part|frame|day|csv|parquet", key(n) or "", re.I)
        for n in [*walk_here(loop.iter), *targets(loop)]
    )


def _over_pieces(file: File, loop: Any) -> bool:
    """A loop over files or chunks, or one that reads a file in every round."""
    if not isinstance(loop, ast.For):
        return False
    names = [key(n) or "" for n in walk_here(loop.iter)] + [key(t) or "" for t in targets(loop)]
    names += [method(n) for n in walk_here(loop.iter) if isinstance(n, ast.Call)]
    return any(_PIECES.search(n) for n in names) or any(
        isinstance(n, ast.Call) and (file.callee(n) or "") in READ_WHOLE
        for s in in_order(loop.body)
        for n in own(s)
    )


CHECKS = (frames_grown,)
