"""What a rule yields: a finding, and the edits that mend it."""

import ast
from dataclasses import dataclass
from typing import Any, List, Optional

Edit = List[Any]  # line, column, end line, end column, text


@dataclass
class Finding:
    rule: str
    line: int
    column: int
    message: str  # this case in one sentence
    edits: Optional[List[Edit]] = None  # replacements that mend it; columns count bytes
    safe: bool = False  # the edits change no result
    hint: bool = False  # whether it costs memory is decided by something the file does not show
    proven: bool = False  # the form of the code is enough: the abstract run need not agree
    through: Optional[int] = None  # the line where the same story has its other end
    cell: Optional[int] = None  # of a notebook


def finding(
    rule: str, node: ast.AST, message: str, edits: Optional[List[Edit]] = None, **more: Any
) -> Finding:
    where: Any = node
    return Finding(rule, where.lineno, where.col_offset, message, edits or None, **more)


def after(node: ast.AST, text: str) -> Edit:
    """An edit that writes text directly behind an expression."""
    at: Any = node
    return [at.end_lineno, at.end_col_offset, at.end_lineno, at.end_col_offset, text]


def around(node: ast.AST, before: str, behind: str) -> List[Edit]:
    at: Any = node
    return [[at.lineno, at.col_offset, at.lineno, at.col_offset, before], after(node, behind)]
