"""The analysis of one file: the checks of every rule, the abstract run, and what becomes a hint."""

import ast
import os
from typing import List, Set, Tuple

from . import lifetimes, reasons, rules, spent
from .findings import Finding
from .names import File, once, walk


def check(tree: ast.Module, path: str = "") -> List[Finding]:
    shorten(tree)
    file = File(tree, path)
    seen: Set[Tuple[str, int]] = set()
    found = []
    for run in rules.CHECKS:
        for finding in run(file):
            where = (finding.rule, finding.line)
            if where not in seen:
                seen.add(where)
                found.append(finding)
    told = _run(file)
    found += _of_the_run(found, told)
    reasons.agreed(found, told)
    spent.correct(file, found)
    found = reasons.hints(file, _said_once(_one_a_pass(file, found)), rules.HINTS)
    return sorted(found, key=lambda f: (f.line, f.rule))


LONGEST_TABLE = 500  # entries


def shorten(tree: ast.AST) -> None:
    """Cuts tables of constants: generated files have hundreds of thousands of entries."""
    todo = [tree]
    while todo:
        node = todo.pop()
        for name in ("elts", "keys", "values"):
            entries = getattr(node, name, None)
            if isinstance(entries, list) and len(entries) > LONGEST_TABLE:
                del entries[LONGEST_TABLE:]
        todo.extend(ast.iter_child_nodes(node))


def _one_a_pass(file: File, found: List[Finding]) -> List[Finding]:
    """One no_grad mends a function that evaluates, or a loop of one that also trains: the first
    forward pass stands for the others.
    """
    kept, seen = [], set()
    at = {s.lineno: s for s in reversed(file.statements)}
    for f in sorted(found, key=lambda f: (f.hint, f.line)):
        s = at.get(f.line)
        if f.rule == "eval-without-no-grad" and s is not None:
            place = file.places[s]
            function = place.function
            if function is None or _differentiates(function):
                quiet = [x for x in place.loops if not _differentiates(x)]
                mark = quiet[0] if quiet else s
            else:
                mark = function
            if mark in seen:
                continue
            seen.add(mark)
        kept.append(f)
    return kept


@once
def _differentiates(node: ast.AST) -> bool:
    return any(isinstance(n, ast.Attribute) and "backward" in n.attr for n in walk(node))


def _said_once(found: List[Finding]) -> List[Finding]:
    """Where a line has a mistake of its own, it is not named as part of another one."""
    own = {f.line for f in found if not f.rule.endswith("-here")}
    return [f for f in found if not f.rule.endswith("-here") or f.line not in own]


def _run(file: File) -> List[Finding]:
    """What the abstract run tells; nothing where it fails: what the other rules found stands."""
    try:
        return list(lifetimes.check(file))
    except Exception:  # too deep, or a bug of ours
        if os.environ.get("MEMROOM_LINT_DEBUG"):
            raise
        return []


def _of_the_run(found: List[Finding], told: List[Finding]) -> List[Finding]:
    """What the abstract run adds: findings at lines that no other rule speaks about, and one of its
    own for each line.
    """
    lines = {f.line for f in found}
    # These speak about a loop or a file as a whole: the rule that knows the form comes first.
    once = {f.rule for f in found} & {"tf-function-retraced", "keras-model-in-loop"}
    more = []
    for finding in sorted(told, key=lambda f: f.rule == "graph-kept-here"):
        if finding.line not in lines and finding.rule not in once:
            lines.add(finding.line)
            more.append(finding)
    return more
