"""What datasets holds in memory.

severity: info
remedy: stream_data

Readers and map() work on large pieces, one for each process. keep_in_memory=True or one batch
of everything gives up memory mapping.

Instead: Use fewer processes (num_proc=2), a smaller writer_batch_size, Parquet instead of JSON,
or streaming=True.
"""

import ast
import re
from typing import Any, Iterator, List, Optional

from ..findings import Finding, finding
from ..names import constant, key, keyword, method, walk, walk_here

WRITTEN_AT_ONCE = 1000  # rows that a process gathers before it writes them, unless it is told


MANY_ROWS = 5000


MANY_LARGE_ROWS = 8000  # in all processes together: 8 GB of spectrograms


CORES = 8  # at least, of a machine that somebody trains on


# Columns of which a row takes a megabyte, where one of text takes a kilobyte.
_LARGE_COLUMN = re.compile(
    r"^(pixel_values|input_features|input_values|(\w+_)?(embeddings?|hidden_states?|spectrogram|"
    r"waveform|latents?|mel|frames|images?|audio))$"
)


_LARGE_FEATURES = ("Audio", "Image", "Video", "Array2D", "Array3D", "Array4D", "Array5D")


def buffers(file: Any) -> Iterator[Finding]:
    """datasets: what map and the JSON reader hold"""
    if "datasets" not in file.modules:
        return
    asked = False  # one decision, written at each step
    for call in file.nodes:
        if not isinstance(call, ast.Call):
            continue
        if file.callee(call) == "datasets.load_dataset":
            yield from _json(file, call)
        if constant(keyword(call, "keep_in_memory")) is True:
            yield finding(
                "datasets-buffers",
                keyword(call, "keep_in_memory"),
                "keep_in_memory=True holds the whole dataset in host memory instead of mapping it "
                "from disk",
                hint=asked,
            )
            asked = True
        elif method(call) == "map":
            yield from _mapped(file, call)


def _json(file: Any, call: ast.Call) -> Iterator[Finding]:
    """load_dataset("json", data_dir=folder, num_proc=32)"""
    processes = keyword(call, "num_proc")
    form = call.args[0] if call.args else keyword(call, "path")
    if constant(form) != "json" or processes is None or constant(processes, 2) in (None, 1):
        return
    lowered = constant(keyword(call, "writer_batch_size"), WRITTEN_AT_ONCE)
    large = isinstance(lowered, int) and lowered < WRITTEN_AT_ONCE or _casts_to_large(file)
    yield finding(
        "datasets-buffers",
        call,
        "the JSON reader parses a file in large pieces, and each of the num_proc processes holds "
        "its own in memory",
        # One file is read by one process. Rows of text are small: who lowers writer_batch_size
        # has others.
        hint=not large or _one_file(call),
    )


def _one_file(call: ast.Call) -> bool:
    """data_files="rows.jsonl", or one for each split"""
    files = keyword(call, "data_files")
    names = [files]
    if isinstance(files, ast.Dict):
        names = list(files.values)
    elif isinstance(files, (ast.List, ast.Tuple)) and len(files.elts) == 1:
        names = list(files.elts)
    return all(isinstance(constant(n), str) and "*" not in constant(n) for n in names)


def _casts_to_large(file: Any) -> bool:
    """Features({"spectrum": Array2D(...)}), rows.cast_column("file", Audio())"""
    return any(
        isinstance(n, ast.Call)
        and (file.callee(n) or "").startswith("datasets.")
        and method(n) in _LARGE_FEATURES
        for n in file.nodes
    )


def _mapped(file: Any, call: ast.Call) -> Iterator[Finding]:
    size = keyword(call, "batch_size")
    negative = isinstance(size, ast.UnaryOp) and isinstance(size.op, ast.USub)
    if keyword(call, "batched") is not None and (negative or constant(size, 0) is None):
        yield finding(
            "datasets-buffers",
            call,
            "map() with batch_size=%s hands the whole dataset to the function as one batch"
            % ("-1" if negative else "None"),
        )
    elif _gathers_much(file, call):
        yield finding(
            "datasets-buffers",
            keyword(call, "writer_batch_size") or keyword(call, "num_proc"),
            "map() holds writer_batch_size results (1000 unless given) in each of its num_proc "
            "processes before it writes them",
        )


def _gathers_much(file: Any, call: ast.Call) -> bool:
    given = keyword(call, "writer_batch_size")
    rows = constant(given) if given is not None else WRITTEN_AT_ONCE
    processes = _processes(keyword(call, "num_proc"))
    if isinstance(rows, int) and processes is not None and _makes_large(file, call):
        return rows * processes >= MANY_LARGE_ROWS
    if keyword(call, "batched") is not None:
        return False
    return isinstance(rows, int) and rows >= MANY_ROWS


def _processes(node: Optional[ast.AST]) -> Optional[int]:
    if isinstance(node, ast.Call) and method(node) == "cpu_count":
        return CORES
    number = constant(node)
    return number if isinstance(number, int) else None


def _makes_large(file: Any, call: ast.Call) -> bool:
    """The function that map() calls puts pictures, sound or vectors into the rows."""
    given = call.args[0] if call.args else keyword(call, "function")
    name = key(given) if given is not None else None
    made = file.functions.get(name.split(".")[-1]) if name else given
    return made is not None and any(_large_result(n) for n in walk_here(made))


def _large_result(node: ast.AST) -> bool:
    """row["pixel_values"] = ..., return {"embedding": ...}"""
    names: List[Any] = []
    if isinstance(node, ast.Dict):
        names = [constant(k) for k in node.keys]
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        names = [constant(n) for n in walk(node.slice)]
    return any(isinstance(n, str) and _LARGE_COLUMN.match(n) for n in names)


CHECKS = (buffers,)
