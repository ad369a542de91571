"""Python 2 read as Python 3, line by line, so that line numbers stay.

Only statements whose form changed are rewritten, and only as far as the rules need the tree: what
is printed or raised does not matter to them.
"""

import re
from typing import Optional

_STATEMENTS = (
    # print >>f, x    print x, y,    print
    (re.compile(r"^(\s*(?:.*:\s+|.*;\s*)?)print\s*>>\s*([^,]+),?\s*(.*)$"), r"\1print(\2, \3)"),
    (re.compile(r"^(\s*)print\s+([^(=\s].*?),?\s*$"), r"\1print(\2)"),
    (re.compile(r"^(\s*)print\s+(\(.*\)\s*%.*|\(.*\)\s*,.*)$"), r"\1print(\2)"),
    (
        re.compile(r"^(\s*(?:if|else|for|while|elif|try)\b[^#\"\']*:\s+)print\s+([^(=\s].*)$"),
        r"\1print(\2)",
    ),
    # except E, e:
    (re.compile(r"^(\s*except\s+(?:[\w.]+|\(.*\)))\s*,\s*(\w+)\s*:"), r"\1 as \2:"),
    # raise E, "text"
    (re.compile(r"^(\s*raise\s+[\w.]+)\s*,\s*(.+)$"), r"\1(\2)"),
    # exec code in scope
    (re.compile(r"^(\s*)exec\s+([^(].*)$"), r"\1exec(\2)"),
)
_WORDS = (
    (re.compile(r"<>"), "!="),
    (re.compile(r"\b0([0-7]+)\b(?![.xXoObB])"), r"0o\1"),
    (re.compile(r"\b(\d+)[lL]\b"), r"\1"),
    (re.compile(r"\b[uU][rR](?=[\"\'])"), "r"),
    (re.compile(r"`([^`]+)`"), r"repr(\1)"),
)


def convert(text: str) -> Optional[str]:
    """The text with the old statements rewritten; None where there are none."""
    lines = text.expandtabs(8).split("\n")
    changed = "\t" in text
    for i, line in enumerate(lines):
        new = line
        for pattern, replacement in _STATEMENTS:
            new = pattern.sub(replacement, new)
        if new == line and not line.lstrip().startswith("#"):
            for pattern, replacement in _WORDS:
                if pattern.search(new) and '"' not in new and "'" not in new:
                    new = pattern.sub(replacement, new)
        if re.match(r"\s*print\s*$", new):
            new = new.rstrip() + "()"
        changed = changed or new != line
        lines[i] = new
    return "\n".join(lines) if changed else None
