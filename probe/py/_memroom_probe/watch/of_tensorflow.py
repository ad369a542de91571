"""TensorFlow and Keras: steps, phases and the BFC allocator's figures.

Keras' fit tells its callbacks after each batch, so the list of callbacks is where steps are seen:
no callback is added. A loop of one's own applies gradients eagerly, or inside a tf.function: the
first is seen at the optimizer, the second by noting, while a function is traced, that gradients are
applied in it. Where no optimizer is used, each gradient that a tape computes ends a step; where
eager execution is off, a session's run of the operation that applies gradients does. A model that
is called again and again without a tape is evaluated. An exhausted allocator is recognised when its
exception ends the process (see oom).
"""

import functools
import threading
from typing import Any, Callable, List, Optional, Tuple

from .. import guard, imports, made
from . import feeding, heap, host, models, retraces, steps, workers

now = guard.now

PATIENCE = 4  # gradients without an optimizer after which weights are taken to be changed by hand
CALLS = 3  # of models without a tape between two steps that are an evaluation
_EVAL_EVERY_NS = 100000000  # a program may evaluate after every short step

# where an optimizer applies gradients, in each Keras that is about: module, class, method
_OPTIMIZERS = (
    ("keras.src.optimizers.base_optimizer", "BaseOptimizer", "apply"),
    ("keras.src.optimizers.optimizer", "_BaseOptimizer", "apply_gradients"),
    ("keras.src.optimizers.legacy.optimizer_v2", "OptimizerV2", "apply_gradients"),
    ("keras.optimizers.optimizer_v2.optimizer_v2", "OptimizerV2", "apply_gradients"),
    ("tf_keras.src.optimizers.optimizer", "_BaseOptimizer", "apply_gradients"),
    ("tf_keras.src.optimizers.legacy.optimizer_v2", "OptimizerV2", "apply_gradients"),
    ("tensorflow.python.keras.optimizer_v2.optimizer_v2", "OptimizerV2", "apply_gradients"),
    ("tensorflow.python.training.optimizer", "Optimizer", "apply_gradients"),
)
_MODELS = (
    "keras.src.models.model",
    "keras.src.engine.training",
    "keras.engine.training",
    "tf_keras.src.engine.training",
)
_SAVERS = (
    ("tensorflow.python.checkpoint.checkpoint", "Checkpoint", ("save", "write")),
    ("tensorflow.python.checkpoint.checkpoint_management", "CheckpointManager", ("save",)),
)

_tf: Any = None
_gpus: Optional[List[str]] = None  # names such as GPU:0, once the program has used TensorFlow
_leader = steps.Leader()
_fitting = 0  # depth of fit: there the callbacks tell
_function: Any = None  # outermost tf.function that is running
_last_batch = -1
# depth of optimizers that apply gradients: one may call another, or its parent. Replicas of a
# distribution strategy are threads.
_applying = threading.local()
_gradients = 0  # computed by tapes since the last that an optimizer applied
_taping = 0  # tapes that record
_calls = 0  # of models without a tape, since the last step
_eval_due = 0
_saving = 0  # depth of functions that save


class _ByHand:
    """Stands for the optimizer where a program changes its weights itself."""


_by_hand = _ByHand()


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
    for name, cls, method in _OPTIMIZERS:
        imports.when_imported(name, functools.partial(_hook_optimizer, cls=cls, method=method))
    for name in _MODELS:
        imports.when_imported(name, _hook_model)
    for name, cls, methods in _SAVERS:
        imports.when_imported(name, functools.partial(_hook_savers, cls=cls, methods=methods))
    imports.when_imported(
        "tensorflow.python.eager.polymorphic_function.polymorphic_function", _hook_functions
    )
    imports.when_imported("tensorflow.python.eager.backprop", _hook_tape)
    imports.when_imported("tensorflow.python.client.session", _hook_session)
    imports.when_imported("tensorflow.python.data.ops.dataset_ops", feeding.hook_tf_data)
    imports.when_imported("tensorflow.python.data.ops.iterator_ops", feeding.hook_tf_iterators)
    imports.when_imported("multiprocessing.process", workers.hook_processes)
    for name in ("keras.src.models.model", "keras.src.engine.training"):
        imports.when_imported(name, made.hook_keras)
    steps.command("heap", heap.tell)
    steps.begin("tensorflow", str(getattr(tensorflow, "__version__", "")))


