"""Trials packed without memory.

severity: hint
remedy: trial_resources

CPU and GPU counts say nothing about bytes.

Instead: Add "memory": bytes to the trial's resources.
"""

import ast
from typing import Iterator

from ..findings import Finding, finding
from ..names import File, constant
from ..ray_tune import launches


def no_memory(file: File) -> Iterator[Finding]:
    for call, _, given in launches(file):
        if isinstance(given, ast.Dict) and "memory" not in [constant(k) for k in given.keys]:
            yield finding(
                "ray-trial-without-memory",
                call,
                'trials are packed by CPU and GPU alone: without "memory" Ray starts more than the host can hold',
            )


CHECKS = (no_memory,)
