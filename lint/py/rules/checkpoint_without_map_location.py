"""Checkpoint loaded to where it was saved.

severity: info

A checkpoint saved from a card goes back to that card: a second copy of the weights as long as
the variable lives, and all ranks load to the same card.

Instead: Load with map_location="cpu". After load_state_dict(), `del checkpoint`.
"""

import ast
from typing import Iterator, List

from ..devices import loaded_to, restores
from ..findings import Finding, finding
from ..flow import Scope, scopes
from ..names import File, key, keyword, method, own, targets, walk, walk_here
from ..reasons import deleted_by_caller, small_problem

_RANKS = (
    "DistributedDataParallel",
    "init_process_group",
    "FullyShardedDataParallel",
    "fully_shard",
)


def checkpoint_of_every_rank(file: File) -> Iterator[Finding]:
    """torch.load(path) without map_location in a program of several ranks: all of them restore it
    to the one card it was saved from.
    """
    if not any(isinstance(n, ast.Call) and method(n) in _RANKS for n in file.nodes):
        return
    for scope in scopes(file):
        if scope.trains:
            continue  # checkpoint_kept says it
        asked = {method(n) for s in scope.statements for n in own(s) if isinstance(n, ast.Call)}
        if "DataParallel" in asked and not asked & set(_RANKS):
            continue  # one process with several cards
        for s in scope.statements:
            if not isinstance(s, ast.Assign) or not isinstance(s.value, ast.Call):
                continue
            name = key(s.targets[0])
            if (file.callee(s.value) or "") != "torch.load" or not name or "." in name:
                continue
            if _file_of_rank(scope, s.value) or _other_branch_maps(file, s):
                continue
            if loaded_to(s.value) == "" and restores(scope, name):
                yield finding(
                    "checkpoint-without-map-location",
                    s,
                    "torch.load without map_location puts the checkpoint on the card it was saved "
                    "from: every rank holds a copy of `%s` on that one card" % name,
                )


def _other_branch_maps(file: File, s: ast.Assign) -> bool:
    """if distributed: torch.load(path, map_location=...) else: torch.load(path)"""
    return any(
        isinstance(n, ast.Call)
        and (file.callee(n) or "") == "torch.load"
        and keyword(n, "map_location") is not None
        for i in file.places[s].ifs[-1:]
        if isinstance(i, ast.If)
        for n in walk(i)
    )


def _file_of_rank(scope: Scope, call: ast.Call) -> bool:
    """torch.load(f"shard_{rank}.pt"): each rank has a file of its own, saved from its own card."""
    names = {key(a) for a in call.args[:1]}
    told: List[ast.AST] = list(call.args[:1])
    for _ in range(3):
        for s in scope.statements:
            if isinstance(s, ast.Assign) and names & {key(t) for t in targets(s)}:
                told.append(s.value)
                names.update(key(n) for n in walk_here(s.value) if isinstance(n, ast.Name))
    return any(
        isinstance(n, (ast.Name, ast.Attribute, ast.Constant))
        and "rank" in (str(n.value) if isinstance(n, ast.Constant) else key(n) or "").lower()
        for t in told
        for n in walk(t)
    )


CHECKS = (checkpoint_of_every_rank,)
HINTS = (
    small_problem,
    deleted_by_caller,
)