def _close() -> None:
    """Ends a step. The program has made one, so asking for devices initialises nothing more."""
    global _gpus, _calls
    _calls = 0
    if steps.resting:
        steps.rest()
        return
    if _gpus is None:
        _gpus = [
            device.name.partition("device:")[2] for device in _tf.config.list_logical_devices("GPU")
        ]
        if not _gpus and _tf.executing_eagerly():
            host.pool = _host_pool
    steps.close(_reading, range(len(_gpus)))


def _reading(device: int) -> steps.Reading:
    """What the BFC allocator of a GPU says. Reserved bytes it does not tell."""
    info = _tf.config.experimental.get_memory_info(_gpus[device])
    return device, info["current"], 0, info["peak"], 0, 0, 0


def _host_pool() -> Optional[Tuple[int, int]]:
    """(bytes in use, most of them ever) of TensorFlow's allocator of host memory, where it keeps a
    pool of its own (oneDNN's does); None where each tensor is malloc's.
    """
    try:
        info = _tf.config.experimental.get_memory_info("CPU:0")
    except Exception:  # it has no figures, or this release does not tell them
        return None
    return info["current"], info["peak"]


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


@guard.hook("fit begins", needed=True)
def _fit_begins(callbacks: Any) -> None:
    global _fitting, _last_batch
    _fitting, _last_batch = 1, -1
    _model_used(callbacks)


@guard.hook("model used", heavy=True)
def _model_used(callbacks: Any) -> None:
    model = getattr(callbacks, "model", None) or getattr(callbacks, "_model", None)
    if model is not None:
        models.used(model)


@guard.hook("model used", heavy=True)
def _optimizer_used(optimizer: Any) -> None:
    models.used(optimizer)


@guard.hook("fit ends", needed=True)
def _fit_ends(callbacks: Any, *args: Any) -> None:
    global _fitting
    _fitting = 0


@guard.hook("batch ends", heavy=True, needed=True)
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


@guard.hook("evaluation begins", heavy=True, needed=True)
def _eval_begins(callbacks: Any) -> None:
    _model_used(callbacks)
    steps.mark("eval", True)
    steps.phase = "eval"


@guard.hook("evaluation ends", heavy=True, needed=True)
def _eval_ends(callbacks: Any, *args: Any) -> None:
    steps.phase = "forward"
    steps.mark("eval", False)


def _hook_optimizer(module: Any, cls: str, method: str) -> None:
    optimizer = getattr(module, cls, None)
    original = getattr(optimizer, "__dict__", {}).get(method)
    if original is None or getattr(original, "_memroom", False):
        return

    @functools.wraps(original)
    def apply(self: Any, *args: Any, **kwargs: Any) -> Any:
        depth = getattr(_applying, "depth", 0)
        _applying.depth = depth + 1
        try:
            result = original(self, *args, **kwargs)
        finally:
            _applying.depth = depth
        if not depth:
            _applied(self, result)
        return result

    apply._memroom = True
    setattr(optimizer, method, apply)


@guard.hook("gradients applied", heavy=True, needed=True)
def _applied(optimizer: Any, result: Any = None) -> None:
    global _gradients
    _gradients = 0
    if _fitting:
        return
    _optimizer_used(optimizer)
    if _tf.executing_eagerly():
        if _function is None and _first_replica() and _leader.ends_step(optimizer):
            _close()
    elif _function is not None:
        _function._memroom_trains = True
    elif result is not None and hasattr(result, "graph"):
        _train_ops.append(result.name)
        del _train_ops[:-64]


def _first_replica() -> bool:
    """Whether this is the first replica of a distribution strategy: all of them make one step."""
    try:
        if not _tf.distribute.has_strategy():
            return True
        context = _tf.distribute.get_replica_context()
        if context is None or context.num_replicas_in_sync == 1:
            return True
        return int(_tf.get_static_value(context.replica_id_in_sync_group) or 0) == 0
    except Exception:
        return True


def _hook_tape(module: Any) -> None:
    """Tapes say when a program trains, and compute gradients."""
    cls = module.GradientTape
    enter, leave, gradient = cls.__enter__, cls.__exit__, cls.gradient

    @functools.wraps(enter)
    def __enter__(self: Any) -> Any:
        global _taping
        _taping += 1
        if _calls:
            _training_goes_on()
        return enter(self)

    @functools.wraps(leave)
    def __exit__(self: Any, *args: Any) -> Any:
        global _taping
        _taping = max(0, _taping - 1)
        return leave(self, *args)

    @functools.wraps(gradient)
    def timed(self: Any, *args: Any, **kwargs: Any) -> Any:
        if steps.resting or _function is not None or _fitting:
            result = gradient(self, *args, **kwargs)
        else:
            began = now()
            before, steps.phase = steps.phase, "backward"
            try:
                result = gradient(self, *args, **kwargs)
            finally:
                steps.phase = before
                steps.backward_ns += now() - began
                steps.micro_batches += 1
                guard.spent_ns += 2 * guard.NOTE_NS
        if not _fitting:
            _computed()
        return result

    cls.__enter__, cls.__exit__, cls.gradient = __enter__, __exit__, timed


