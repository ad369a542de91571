"""Applies remedies inside the user's process. Entry: install(remedies, say).

A remedy is {"id": ..., "params": {...}}. say(kind, text, **fields) tells what was done: kind is
"applied", "declined" or "note", fields carry the remedy's id and figures. Nothing is imported
before the user imports it, and a remedy that cannot be had is declined with the reason while
training goes on without it.
"""

import functools
from typing import Any, Callable

from .. import imports


def install(remedies: Any, say: Callable[..., Any]) -> None:
    done = []

    def with_torch(_: Any) -> None:
        if "torch" not in done:  # a reload must not put everything in place twice
            done.append("torch")
            from . import registry
            from .memory import compiler

            compiler.spare()
            compiler.stay_alone()
            registry.apply(remedies, say)

    def with_keras(keras: Any) -> None:
        if keras.__name__ not in done:
            done.append(keras.__name__)
            from .remedies import of_keras

            of_keras.apply(keras, remedies, say)

    def with_tensorflow(tensorflow: Any) -> None:
        if "tensorflow" in done:
            return
        done.append("tensorflow")
        asked = {r.get("id") for r in remedies}
        if "micro_batch" in asked:
            from .remedies import keras_calls

            keras_calls.watch_tapes(tensorflow, say)
        data = asked & {"tf_data_budget", "dataloader_workers"}
        if data:
            from .remedies import tf_data

            tf_data.install(tensorflow, functools.partial(say, id=max(data)))

    def before_tensorflow(_: Any) -> None:
        from .memory import heap

        say("note", heap.spare_for_tensorflow())  # no remedy has met a batch yet

    if any((r.get("params") or {}).get("limit") for r in remedies):  # of host memory
        imports.before_import("tensorflow", before_tensorflow)
    imports.when_imported("torch", with_torch)
    imports.when_imported("tensorflow", with_tensorflow)
    imports.when_imported("keras", with_keras)
    imports.when_imported("tf_keras", with_keras)  # Keras 2 beside Keras 3
