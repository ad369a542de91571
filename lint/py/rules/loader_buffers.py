"""Batches that wait in the workers.

severity: info
remedy: dataloader_workers

Host memory holds bytes per batch x prefetch_factor x num_workers, and pin_memory adds a copy.
Persistent workers never give it back.

Instead: Use fewer workers, prefetch_factor=1 or 2, a smaller batch, or
persistent_workers=False.
"""

import ast
import re
from typing import Any, Iterator, Optional

from ..findings import Finding, finding
from ..loaders import loader_calls, workers_of
from ..names import File, constant, key, keyword
from ..reasons import all_words

LARGE_BATCH = 512  # samples


MANY_WORKERS = 16


FEW_WORKERS = 2  # four batches in all


VERY_DEEP = 32  # batches that each worker holds ready


def buffers(file: File) -> Iterator[Finding]:
    """Workers times prefetched batches, and workers that stay alive between epochs"""
    for call in loader_calls(file):
        workers = workers_of(call)
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
            yield finding(
                "loader-buffers",
                call,
                "persistent_workers keeps every worker alive between epochs, and with it its "
                "batches, shuffle buffers and open shards",
                hint=not streams
                and (not large or isinstance(workers, int) and workers <= FEW_WORKERS),
            )
        elif large and many or deep and (many or large) or very_deep:
            yield finding(
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


def _streams(file: File, call: ast.Call) -> bool:
    if (file.callee(call) or "").endswith("WebLoader"):
        return True
    first = call.args[0] if call.args else keyword(call, "dataset")
    name = _class_of(file, first)
    c = file.classes.get(name or "")
    return c is not None and any(
        (file.dotted(b) or "").endswith("IterableDataset") for b in c.bases
    )


def _class_of(file: File, node: Any) -> Optional[str]:
    if isinstance(node, ast.Call):
        return (file.callee(node) or "").split(".")[-1]
    return file.class_of(key(node)) if node is not None else None


_SMALL_ROWS = re.compile(
    r"clicks?$|ratings?$|user_?ids?$|item_?ids?$|tabular|DataFrame|read_csv", re.I
)


_LARGE_ROWS = re.compile(
    r"image|pixel|imread|picture|photo|video|audio|\bwav|sound|spectro|volume|scan|voxel|cloud|"
    r"transforms|^load\(\)$",
    re.I,
)


def _rows_of_numbers(file: Any, line: int) -> bool:
    """DataLoader(clicks, 8192, num_workers=16): 64 batches of some numbers a row are a few MB"""
    words = all_words(file)
    return any(map(_SMALL_ROWS.search, words)) and not any(map(_LARGE_ROWS.search, words))


CHECKS = (buffers,)
HINTS = (_rows_of_numbers,)
