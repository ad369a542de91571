"""Keras: accumulation in the optimizer with smaller batches, calls in pieces, programs that are not
compiled as a whole, and the precision policy.

Keras' own accumulation averages the gradients of equal micro-batches, so the weights after each
effective batch are the same. Its progress bar and callbacks count micro-batches; nothing is
measured, so the number of pieces is what is asked. Where fit cannot accumulate, and in loops of the
program's own, the model's calls are cut (keras_calls).
"""

import functools
from typing import Any, Callable, Optional

from . import keras_calls


def apply(keras: Any, remedies: Any, say: Callable[..., Any]) -> None:
    for remedy in remedies:
        params = dict(remedy.get("params") or {})
        if remedy.get("id") == "micro_batch" and {"failed", "pieces", "size"} & set(params):
            pieces = _pieces(params)
            _accumulate(keras, pieces, say, _calls(keras, pieces, say))
            if params.get("factor", 1.0) < 1:
                _run_op_by_op(keras, say)
        elif remedy.get("id") == "mixed_precision":
            policy = "mixed_float16" if params.get("dtype") == "fp16" else "mixed_bfloat16"
            keras.mixed_precision.set_global_policy(policy)
            say(
                "applied",
                "Keras with the policy %s" % policy,
                id="mixed_precision",
                equivalence="changes",
            )


