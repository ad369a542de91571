"""Stops Keras with TensorFlow where it is about to train, and plays the training step instead
(graph.py).
"""

import inspect
import os
import sys
from typing import Any, Dict

from ..imports import when_imported

OWN_LOOP = (
    "the script trains with a loop of its own in TensorFlow: a rehearsal follows "
    "Keras' fit and train_on_batch. Run it under `memroom run` and look "
    "at `memroom show`"
)
UNVALIDATED = (
    "unvalidated: the step was traced on the CPU and played operation by operation. "
    "No such answer was compared with a card; XLA (Keras' default "
    "on GPUs where a model allows it), fused kernels, parallel branches and cuDNN's "
    "workspaces are not in it"
)
GROWTH = (
    "TensorFlow takes nearly the whole card at its start unless memory growth is on: "
    "the bytes are those with growth"
)


def watch(rehearsal: Any) -> None:
    when_imported("keras.src.backend.tensorflow.trainer", lambda m: _trainer(m, rehearsal))
    when_imported("keras.src.optimizers.base_optimizer", lambda m: _optimizer(m, rehearsal))
    when_imported("tensorflow", lambda m: _hide_cards())


def _hide_cards() -> None:
    """A real card of this machine must not be touched."""
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"


def _trainer(module: Any, rehearsal: Any) -> None:
    trainer, iterate = module.TensorFlowTrainer, module.TFEpochIterator
    signature = inspect.signature(trainer.fit)

    def fit(self: Any, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(self, *args, **kwargs)
        given.apply_defaults()
        asked = given.arguments
        self._assert_compile_called("fit")
        data = first_batch(
            iterate,
            self,
            asked,
            asked["x"],
            asked["y"],
            asked["sample_weight"],
            asked["batch_size"],
        )
        held_out = data if asked["validation_split"] else None
        if asked["validation_data"] is not None:
            parts = (
                (tuple(asked["validation_data"]) + (None, None))[:3]
                if isinstance(asked["validation_data"], (tuple, list))
                else (asked["validation_data"], None, None)
            )
            held_out = first_batch(
                iterate,
                self,
                dict(asked, class_weight=None),
                *parts,
                asked["validation_batch_size"] or asked["batch_size"],
            )
        play(rehearsal, self, data, held_out)

    def train_on_batch(
        self: Any, x: Any, y: Any = None, sample_weight: Any = None, **kwargs: Any
    ) -> None:
        play(rehearsal, self, tuple(v for v in (x, y, sample_weight) if v is not None), None)

    trainer.fit, trainer.train_on_batch = fit, train_on_batch


def first_batch(
    iterate: Any, model: Any, asked: Dict[str, Any], x: Any, y: Any, weight: Any, batch_size: Any
) -> Any:
    epoch = iterate(
        x=x,
        y=y,
        sample_weight=weight,
        batch_size=batch_size,
        steps_per_epoch=asked["steps_per_epoch"],
        shuffle=False,
        class_weight=asked["class_weight"],
        distribute_strategy=model.distribute_strategy,
        steps_per_execution=1,
    )
    for _, _, batches in epoch:
        return next(batches)


def play(rehearsal: Any, model: Any, data: Any, held_out: Any) -> None:
    """Traces the steps, notes what they take, and ends the process: nothing is trained."""
    import tensorflow as tf

    from . import graph

    rehearsal.tracing = True
    data = tf.nest.map_structure(tf.convert_to_tensor, data)
    # Without a strategy Keras leaves it to the first trace: the optimizer would know no variables.
    model._maybe_symbolic_build(data_batch=data)
    if not all(layer.built for layer in model._flatten_layers()):
        model._symbolic_build(data_batch=data)
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    recorder = rehearsal.recorder
    recorder.warn(UNVALIDATED)
    recorder.warn(GROWTH)
    recorder.facts.update(cudnn=True, cublas=True)
    rehearsal.allocator = "bfc"
    player = graph.Player(recorder)
    player.variables(model)
    train = traced(tf, model.train_step, data)
    for number in range(1, graph.STEPS + 1):
        player.step(train, number)
    if held_out is not None:
        player.step(
            traced(tf, model.test_step, tf.nest.map_structure(tf.convert_to_tensor, held_out)),
            graph.STEPS,
            train=False,
        )
    rehearsal.over("steps")


def traced(tf: Any, step: Any, data: Any) -> Any:
    specs = tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), data)
    return tf.function(step).get_concrete_function(specs).graph


def _optimizer(module: Any, rehearsal: Any) -> None:
    """An optimizer that is applied before fit was met belongs to a loop of the script's own."""
    base = module.BaseOptimizer
    apply = base.apply

    def follow(self: Any, *args: Any, **kwargs: Any) -> Any:
        if (
            not getattr(rehearsal, "tracing", False)
            and not rehearsal.recorder.events
            and "torch" not in sys.modules
        ):
            rehearsal.fail(OWN_LOOP)
        return apply(self, *args, **kwargs)

    base.apply = follow
