"""Calls that do harm inside a training loop."""

import ast
from typing import Iterator, Tuple

from .flow import (
    Scope,
    scopes,
)
from .names import File, Loop, method, own


def backward_in_loops(file: File) -> Iterator[Tuple[Scope, ast.stmt, Loop, ast.Call]]:
    """(scope, statement, innermost loop, call) of every backward() in a loop"""
    for scope in scopes(file):
        for s in scope.statements:
            place = file.places.get(s)
            if not place or not place.loops:
                continue
            for call in own(s):
                if isinstance(call, ast.Call) and method(call) == "backward":
                    yield scope, s, place.loops[-1], call