def _pieces(params: Any) -> keras_calls.Pieces:
    """So many, or as many as rows make of that size."""
    size, count = params.get("size"), params.get("pieces")
    count = int(count or round(4 / params.get("factor", 1.0) ** 2))
    return lambda rows: -(-rows // size) if size else count


def _calls(keras: Any, pieces: keras_calls.Pieces, say: Callable[..., Any]) -> Any:
    """Calls of layers in pieces; None where this Keras cannot have that."""
    if int(keras.__version__.split(".")[0]) < 3 or keras.backend.backend() != "tensorflow":
        return None
    calls = keras_calls.Calls(keras, pieces, say)
    calls.install()
    return calls


def _accumulate(keras: Any, pieces: keras_calls.Pieces, say: Callable[..., Any], calls: Any) -> Any:
    original = keras.Model.fit

    @functools.wraps(original)
    def fit(
        self: Any,
        x: Any = None,
        y: Any = None,
        batch_size: Optional[int] = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        source = _Dataset(x) if _is_dataset(x) else _Arrays(x, batch_size or 32)
        reason = _why_not(keras, self) or source.why_not()
        if calls is not None and not reason and _draws(self):
            reason = "calls in pieces draw what the whole batch would"
        if reason and calls is None:
            keras_calls.told()
            say("declined", "%s: %s" % (self.name, reason), id="micro_batch")
        if reason:
            if calls is not None and getattr(self, "train_function", None) is None:
                self.jit_compile = False  # what XLA compiles must know how often a loop turns
            return original(self, x, y, batch_size, *args, **kwargs)
        least = min(pieces(source.batch), source.batch)
        count = next(n for n in range(least, source.batch + 1) if source.batch % n == 0)
        self.optimizer.gradient_accumulation_steps = count
        say(
            "applied",
            "%s: batches of %d split into %d micro-batches, accumulated by Keras"
            % (self.name, source.batch, count),
            id="micro_batch",
            equivalence="expected" if _draws(self) else "exact",
            rows=source.batch,
            pieces=count,
        )
        if kwargs.get("steps_per_epoch"):
            kwargs["steps_per_epoch"] *= count
        with keras_calls.paused(calls):
            return original(self, *source.cut(count, y), *args, **kwargs)

    keras.Model.fit = fit


def _run_op_by_op(keras: Any, say: Callable[..., Any]) -> Any:
    """After an attempt with smaller batches that ran out too: what XLA compiles as a whole takes
    its memory as a whole.
    """
    original = keras.Model.fit

    @functools.wraps(original)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(self, "jit_compile", False) and getattr(self, "train_function", None) is None:
            self.jit_compile = False
            say(
                "applied",
                "%s: jit_compile=False; equal up to rounding" % self.name,
                id="micro_batch",
                equivalence="exact",
            )
        return original(self, *args, **kwargs)

    keras.Model.fit = fit


class _Arrays:
    """Rows that Keras itself puts together to batches."""

    def __init__(self, x: Any, batch: Any) -> None:
        self.x, self.batch = x, batch

    def why_not(self) -> Any:
        arrays = (
            self.x
            if isinstance(self.x, (list, tuple))
            else list(self.x.values())
            if isinstance(self.x, dict)
            else [self.x]
        )
        if any(not hasattr(a, "shape") or isinstance(a, type(None)) for a in arrays):
            return (
                "the batches come from a generator; give it a smaller batch and "
                "Adam(gradient_accumulation_steps=...)"
            )
        if int(arrays[0].shape[0]) % self.batch:
            return "the last batch is smaller: accumulation would run over the end of the epoch"
        return None

    def cut(self, count: int, y: Any) -> Any:
        """(x, y, batch_size) for a fit in so many pieces."""
        return self.x, y, self.batch // count


class _Dataset:
    """Batches of a tf.data.Dataset."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.batch = self._rows()

    def _rows(self) -> Any:
        """Rows of every batch; 0 where they are not all alike."""
        import tensorflow as tf

        shapes = [spec.shape for spec in tf.nest.flatten(self.dataset.element_spec)]
        sizes = {shape[0] if shape.rank else None for shape in shapes if shape.rank is not None}
        size = sizes.pop() if len(sizes) == 1 else None
        return size or 0

    def why_not(self) -> Any:
        if not self.batch:
            return (
                "the size of the dataset's last batch is not known: batch(..., "
                "drop_remainder=True) makes all alike"
            )
        if not hasattr(self.dataset, "rebatch"):
            return "this version of TensorFlow cannot cut the batches of a dataset"
        return None

    def cut(self, count: int, y: Any) -> Any:
        return self.dataset.rebatch(self.batch // count), y, None


def _is_dataset(x: Any) -> bool:
    return any(c.__name__ == "DatasetV2" for c in type(x).__mro__)


def _why_not(keras: Any, model: Any) -> Any:
    if not hasattr(getattr(model, "optimizer", None), "gradient_accumulation_steps"):
        return keras_calls.OLD_KERAS
    if model.optimizer.gradient_accumulation_steps:
        return "the script accumulates itself"
    if not isinstance(model.optimizer._learning_rate, keras.Variable):
        return "its learning rate follows a schedule, which would count micro-batches"
    if model.optimizer.built:
        return "the optimizer has been used before"
    if any(
        getattr(type(model), name) is not _own(model, name)
        for name in ("train_step", "compute_loss")
    ):
        return (
            "its train_step or compute_loss is written by hand, and may do things once a batch; in "
            "there: gradients of slices of the batch, averaged"
        )
    if not all(_is_mean(loss) for loss in _losses(model)):
        return "its loss may be no mean over the batch, and Keras averages what it accumulates"
    if not all(_has_rows_apart(keras, layer) for layer in model._flatten_layers()):
        return "its layers may do something else with a part of the batch"
    return None


def _own(model: Any, name: str) -> Any:
    """Keras' own method of that name; None where it cannot be told."""
    own = [c for c in type(model).__mro__ if _is_keras(c)]
    return next((getattr(c, name) for c in own if hasattr(c, name)), None)


def _is_keras(thing: Any) -> bool:
    return getattr(thing, "__module__", "").split(".")[0] in ("keras", "tf_keras")


def _losses(model: Any) -> Any:
    loss = getattr(model, "loss", None)
    if isinstance(loss, dict):
        return list(loss.values())
    return list(loss) if isinstance(loss, (list, tuple)) else [loss]


def _is_mean(loss: Any) -> bool:
    """Whether a loss is a mean over rows; those that are no objects of their own are, in Keras."""
    known = loss is None or isinstance(loss, str) or _is_keras(loss)
    return known and getattr(loss, "reduction", "mean") in ("mean", "sum_over_batch_size")


def _has_rows_apart(keras: Any, layer: Any) -> bool:
    """Whether a layer is known to treat rows alone, to set nothing, to add no loss and to have no
    gradient of chosen rows, which an optimizer squares before they are added up.
    """
    some = (keras.layers.Lambda, keras.layers.Embedding, keras.layers.Masking)
    operations = getattr(layer, "_operations", ())
    return (
        _is_keras(type(layer))
        and not isinstance(layer, some)
        and getattr(layer, "activity_regularizer", None) is None
        and not (layer.trainable and layer._non_trainable_variables)
        and all(isinstance(operation, keras.layers.Layer) for operation in operations)
    )


def _draws(model: Any) -> bool:
    """Whether a layer draws random numbers: other ones for each piece."""
    return any(
        getattr(layer, "seed_generator", None) is not None
        or getattr(layer, "generator", None) is not None
        for layer in model._flatten_layers()
    )
