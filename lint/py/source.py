"""Python source from scripts and notebooks, with the way back from a line to where the user sees
it.
"""

import ast
import io
import json
import re
import sys
import tokenize
import warnings
from dataclasses import replace
from typing import Dict, List, Optional, Tuple

from . import python2
from .findings import Finding

LIMIT = 4 << 20  # bytes; training code is never that long, generated tables are
NOTEBOOK_LIMIT = 64 << 20  # bytes; the pictures in its outputs count too

# What a newer Python reads and an older one calls a syntax error.
NEWER = (
    ((3, 10), r"\s*(match\s+[^=]+|case\s+[^=]+):\s*(#.*)?$"),
    ((3, 11), r"\s*except\s*\*"),
    ((3, 12), r"\s*(type\s+\w+\s*(\[.*\]\s*)?=|(async\s+)?def\s+\w+\s*\[|class\s+\w+\s*\[)"),
    ((3, 12), r".*\b[rRbB]?[fF][\"'].*\{.*[\"'].*\}"),
    ((3, 14), r".*(^|[\s=(,])t[\"']"),
)
PYTHON_2 = re.compile(
    r"\s*(print\s+[^(=\s]|print\s*>>|exec\s+['\"]|raise\s+\w[\w.]*\s*,|except\s+[\w.]+\s*,\s*\w+\s*:)"
)


class Unreadable(Exception):
    """The file cannot be analysed; the text says why."""


class Code:
    """One file. For a notebook the code cells are joined and `cells` maps a line back to its cell."""

    def __init__(
        self,
        path: str,
        text: str,
        cells: Optional[List[Tuple[int, int]]] = None,
        cells_skipped: int = 0,
        patchable: bool = True,
    ) -> None:
        self.path, self.text, self.cells, self.cells_skipped = path, text, cells, cells_skipped
        # Edits count bytes of UTF-8: in another coding they would hit the wrong place. A notebook
        # is JSON: its cells are not patched in place.
        self.patchable = patchable and cells is None
        self.lines = text.split("\n")
        self.note = ""  # what the reader of the findings should know about the file

    def tree(self) -> ast.Module:
        try:
            return parse(self.text)
        except SyntaxError as problem:
            converted = python2.convert(self.text) if self._is_python_2(problem) else None
            if converted is not None:
                try:
                    tree = parse(converted)
                except (SyntaxError, ValueError):
                    raise Unreadable(self.why_not(problem)) from None
                self.patchable = False
                self.note = (
                    "Python 2: its print, except, raise and exec statements were read in the form "
                    "of Python 3; lines are those of the file"
                )
                return tree
            raise Unreadable(self.why_not(problem)) from None
        except ValueError as problem:
            raise Unreadable("not Python source: %s" % problem) from None

    def _line(self, problem: SyntaxError) -> str:
        number = problem.lineno or 0
        return self.lines[number - 1] if 1 <= number <= len(self.lines) else ""

    def _is_python_2(self, problem: SyntaxError) -> bool:
        return bool(PYTHON_2.match(self._line(problem))) or (
            sum(1 for line in self.lines if PYTHON_2.match(line)) > 0
        )

    def why_not(self, problem: SyntaxError) -> str:
        where = self.place(problem.lineno or 1)
        at = (
            "line %d" % where["line"]
            if "cell" not in where
            else "cell %d, line %d" % (where["cell"], where["line"])
        )
        line = self._line(problem)
        if self._is_python_2(problem):
            return (
                "Python 2 syntax, and at %s something that has no simple form in Python 3: "
                "convert the file (2to3 -w, or futurize) and run again" % at
            )
        for version, pattern in NEWER:
            if sys.version_info < version and re.match(pattern, line):
                return (
                    "%s looks like syntax of Python %d.%d, and this interpreter is %d.%d: name a "
                    "newer one with --python" % ((at,) + version + sys.version_info[:2])
                )
        return "syntax error at %s: %s" % (at, problem.msg)

    def place(self, line: int) -> Dict[str, int]:
        """Where the user finds this line: {"line"} in a script, {"cell", "line"} in a notebook."""
        if self.cells is None:
            return {"line": line}
        cell, first = 1, 1
        for number, start in self.cells:
            if start > line:
                break
            cell, first = number, start
        return {"cell": cell, "line": line - first + 1}

    def located(self, finding: Finding) -> Finding:
        edits = finding.edits if self.patchable else None
        place = self.place(finding.line)
        return replace(
            finding, edits=edits, line=place["line"], cell=place.get("cell", finding.cell)
        )

    def ignored(self, finding: Finding) -> bool:
        """`# memroom: ignore` or `# memroom: ignore[rule, ...]` on the line or alone on the one
        above.
        """
        for number in (finding.line, finding.line - 1):
            if not 1 <= number <= len(self.lines):
                continue
            text = self.lines[number - 1]
            if number != finding.line and not text.lstrip().startswith("#"):
                continue
            said = re.search(r"#\s*memroom:\s*ignore(?:\[([\w\-, ]*)\])?", text)
            if said and (
                said.group(1) is None
                or finding.rule in [r.strip() for r in said.group(1).split(",")]
            ):
                return True
        return False


