"""Reads file names from standard input, one JSON string a line, and writes one JSON object a line:
the findings of that file.

A file that cannot be parsed is an answer like any other ("error"), never a traceback: the caller
goes on with the rest.
"""

import json
import os
import re
import sys
from typing import Any, Dict, Optional

if __package__ in (None, ""):  # run by path, with -I: the package's folder is not on sys.path
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    __package__ = "lint"
    import lint  # noqa: F401

from . import engine, project, source
from .findings import Finding

# No rule applies to a file that names none of these; most files of a large tree do not.
TRAINS = re.compile(
    r"torch|tensorflow|keras|\bray\b|transformers|backward\(|datasets|webdataset|\btrl\b|peft|"
    r"lightning|optuna|matplotlib|pandas|\bjax\b"
)


def shown(finding: Finding) -> Dict[str, Any]:
    """What Go reads of a finding."""
    names = ("rule", "line", "column", "message", "edits", "safe", "hint", "cell")
    return {name: vars(finding)[name] for name in names if vars(finding)[name] is not None}


def look(path: str, around: Optional[project.Project] = None) -> Dict[str, Any]:
    answer: Dict[str, Any] = {"file": path, "findings": []}
    try:
        code = source.read(path)
        answer["cells_skipped"] = code.cells_skipped
        tree = code.tree()  # a file that does not parse is still said to be one
        if code.note:
            answer["note"] = code.note
        if not TRAINS.search(code.text):
            return answer
        around = around or project.Project([])
        for finding in engine.check(tree, path):
            if not finding.hint and project.contradicted(around, path, tree, finding):
                finding.hint = True
            if not code.ignored(finding):
                answer["findings"].append(shown(code.located(finding)))
    except source.Unreadable as problem:
        answer["error"] = str(problem)
    except RecursionError:
        answer["error"] = "nested too deeply to be analysed"
    except MemoryError:
        answer["error"] = "too large to be analysed"
    except Exception as problem:  # a bug of ours must not hide the other files
        answer["error"] = "internal error in the linter, please report it: %s: %s" % (
            type(problem).__name__,
            problem,
        )
        if os.environ.get("MEMROOM_LINT_DEBUG"):
            raise
    return answer


def main() -> None:
    sys.setrecursionlimit(5000)
    paths = [json.loads(line) for line in sys.stdin]
    around = project.Project(paths)
    for path in paths:
        print(json.dumps(look(path, around)), flush=True)


if __name__ == "__main__":
    main()
