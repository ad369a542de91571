"""Evaluation batch larger than the training batch.

severity: info
remedy: eval_batch

The default evaluation batch is 8. Evaluation also keeps logits, so it can need more memory than
the training step.

Instead: Set the evaluation batch: per_device_eval_batch_size equal to the training batch.
"""

import ast
from typing import Iterator

from ..findings import Finding, finding
from ..names import File, constant, keyword
from ..trainers import _arguments


def _evaluates(call: ast.Call) -> bool:
    for name in ("eval_strategy", "evaluation_strategy"):
        value = keyword(call, name)
        if value is not None and constant(value, "?") != "no":
            return True
    return constant(keyword(call, "do_eval")) is True


def eval_batch(file: File) -> Iterator[Finding]:
    """A small training batch and the default batch of 8 in evaluation"""
    for call in _arguments(file):
        if any(k.arg is None for k in call.keywords) or not _evaluates(call):
            continue
        batch = constant(keyword(call, "per_device_train_batch_size"))
        if (
            isinstance(batch, int)
            and batch < 8
            and keyword(call, "per_device_eval_batch_size") is None
            and constant(keyword(call, "auto_find_batch_size")) is not True
        ):
            yield finding(
                "eval-batch-default",
                call,
                "training uses a batch of %d, but evaluation uses the default "
                "per_device_eval_batch_size of 8" % batch,
            )


CHECKS = (eval_batch,)
