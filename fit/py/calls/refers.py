"""What the code of a module refers to outside of the module: variables of its file and of enclosing
functions.
"""

import ast
import os
import re
import sys
import types
from typing import Any, Dict, Iterator, List, Tuple

_OURS = os.path.abspath(__file__)[: -len("fit/calls/refers.py")]
MOST_FILES = 200  # of the script and beside it that are looked through
# (script, pattern) -> whether it says so, and how many modules were imported when that was asked
_said: Dict[Any, Any] = {}


def functions(kind: type) -> List[types.FunctionType]:
    """The methods that a class itself defines; torch's own classes are not looked into."""
    if (kind.__module__ or "").startswith("torch."):
        return []
    return [f for f in vars(kind).values() if isinstance(f, types.FunctionType)]


def variables(kind: type) -> List[Tuple[Dict[Any, Any], str, Any]]:
    """(namespace, name, value) of the file's variables that the methods of a class name."""
    return [
        (f.__globals__, name, f.__globals__[name])
        for f in functions(kind)
        for name in f.__code__.co_names
        if name in f.__globals__
    ]


def values(kind: type) -> List[Any]:
    """Everything that the methods of a class can reach by a name of their own."""
    return [value for _, _, value in variables(kind)] + [
        v for f in functions(kind) for cell in f.__closure__ or () for v in _content(cell)
    ]


def _content(cell: Any) -> List[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:  # not assigned yet
        return []


def script_says(pattern: str) -> bool:
    """Whether the script, or a file beside or below it that it has imported, holds what the
    regular expression describes, where that can run: not in a function that nobody calls.
    """
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    if not path:
        return False
    key = os.path.abspath(path), pattern
    says, imported = _said.get(key, (False, 0))
    if not says and imported != len(sys.modules):  # a file that says so may have come since
        texts = dict(_texts(key[0]))
        says = any(
            _can_run(texts, path, 1 + text.count("\n", 0, found.start()))
            for path, text in texts.items()
            for found in re.finditer(pattern, text)
        )
        _said[key] = says, len(sys.modules)
    answer: bool = says
    return answer


def _texts(script: str) -> Iterator[Tuple[str, str]]:
    """(path, content) of the script and of the files beside it."""
    folder = os.path.join(os.path.dirname(script), "")
    files = [getattr(m, "__file__", None) for m in list(sys.modules.values())]
    beside = {os.path.abspath(f) for f in files if isinstance(f, str) and f.endswith(".py")}
    beside = {f for f in beside if f.startswith(folder) and "-packages" not in f[len(folder) :]}
    beside = {f for f in beside if not f.startswith(_OURS)}  # a script may lie above our own files
    for path in [script, *sorted(beside - {script})[:MOST_FILES]]:
        try:
            with open(path, encoding="utf-8", errors="replace") as f:
                yield path, f.read()
        except OSError:
            pass


def _can_run(texts: Dict[str, str], path: str, line: int) -> bool:
    """Whether the function around a line is named anywhere else, or overrides what a library may
    call. What stands in no function runs.
    """
    try:
        trees = {file: ast.parse(text) for file, text in texts.items()}
    except (SyntaxError, ValueError):
        return True
    around = [
        node
        for node in ast.walk(trees[path])
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.lineno <= line <= (node.end_lineno or line)
    ]
    return all(
        any(_names(tree, function, file == path) for file, tree in trees.items())
        or _overrides(trees[path], path, function.name)
        for function in around
    )


def _names(tree: ast.AST, function: Any, same_file: bool) -> bool:
    """Whether a file names a function outside of its own body."""
    for node in ast.walk(tree):
        word = getattr(node, "id", None) or getattr(node, "attr", None)
        if word is None and isinstance(node, ast.Constant):
            word = node.value
        if word == function.name and not (
            same_file
            and function.lineno <= getattr(node, "lineno", 0) <= (function.end_lineno or 0)
        ):
            return True
    return False


def _overrides(tree: ast.AST, path: str, name: str) -> bool:
    """Whether a class of the file overrides a method of that name, or Python calls it by itself."""
    if name.startswith("__"):
        return True
    module = next(
        (m for m in list(sys.modules.values()) if getattr(m, "__file__", None) == path), None
    )
    kinds = [getattr(module, n.name, None) for n in ast.walk(tree) if isinstance(n, ast.ClassDef)]
    return any(
        isinstance(kind, type)
        and name in vars(kind)
        and any(name in vars(base) for base in kind.__mro__[1:])
        for kind in kinds
    )
