"""Stops Keras with TensorFlow where it is about to train, and plays the training step instead
(graph.py).
"""

import inspect
import os
from typing import Any, Dict, Iterable

from ..imports import when_imported
from . import graph, own_loop

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
    rehearsal.tracing = False
    loop = own_loop.Loop(rehearsal, lambda *step: play_own(rehearsal, *step))
    when_imported("keras.src.backend.tensorflow.trainer", lambda m: _trainer(m, rehearsal, loop))
    when_imported("keras.src.optimizers.base_optimizer", lambda m: _optimizer(m, rehearsal, loop))
    when_imported("tensorflow", _hide_cards)
    when_imported("tensorflow", loop.install)


def _hide_cards(_: Any) -> None:
    """A real card of this machine must not be touched."""
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"


def _trainer(module: Any, rehearsal: Any, loop: own_loop.Loop) -> None:
    trainer, iterate = module.TensorFlowTrainer, module.TFEpochIterator
    signature = inspect.signature(trainer.fit)

    def fit(self: Any, *args: Any, **kwargs: Any) -> None:
        loop.leave()
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
        loop.leave()
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

    rehearsal.tracing = True
    data = tf.nest.map_structure(tf.convert_to_tensor, data)
    # Without a strategy Keras leaves it to the first trace: the optimizer would know no variables.
    model._maybe_symbolic_build(data_batch=data)
    if not all(layer.built for layer in model._flatten_layers()):
        model._symbolic_build(data_batch=data)
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    weights = list(model.variables)
    known = {id(v) for v in weights}
    states = [v for v in model.optimizer.variables if id(v) not in known]
    player = begun(rehearsal, weights, states)
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


def play_own(rehearsal: Any, step: Any, weights: Iterable[Any], states: Iterable[Any]) -> None:
    player = begun(rehearsal, weights, states)
    for number in range(1, graph.STEPS + 1):
        player.step(step, number)
    rehearsal.over("steps")


def begun(rehearsal: Any, weights: Iterable[Any], states: Iterable[Any]) -> graph.Player:
    rehearsal.tracing = True
    recorder = rehearsal.recorder
    recorder.warn(UNVALIDATED)
    recorder.warn(GROWTH)
    recorder.facts.update(cudnn=True, cublas=True)
    rehearsal.allocator = "bfc"
    player = graph.Player(recorder)
    player.variables(weights, states)
    return player


def traced(tf: Any, step: Any, data: Any) -> Any:
    specs = tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), data)
    return tf.function(step).get_concrete_function(specs).graph


def _optimizer(module: Any, rehearsal: Any, loop: own_loop.Loop) -> None:
    base = module.BaseOptimizer
    apply = base.apply

    def follow(self: Any, *args: Any, **kwargs: Any) -> Any:
        loop.optimizers[id(self)] = self
        return apply(self, *args, **kwargs)

    base.apply = follow
