"""The belief that a converted model trains smaller.

severity: hint
remedy: mixed_precision

TFLite converts for inference. Training goes on with the original model in its own precision.

Instead: For training use mixed precision, a smaller batch, or fewer trainable weights.
"""

import ast
from typing import Any, Iterator

from ..findings import finding
from ..flow import scopes
from ..names import File, method, own


def tflite(file: File) -> Iterator[Any]:
    """A TFLite conversion followed by training"""
    if "tensorflow" not in file.modules:
        return
    for scope in scopes(file):
        yield from _converted(file, scope)


def _converted(file: File, scope: Any) -> Iterator[Any]:
    converted = None
    for s in scope.statements:
        for call in [n for n in own(s) if isinstance(n, ast.Call)]:
            if method(call) == "from_keras_model" and "TFLiteConverter" in (
                file.callee(call) or ""
            ):
                converted = converted or s
            elif method(call) == "fit" and converted is not None:
                yield finding(
                    "tflite-does-not-train",
                    converted,
                    "a TFLite model only runs, it does not train: converting makes the later fit() no smaller",
                )
                return
    if converted is not None:
        yield finding(
            "tflite-does-not-train",
            converted,
            "converting makes a file for devices: the training that made the model needs as "
            "much memory as before",
            hint=True,
        )


CHECKS = (tflite,)
