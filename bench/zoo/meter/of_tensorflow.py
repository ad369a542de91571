"""What sitecustomize measures of a script in TensorFlow, with and without memroom.

A step is a change of the optimizers' counts, seen after each call that could have made it. Its loss
is what Keras returns of it, or a sum over the weights. Keras' data sets are made up.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import random
import time
from types import ModuleType
from typing import Any, Callable

STEPS = int(os.environ.get("ZOO_STEPS", "0"))
OPTIMIZERS: list[Any] = []
STAMPS: list[float] = []
LOSSES: list[float] = []
MEMORY: dict[str, int] = {}


def memory() -> dict[str, int]:
    """Bytes of this process that are no file's: now, and at most so far."""
    with open("/proc/self/status") as status:
        rows = dict(line.split(":", 1) for line in status)
    kib = {name: int(rows[name].split()[0]) for name in ("VmHWM", "RssAnon", "RssFile", "RssShmem")}
    return {"now": kib["RssAnon"] << 10, "most": (kib["VmHWM"] - kib["RssFile"]) << 10}


def variables() -> list[Any]:
    return [v for o in OPTIMIZERS for v in getattr(o, "_trainable_variables", [])]


def updates(optimizer: Any) -> int:
    """Where Keras accumulates, its counter goes up with each part of a batch."""
    return int(optimizer._iterations.numpy()) // (optimizer.gradient_accumulation_steps or 1)


def note(result: Any = None) -> None:
    import numpy

    if sum(updates(o) for o in OPTIMIZERS if o.built) <= len(STAMPS):
        return
    STAMPS.append(time.perf_counter())
    if hasattr(result, "get_value"):  # Keras' logs
        result = result.get_value()
    if isinstance(result, dict) and "loss" in result:
        LOSSES.append(float(result["loss"]))
    else:
        LOSSES.append(float(sum(numpy.abs(v.numpy()).sum(dtype="float64") for v in variables())))
    if STEPS and len(STAMPS) >= STEPS:
        raise SystemExit(0)


def write() -> None:
    if not STAMPS:
        return
    digest = hashlib.blake2b(digest_size=8)
    for variable in variables():
        digest.update(variable.numpy().tobytes())
    peak = memory()["most"]
    row = {"steps": len(STAMPS), "losses": LOSSES, "states": [digest.hexdigest()], "peak": peak}
    row |= {"before": MEMORY["now"], "peak_before": MEMORY["most"]}
    row["seconds"] = round(STAMPS[-1] - STAMPS[0], 2)
    with open(os.environ["ZOO_OUT"], "w") as out:
        json.dump(row, out)


def hook(tf: ModuleType) -> None:
    import numpy
    from tensorflow.python.eager import backprop
    from tensorflow.python.eager.polymorphic_function import polymorphic_function

    random.seed(1)
    numpy.random.seed(1)
    tf.random.set_seed(1)
    tape, call = backprop.GradientTape.__init__, polymorphic_function.Function.__call__

    def begun(self: Any, *args: Any, **kwargs: Any) -> None:
        if not MEMORY:
            MEMORY.update(memory())
        tape(self, *args, **kwargs)

    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = call(self, *args, **kwargs)
        if tf.executing_eagerly():
            note(result)
        return result

    backprop.GradientTape.__init__ = begun
    polymorphic_function.Function.__call__ = called
    atexit.register(write)


def optimizers(module: ModuleType) -> None:
    import tensorflow as tf

    base: Any = module.BaseOptimizer
    init, apply = base.__init__, base.apply

    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        OPTIMIZERS.append(self)

    def applied(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = apply(self, *args, **kwargs)
        if tf.executing_eagerly():
            note()
        return result

    base.__init__, base.apply = made, applied


def pictures(*shape: int, classes: int = 10) -> Callable[[ModuleType], None]:
    def load(*args: Any, **kwargs: Any) -> Any:
        import numpy

        draw = numpy.random.default_rng(1)
        labels = (-1, 1) if len(shape) > 2 else (-1,)  # CIFAR's have a column
        return tuple(
            (
                draw.integers(0, 255, (count, *shape), numpy.uint8),
                draw.integers(0, classes, count, numpy.uint8).reshape(labels),
            )
            for count in (6000, 1000)
        )

    return lambda module: setattr(module, "load_data", load)


def reviews(module: ModuleType) -> None:
    def load(num_words: int = 20_000, **kwargs: Any) -> Any:
        import numpy

        draw = numpy.random.default_rng(1)
        rows = numpy.empty(2500, object)
        rows[:] = [draw.integers(1, num_words, n).tolist() for n in draw.integers(20, 400, 2500)]
        labels = draw.integers(0, 2, 2500)
        return (rows[:2000], labels[:2000]), (rows[2000:], labels[2000:])

    module.load_data = load  # type: ignore[attr-defined]


HOOKS: dict[str, Callable[[ModuleType], None]] = {
    "tensorflow": hook,
    "keras.src.optimizers.base_optimizer": optimizers,
    "keras.src.datasets.mnist": pictures(28, 28),
    "keras.src.datasets.fashion_mnist": pictures(28, 28),
    "keras.src.datasets.cifar10": pictures(32, 32, 3),
    "keras.src.datasets.cifar100": pictures(32, 32, 3, classes=100),
    "keras.src.datasets.imdb": reviews,
}