def read(path: str) -> Code:
    limit = NOTEBOOK_LIMIT if path.endswith(".ipynb") else LIMIT
    try:
        with open(path, "rb") as f:
            data = f.read(limit + 1)
    except OSError as problem:
        raise Unreadable(problem.strerror or str(problem)) from None
    if len(data) > limit:
        raise Unreadable(
            "larger than %d MiB: code that long is generated; name the files that train"
            % (limit >> 20)
            if limit == LIMIT
            else "larger than %d MiB: clear its outputs and run again" % (limit >> 20)
        )
    if path.endswith(".ipynb"):
        return notebook(path, data)
    text = decode(data)
    same = text.encode("utf-8") == data.replace(b"\r\n", b"\n")
    return Code(path, text, patchable=same)


def parse(text: str) -> ast.Module:
    """The tree. `await` outside a function is fine: notebooks allow it."""
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes are not ours to report
        tree: ast.Module = compile(text, "<file>", "exec", flags, dont_inherit=True)
    return tree


def decode(data: bytes) -> str:
    """The text, by its own coding line; bytes that fit nowhere are kept out of the way rather than
    refused.
    """
    if b"\0" in data:
        raise Unreadable("binary, not Python source")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    except (SyntaxError, LookupError):
        encoding = "utf-8"
    text = data.decode(encoding, "replace")
    return text.lstrip("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def notebook(path: str, data: bytes) -> Code:
    try:
        cells = json.loads(data.decode("utf-8", "replace"))
        cells = cells["cells"] if "cells" in cells else cells["worksheets"][0]["cells"]
    except (ValueError, KeyError, IndexError, TypeError):
        raise Unreadable("not a notebook: no cells in it") from None
    if not isinstance(cells, list):
        raise Unreadable("not a notebook: no cells in it")
    lines: List[str] = []
    starts: List[Tuple[int, int]] = []
    skipped = number = 0
    for cell in cells:
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        number += 1
        text = cell.get("source", cell.get("input", ""))
        text = "".join(map(str, text)) if isinstance(text, list) else str(text)
        body = without_magics(text.replace("\r\n", "\n").split("\n"))
        if body is not None and not parses(body):
            old = python2.convert("\n".join(body))
            body = old.split("\n") if old is not None and parses(old.split("\n")) else None
        if body is None:
            skipped += 1
            continue
        starts.append((number, len(lines) + 1))
        lines.extend(body)
    return Code(path, "\n".join(lines) + "\n", starts, skipped)


def without_magics(lines: List[str]) -> Optional[List[str]]:
    """The cell's Python, magics blanked so that line numbers stay; None if the cell is of another
    language.
    """
    first = next((line for line in lines if line.strip()), "")
    if first.startswith("%%") and not re.match(
        r"%%(time|timeit|capture|prun|memit|mprun)\b", first
    ):
        return None
    clean = []
    goes_on = False  # a shell command over several lines
    for line in lines:
        stripped = line.lstrip()
        if goes_on:
            goes_on, line = stripped.rstrip().endswith("\\"), ""
        elif stripped.startswith(("%", "!")) and stripped.rstrip().endswith("\\"):
            goes_on, line = True, line[: len(line) - len(stripped)] + "pass"
        elif (
            stripped.startswith(("%", "!", "?"))
            or stripped.rstrip().endswith("?")
            and not stripped.startswith("#")
        ):
            line = line[: len(line) - len(stripped)] + "pass"
        elif re.match(r"\s*[\w, ]+=\s*[!%]", line):
            line = re.sub(r"=\s*[!%].*", "= None", line)
        elif re.match(r"\s*(if|else|elif|for|while|with|try|except|finally)\b.*:\s*[!%]\w", line):
            line = re.sub(r":\s*[!%]\w.*", ": pass", line)
        clean.append(line)
    return clean


def parses(lines: List[str]) -> bool:
    try:
        parse("\n".join(lines))
        return True
    except (SyntaxError, ValueError):
        return False