@guard.hook("gradients computed", needed=True)
def _computed() -> None:
    """A tape has computed gradients. Without an optimizer for several times, each ends a step: the
    program changes its weights itself.
    """
    global _gradients
    if _function is not None:
        if not _tf.executing_eagerly():
            _function._memroom_taped = True
        return
    _gradients += 1
    if _gradients > PATIENCE and not _taping and _leader.ends_step(_by_hand):
        _close()


def _training_goes_on() -> None:
    """A tape or a function that trains begins: an evaluation is over."""
    global _calls
    _calls = 0
    if steps.phase == "eval":
        _eval_ends(None)


def _hook_functions(module: Any) -> None:
    original = module.Function.__call__

    @functools.wraps(original)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        global _function
        if _fitting or _function is not None:
            return original(self, *args, **kwargs)
        if _calls and getattr(self, "_memroom_trains", False):
            _training_goes_on()
        _function = self
        try:
            return original(self, *args, **kwargs)
        finally:
            _function = None
            if getattr(self, "_memroom_trains", False):
                _function_ended(self)
            elif getattr(self, "_memroom_taped", False):
                _computed()
            elif getattr(self, "_memroom_models", False):
                _evaluates()

    module.Function.__call__ = __call__
    retraces.hook(module)


@guard.hook("function ended", heavy=True, needed=True)
def _function_ended(function: Any) -> None:
    global _gradients
    _gradients = 0
    if _leader.ends_step(function):
        _close()


_train_ops: List[str] = []  # names of operations that apply gradients, where eager execution is off


def _hook_session(module: Any) -> None:
    """A program without eager execution: running the operation that applies gradients is a step."""
    cls = module.BaseSession
    original = cls.run

    @functools.wraps(original)
    def run(self: Any, fetches: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, fetches, *args, **kwargs)
        if _train_ops and not _fitting:
            _ran(self, fetches)
        return result

    cls.run = run


@guard.hook("session ran", heavy=True, needed=True)
def _ran(session: Any, fetches: Any) -> None:
    names = {getattr(f, "name", f) for f in _tf.nest.flatten(fetches)}
    if not names.isdisjoint(_train_ops) and _leader.ends_step(session):
        _close()


def _hook_model(module: Any) -> None:
    """Models that are called outside of fit, and saved."""
    cls: Any = getattr(module, "Model", None)
    if not isinstance(cls, type):
        return
    owner: Any = cls
    _hook_savers(module, "Model", ("save", "save_weights", "export"))
    if "__call__" in cls.__dict__:
        return

    @functools.wraps(cls.__call__)  # a layer's
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = super(owner, self).__call__(*args, **kwargs)
        if not _taping and not _fitting and not kwargs.get("training") and steps.step:
            _evaluates()
        return result

    owner.__call__ = __call__


@guard.hook("model called", needed=True)
def _evaluates() -> None:
    global _calls, _eval_due
    if _function is not None:
        if not _tf.executing_eagerly():
            _function._memroom_models = True
        return
    _calls += 1
    if _calls == CALLS and steps.step and steps.phase != "eval" and now() >= _eval_due:
        _eval_due = now() + _EVAL_EVERY_NS
        steps.mark("eval", True)
        steps.phase = "eval"


def _hook_savers(module: Any, cls: str, methods: Tuple[str, ...]) -> None:
    owner = getattr(module, cls, None)
    for name in methods:
        original = getattr(owner, "__dict__", {}).get(name)
        if original is None or getattr(original, "_memroom", False):
            continue
        setattr(owner, name, _marked_as_saving(original))


def _marked_as_saving(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        global _saving
        _saving += 1
        before = _save_begins() if _saving == 1 else None
        try:
            return original(*args, **kwargs)
        finally:
            _saving -= 1
            if not _saving:
                _save_ends(before)

    save._memroom = True
    return save


@guard.hook("save begins", heavy=True, needed=True)
def _save_begins() -> str:
    before, steps.phase = steps.phase, "save"
    steps.mark("save", True)
    return before


@guard.hook("save ends", heavy=True, needed=True)
def _save_ends(before: Optional[str]) -> None:
    steps.phase = before or "forward"
    steps.mark("save", False)
