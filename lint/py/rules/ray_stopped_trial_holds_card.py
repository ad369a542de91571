"""Card still held by a stopped trial.

severity: hint
remedy: trial_resources

A scheduler that stops trials early starts the next one at once. The processes of the stopped
trial, and those they started, may not have ended and still hold the card.

Instead: Wait at the start of the trainable (`ray.tune.utils.wait_for_gpu()`), end what the
trial started (del trainer, gc.collect()), or run each trial in its own process.
"""

import ast
from typing import Any, Iterator

from ..findings import finding
from ..names import File, constant, keyword
from ..ray_tune import _launches, with_resources

STOPPING = ("ASHAScheduler", "AsyncHyperBandScheduler", "HyperBandScheduler", "MedianStoppingRule")


def stopped_trials(file: File) -> Iterator[Any]:
    """A scheduler that stops trials, on cards"""
    stops = any(
        isinstance(n, ast.Call) and (file.callee(n) or "").split(".")[-1] in STOPPING
        for n in file.nodes
    )
    if not stops:
        return
    for call, trainable in _launches(file):
        given = keyword(call, "resources_per_trial") or with_resources(file, trainable)
        if isinstance(given, ast.Dict) and any(
            constant(k) in ("gpu", "GPU") and constant(v, 1) != 0
            for k, v in zip(given.keys, given.values)
        ):
            yield finding(
                "ray-stopped-trial-holds-card",
                call,
                "the scheduler stops trials early: a stopped trial may still hold its card when "
                "the next one starts there",
            )


CHECKS = (stopped_trials,)
