"""TensorFlow and Keras: steps, evaluation and the BFC allocator's figures.

Keras' fit tells its callbacks after each batch, so the list of callbacks is where steps are seen:
no callback is added. A loop of one's own applies gradients eagerly, or inside a tf.function: the
first is seen at the optimizer, the second by noting, while a function is traced, that gradients are
applied in it. An exhausted allocator is recognised when its exception ends the process (see oom).
"""

import functools
from typing import Any, Callable, List, Optional, Set

from .. import guard, imports
from . import feeding, heap, models, retraces, steps

now = guard.now

_tf: Any = None
_gpus: Optional[List[str]] = None  # names such as GPU:0, once the program has used TensorFlow
_leader = steps.Leader()
_fitting = 0  # depth of fit: there the callbacks tell
_function: Any = None  # outermost tf.function that is running
_trainers: Set[int] = set()  # ids of tf.functions in which gradients are applied
_last_batch = -1


def install(tensorflow: Any) -> None:
    global _tf
    if _tf is not None:
        return
    _tf = tensorflow
    for name in (
        "keras.src.callbacks.callback_list",
        "keras.src.callbacks",
        "keras.callbacks",
        "tf_keras.src.callbacks",
        "tensorflow.python.keras.callbacks",
    ):
        imports.when_imported(name, _hook_callbacks)
    for name, cls, method in (
        ("keras.src.optimizers.base_optimizer", "BaseOptimizer", "apply"),
        ("keras.src.optimizers.optimizer", "Optimizer", "apply_gradients"),
        ("tensorflow.python.keras.optimizer_v2.optimizer_v2", "OptimizerV2", "apply_gradients"),
    ):
        imports.when_imported(name, functools.partial(_hook_optimizer, cls=cls, method=method))
    imports.when_imported(
        "tensorflow.python.eager.polymorphic_function.polymorphic_function", _hook_functions
    )
    imports.when_imported("tensorflow.python.data.ops.dataset_ops", feeding.hook_tf_data)
    imports.when_imported("tensorflow.python.data.ops.iterator_ops", feeding.hook_tf_iterators)
    steps.command("heap", heap.tell)
    steps.begin("tensorflow", str(getattr(tensorflow, "__version__", "")))


def _close() -> None:
    """Ends a step. The program has made one, so asking for devices initialises nothing more."""
    global _gpus
    if steps.resting:
        steps.rest()
        return
    if _gpus is None:
        _gpus = [
            device.name.partition("device:")[2] for device in _tf.config.list_logical_devices("GPU")
        ]
    steps.close(_reading, range(len(_gpus)))


def _reading(device: int) -> steps.Reading:
    """What the BFC allocator of a GPU says. Reserved bytes it does not tell."""
    info = _tf.config.experimental.get_memory_info(_gpus[device])
    return device, info["current"], 0, info["peak"], 0, 0, 0


def _around(cls: type, name: str, before: Callable[..., None], after: Callable[..., None]) -> None:
    """Wraps a method so that before(self) and after(self, *args) run around it. Inherited methods
    are left to their owner.
    """
    original = cls.__dict__.get(name)
    if original is None or getattr(original, "_memroom", False):
        return

    @functools.wraps(original)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        before(self)
        result = original(self, *args, **kwargs)
        after(self, *args)
        return result

    wrapped._memroom = True
    setattr(cls, name, wrapped)


def _nothing(*args: Any) -> None:
    pass


def _hook_callbacks(module: Any) -> None:
    cls = getattr(module, "CallbackList", None)
    if cls is None or not isinstance(cls, type):
        return
    _around(cls, "on_train_begin", _fit_begins, _nothing)
    _around(cls, "on_train_end", _nothing, _fit_ends)
    _around(cls, "on_train_batch_end", _nothing, _batch_ends)
    _around(cls, "on_test_begin", _eval_begins, _nothing)
    _around(cls, "on_test_end", _nothing, _eval_ends)
    _around(cls, "on_predict_begin", _eval_begins, _nothing)
    _around(cls, "on_predict_end", _nothing, _eval_ends)


@guard.hook("fit begins")
def _fit_begins(callbacks: Any) -> None:
    global _fitting, _last_batch
    _fitting, _last_batch = 1, -1
    _model_used(callbacks)


@guard.hook("model used", heavy=True)
def _model_used(callbacks: Any) -> None:
    model = getattr(callbacks, "model", None) or getattr(callbacks, "_model", None)
    if model is not None:
        models.used(model)


@guard.hook("fit ends")
def _fit_ends(callbacks: Any, *args: Any) -> None:
    global _fitting
    _fitting = 0


@guard.hook("batch ends", heavy=True)
def _batch_ends(callbacks: Any, batch: int = 0, *args: Any) -> None:
    """One call may stand for several steps (steps_per_execution): batch is the index of the last
    one.
    """
    global _last_batch
    first, _last_batch = (_last_batch + 1 if batch > _last_batch else 0), batch
    for _ in range(min(batch - first, 1000)):
        steps.count()
    if feeding.filling:
        feeding.filled()
    _close()


@guard.hook("evaluation begins", heavy=True)
def _eval_begins(callbacks: Any) -> None:
    _model_used(callbacks)
    steps.mark("eval", True)
    steps.phase = "eval"


@guard.hook("evaluation ends", heavy=True)
def _eval_ends(callbacks: Any, *args: Any) -> None:
    steps.phase = "forward"
    steps.mark("eval", False)


def _hook_optimizer(module: Any, cls: str, method: str) -> None:
    optimizer = getattr(module, cls, None)
    if optimizer is not None:
        _around(optimizer, method, _nothing, _applied)


@guard.hook("gradients applied", heavy=True)
def _applied(optimizer: Any, *args: Any) -> None:
    if _fitting:
        return
    models.used(optimizer)
    if _tf.executing_eagerly():
        if _function is None and _leader.ends_step(optimizer):
            _close()
    elif _function is not None:
        _trainers.add(_function)


def _hook_functions(module: Any) -> None:
    original = module.Function.__call__

    @functools.wraps(original)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        global _function
        if _fitting or _function is not None:
            return original(self, *args, **kwargs)
        _function = id(self)
        try:
            return original(self, *args, **kwargs)
        finally:
            _function = None
            if id(self) in _trainers:
                _function_ended(self)

    module.Function.__call__ = __call__
    retraces.hook(module)


@guard.hook("function ended", heavy=True)
def _function_ended(function: Any) -> None:
    if _leader.ends_step(function):
        _close()
