"""Files that ranks read whole into host memory: arrays of numpy and tables of pandas.

One process may read what it likes. Where ranks do so, each has a copy of its own: told with the
file's name, so that the monitor can see that it is the same one.
"""

import os
import sys
from typing import Any

from .. import guard, link
from . import models, wrapping

LEAST = 32 << 20  # bytes that are worth telling
READERS = ("read_csv", "read_parquet", "read_feather", "read_pickle", "read_json", "read_table")


def hook_numpy(module: Any) -> None:
    """Hooks numpy: an array was read. One that is mapped is shared by all who map it."""
    _wrap(module, "load", lambda kwargs: not kwargs.get("mmap_mode"))


def hook_pandas(module: Any) -> None:
    """Hooks pandas: a table was read."""
    for name in READERS:
        _wrap(module, name, lambda kwargs: True)


def _wrap(module: Any, name: str, copies: Any) -> None:
    def around(original: Any) -> Any:
        def read(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if copies(kwargs):
                _read(args[0] if args else None, result)
            return result

        return read

    wrapping.once(module, name, around)


@guard.hook("file read", heavy=True)
def _read(path: Any, thing: Any) -> None:
    if not isinstance(path, (str, os.PathLike)):
        return
    size = _size(thing)
    if size < LEAST:
        return
    file, line = models.line()
    link.send(
        "checkpoint",
        {
            "step": 0,
            "bytes": size,
            "card": 0,
            "whole": os.path.abspath(os.fspath(path)),
            "file": file,
            "line": line,
        },
    )


def _size(thing: Any) -> int:
    """Bytes of an array in host memory, or of a table as far as its columns tell."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and type(thing) is numpy.ndarray:
        return int(thing.nbytes)
    usage = getattr(thing, "memory_usage", None)
    return int(usage(deep=False).sum()) if usage is not None else 0
