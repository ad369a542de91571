"""What the code of a module refers to outside of the module: variables of its file and of enclosing
functions.
"""

import os
import re
import sys
import types
from typing import Any, Iterator, List, Tuple

MOST_FILES = 200  # of the script and beside it that are looked through
# (script, pattern) -> whether it says so, and how many modules were imported when that was asked
_said: dict = {}


def functions(kind: type) -> List[types.FunctionType]:
    """The methods that a class itself defines; torch's own classes are not looked into."""
    if (kind.__module__ or "").startswith("torch."):
        return []
    return [f for f in vars(kind).values() if isinstance(f, types.FunctionType)]


def variables(kind: type) -> List[Tuple[dict, str, Any]]:
    """(namespace, name, value) of the file's variables that the methods of a class name."""
    return [
        (f.__globals__, name, f.__globals__[name])
        for f in functions(kind)
        for name in f.__code__.co_names
        if name in f.__globals__
    ]


def values(kind: type) -> list:
    """Everything that the methods of a class can reach by a name of their own."""
    return [value for _, _, value in variables(kind)] + [
        v for f in functions(kind) for cell in f.__closure__ or () for v in _content(cell)
    ]


def _content(cell: Any) -> list:
    try:
        return [cell.cell_contents]
    except ValueError:  # not assigned yet
        return []


def script_says(pattern: str) -> bool:
    """Whether the script, or a file beside or below it that it has imported, holds what the
    regular expression describes.
    """
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    if not path:
        return False
    key = os.path.abspath(path), pattern
    says, imported = _said.get(key, (False, 0))
    if not says and imported != len(sys.modules):  # a file that says so may have come since
        says = any(re.search(pattern, text) for text in _texts(key[0]))
        _said[key] = says, len(sys.modules)
    return says


def _texts(script: str) -> Iterator[str]:
    folder = os.path.join(os.path.dirname(script), "")
    files = [getattr(m, "__file__", None) for m in list(sys.modules.values())]
    beside = {os.path.abspath(f) for f in files if isinstance(f, str) and f.endswith(".py")}
    beside = {f for f in beside if f.startswith(folder) and "-packages" not in f[len(folder) :]}
    for path in [script, *sorted(beside - {script})[:MOST_FILES]]:
        try:
            with open(path, encoding="utf-8", errors="replace") as f:
                yield f.read()
        except OSError:
            pass
