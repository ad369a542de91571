"""Anomaly detection left on.

severity: info

It is made for finding a NaN: it stores a stack trace for each operation of the forward pass.

Instead: Remove it when the error is found, or put it around the few steps in question.
"""

import ast
import re
from typing import Iterator

from .. import evidence
from ..findings import Finding, finding
from ..names import File, constant, method


def anomaly_mode(file: File) -> Iterator[Finding]:
    """torch.autograd.set_detect_anomaly(True) left on"""
    for s in file.statements:
        if not isinstance(s, ast.Expr) or not isinstance(s.value, ast.Call):
            continue
        if (file.callee(s.value) or "").endswith("autograd.set_detect_anomaly") and s.value.args:
            if constant(s.value.args[0]) is True:
                yield finding(
                    "anomaly-mode-on",
                    s,
                    "anomaly detection is on for the whole run: every operation keeps a stack "
                    "trace, and every gradient is checked",
                    hint=evidence.under_a_switch(file, s)
                    or _is_a_switch(file, s)
                    or _tries_out(file, s),
                )


def _tries_out(file: File, s: ast.Expr) -> bool:
    """if __name__ == "__main__": in a file of layers, which nothing in it trains"""
    return bool(file.places[s].ifs) and not any(
        isinstance(n, ast.Call)
        and method(n) in ("step", "fit", "train", "main", "run")
        or isinstance(n, ast.Call)
        and re.search(r"train|epoch", method(n) or "")
        for n in file.nodes
    )


def _is_a_switch(file: File, s: ast.Expr) -> bool:
    """def enable_debug_mode(): whoever calls it wants it"""
    return bool(re.search(r"debug|anomal", getattr(file.places[s].function, "name", ""), re.I))


CHECKS = (anomaly_mode,)
