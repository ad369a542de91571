"""Checkpoint kept on the card.

severity: warning

The loaded dict is a second copy of the weights, and of the optimizer state if that was saved.
It stays as long as the variable.

Instead: Load with map_location="cpu". After load_state_dict(), `del checkpoint`.
"""

import ast
from typing import Iterator

from .. import evidence
from ..devices import loaded_to, restores
from ..evaluation import uses_card
from ..findings import Finding, finding
from ..flow import Scope, scopes
from ..names import File, constant, key, own, targets
from ..reasons import deleted_by_caller, small_problem


def checkpoint_kept(file: File) -> Iterator[Finding]:
    """checkpoint = torch.load(path, map_location=device) that lives on while the model trains"""
    if not uses_card(file):
        return
    for scope in scopes(file):
        if not scope.trains:
            continue
        for s in scope.statements:
            if not isinstance(s, ast.Assign) or not isinstance(s.value, ast.Call):
                continue
            if not any(
                t.lineno > s.lineno and not evidence.exclusive(file, s, t) and not _only_tests(t)
                for t, _ in scope.differentiated
            ):
                continue  # loaded after the training, for a test, or instead of it
            name = key(s.targets[0])
            if (file.callee(s.value) or "") != "torch.load" or not name or "." in name:
                continue
            where = loaded_to(s.value)
            if not where or not restores(scope, name) or _dropped(scope, name, s):
                continue
            if evidence.ends_there(file, s) or evidence.is_the_model(file, s):
                continue
            yield finding(
                "checkpoint-kept",
                s,
                "the checkpoint is loaded to the card, and `%s` keeps that second copy of the "
                "weights%s while the model trains"
                % (name, " and optimizer state" if evidence.has_optimizer(file) else ""),
            )


def _only_tests(s: ast.stmt) -> bool:
    """run_epoch(model, test_set, train=False)"""
    return any(
        isinstance(n, ast.keyword)
        and n.arg in ("train", "training", "is_train", "is_training", "istrain")
        and constant(n.value) is False
        for n in own(s)
    )


def _dropped(scope: Scope, name: str, origin: ast.stmt) -> bool:
    for s in scope.statements:
        if isinstance(s, ast.Delete) and any(key(t) == name for t in s.targets):
            return True
        if (
            s is not origin
            and isinstance(s, ast.Assign)
            and any(key(t) == name for t in targets(s))
        ):
            return True
    return False


CHECKS = (checkpoint_kept,)
HINTS = (
    small_problem,
    deleted_by_caller,
)
