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
from . import feeding, host, retraces, steps, workers, wrapping
from .watched import Watched, watched

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


class _ByHand:
    """Stands for the optimizer where a program changes its weights itself."""


_by_hand = _ByHand()


def _around(cls: type, name: str, before: Callable[..., None], after: Callable[..., None]) -> None:
    """Wraps a method so that before(self) and after(self, *args) run around it. Inherited methods
    are left to their owner.
    """

    def around(original: Any) -> Any:
        def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
            before(self)
            result = original(self, *args, **kwargs)
            after(self, *args)
            return result

        return wrapped

    wrapping.once(cls, name, around)


def _nothing(*args: Any) -> None:
    pass


def install(tensorflow: Any) -> None:
    """Hooks TensorFlow, once."""
    if watched.tensorflow is None:
        watched.tensorflow = TensorFlow(tensorflow, watched)
        watched.tensorflow.install()


class TensorFlow:
    """The watch of TensorFlow and Keras."""

    __slots__ = (
        "_applying",
        "_builds",
        "_calls",
        "_eval_due",
        "_fitting",
        "_function",
        "_gpus",
        "_gradients",
        "_heap",
        "_last_batch",
        "_leader",
        "_loop",
        "_saving",
        "_taping",
        "_tf",
        "_train_ops",
    )

    def __init__(self, tensorflow: Any, watched: Watched) -> None:
        self._tf, self._loop = tensorflow, watched.loop
        self._builds, self._heap = watched.builds, watched.heap
        # names such as GPU:0, once the program has used TensorFlow
        self._gpus: Optional[List[str]] = None
        self._leader = steps.Leader()
        self._fitting = 0  # depth of fit: there the callbacks tell
        self._function: Any = None  # outermost tf.function that is running
        self._last_batch = -1
        # depth of optimizers that apply gradients: one may call another, or its parent. Replicas of
        # a distribution strategy are threads.
        self._applying = threading.local()
        self._gradients = 0  # computed by tapes since the last that an optimizer applied
        self._taping = 0  # tapes that record
        self._calls = 0  # of models without a tape, since the last step
        self._eval_due = 0
        self._saving = 0  # depth of functions that save
        # names of operations that apply gradients, where eager execution is off
        self._train_ops: List[str] = []

    def install(self) -> None:
        for name in (
            "keras.src.callbacks.callback_list",
            "keras.src.callbacks",
            "keras.callbacks",
            "tf_keras.src.callbacks",
            "tensorflow.python.keras.callbacks",
        ):
            imports.when_imported(name, self._hook_callbacks)
        for name, cls, method in _OPTIMIZERS:
            imports.when_imported(
                name, functools.partial(self._hook_optimizer, cls=cls, method=method)
            )
        for name in _MODELS:
            imports.when_imported(name, self._hook_model)
        for name, cls, methods in _SAVERS:
            imports.when_imported(
                name, functools.partial(self._hook_savers, cls=cls, methods=methods)
            )
        imports.when_imported(
            "tensorflow.python.eager.polymorphic_function.polymorphic_function",
            self._hook_functions,
        )
        imports.when_imported("tensorflow.python.eager.backprop", self._hook_tape)
        imports.when_imported("tensorflow.python.client.session", self._hook_session)
        imports.when_imported("tensorflow.python.data.ops.dataset_ops", feeding.hook_tf_data)
        imports.when_imported(
            "tensorflow.python.data.ops.iterator_ops",
            functools.partial(feeding.hook_tf_iterators, self._loop),
        )
        imports.when_imported("multiprocessing.process", workers.hook_processes)
        for name in ("keras.src.models.model", "keras.src.engine.training"):
            imports.when_imported(name, made.hook_keras)
        self._loop.command("heap", self._heap.tell)
        self._loop.begin("tensorflow", str(getattr(self._tf, "__version__", "")))

    def _close(self) -> None:
        """Ends a step. The program has made one, so asking for devices initialises nothing more."""
        self._calls = 0
        if self._loop.resting:
            self._loop.rest()
            return
        if self._gpus is None:
            self._gpus = [
                device.name.partition("device:")[2]
                for device in self._tf.config.list_logical_devices("GPU")
            ]
            if not self._gpus and self._tf.executing_eagerly():
                host.state.pool = self._host_pool
        self._loop.close(self._reading, range(len(self._gpus)))

    def _reading(self, device: int) -> steps.Reading:
        """What the BFC allocator of a GPU says. Reserved bytes it does not tell."""
        info = self._tf.config.experimental.get_memory_info((self._gpus or ())[device])
        return device, info["current"], 0, info["peak"], 0, 0, 0

    def _host_pool(self) -> Optional[Tuple[int, int]]:
        """(bytes in use, most of them ever) of TensorFlow's allocator of host memory, where it
        keeps a pool of its own (oneDNN's does); None where each tensor is malloc's.
        """
        try:
            info = self._tf.config.experimental.get_memory_info("CPU:0")
        except Exception:  # it has no figures, or this release does not tell them
            return None
        return info["current"], info["peak"]

    def _hook_callbacks(self, module: Any) -> None:
        cls = getattr(module, "CallbackList", None)
        if cls is None or not isinstance(cls, type):
            return
        _around(cls, "on_train_begin", self._fit_begins, _nothing)
        _around(cls, "on_train_end", _nothing, self._fit_ends)
        _around(cls, "on_train_batch_end", _nothing, self._batch_ends)
        _around(cls, "on_test_begin", self._eval_begins, _nothing)
        _around(cls, "on_test_end", _nothing, self._eval_ends)
        _around(cls, "on_predict_begin", self._eval_begins, _nothing)
        _around(cls, "on_predict_end", _nothing, self._eval_ends)

    @guard.hook("fit begins", needed=True)
    def _fit_begins(self, callbacks: Any) -> None:
        self._fitting, self._last_batch = 1, -1
        self._model_used(callbacks)

    @guard.hook("model used", heavy=True)
    def _model_used(self, callbacks: Any) -> None:
        model = getattr(callbacks, "model", None) or getattr(callbacks, "_model", None)
        if model is not None:
            self._builds.used(model)

    @guard.hook("model used", heavy=True)
    def _optimizer_used(self, optimizer: Any) -> None:
        self._builds.used(optimizer)

    @guard.hook("fit ends", needed=True)
    def _fit_ends(self, callbacks: Any, *args: Any) -> None:
        self._fitting = 0

    @guard.hook("batch ends", heavy=True, needed=True)
    def _batch_ends(self, callbacks: Any, batch: int = 0, *args: Any) -> None:
        """One call may stand for several steps (steps_per_execution): batch is the index of the
        last one.
        """
        first, self._last_batch = (self._last_batch + 1 if batch > self._last_batch else 0), batch
        for _ in range(min(batch - first, 1000)):
            self._loop.count()
        if feeding.filling:
            feeding.filled()
        self._close()

    @guard.hook("evaluation begins", heavy=True, needed=True)
    def _eval_begins(self, callbacks: Any) -> None:
        self._model_used(callbacks)
        self._loop.mark("eval", True)
        self._loop.phase = "eval"

    @guard.hook("evaluation ends", heavy=True, needed=True)
    def _eval_ends(self, callbacks: Any, *args: Any) -> None:
        self._loop.phase = "forward"
        self._loop.mark("eval", False)

    def _hook_optimizer(self, module: Any, cls: str, method: str) -> None:
        def around(original: Any) -> Any:
            def apply(it: Any, *args: Any, **kwargs: Any) -> Any:
                depth = getattr(self._applying, "depth", 0)
                self._applying.depth = depth + 1
                try:
                    result = original(it, *args, **kwargs)
                finally:
                    self._applying.depth = depth
                if not depth:
                    self._applied(it, result)
                return result

            return apply

        owner = getattr(module, cls, None)
        if isinstance(owner, type):
            wrapping.once(owner, method, around)

    @guard.hook("gradients applied", heavy=True, needed=True)
    def _applied(self, optimizer: Any, result: Any = None) -> None:
        self._gradients = 0
        if self._fitting:
            return
        self._optimizer_used(optimizer)
        if self._tf.executing_eagerly():
            if (
                self._function is None
                and self._first_replica()
                and self._leader.ends_step(optimizer)
            ):
                self._close()
        elif self._function is not None:
            self._function._memroom_trains = True
        elif result is not None and hasattr(result, "graph"):
            self._train_ops.append(result.name)
            del self._train_ops[:-64]

    def _first_replica(self) -> bool:
        """Whether this is the first replica of a distribution strategy: all make one step."""
        try:
            if not self._tf.distribute.has_strategy():
                return True
            context = self._tf.distribute.get_replica_context()
            if context is None or context.num_replicas_in_sync == 1:
                return True
            return int(self._tf.get_static_value(context.replica_id_in_sync_group) or 0) == 0
        except Exception:
            return True

    def _hook_tape(self, module: Any) -> None:
        """Tapes say when a program trains, and compute gradients."""
        cls = module.GradientTape
        enter, leave, gradient = cls.__enter__, cls.__exit__, cls.gradient

        @functools.wraps(enter)
        def __enter__(tape: Any) -> Any:
            self._taping += 1
            if self._calls:
                self._training_goes_on()
            return enter(tape)

        @functools.wraps(leave)
        def __exit__(tape: Any, *args: Any) -> Any:
            self._taping = max(0, self._taping - 1)
            return leave(tape, *args)

        @functools.wraps(gradient)
        def timed(tape: Any, *args: Any, **kwargs: Any) -> Any:
            if self._loop.resting or self._function is not None or self._fitting:
                result = gradient(tape, *args, **kwargs)
            else:
                began = now()
                before, self._loop.phase = self._loop.phase, "backward"
                try:
                    result = gradient(tape, *args, **kwargs)
                finally:
                    self._loop.phase = before
                    self._loop.backward_ns += now() - began
                    self._loop.micro_batches += 1
                    guard.ledger.spent_ns += 2 * guard.NOTE_NS
            if not self._fitting:
                self._computed()
            return result

        cls.__enter__, cls.__exit__, cls.gradient = __enter__, __exit__, timed

    @guard.hook("gradients computed", needed=True)
    def _computed(self) -> None:
        """A tape has computed gradients. Without an optimizer for several times, each ends a step:
        the program changes its weights itself.
        """
        if self._function is not None:
            if not self._tf.executing_eagerly():
                self._function._memroom_taped = True
            return
        self._gradients += 1
        if self._gradients > PATIENCE and not self._taping and self._leader.ends_step(_by_hand):
            self._close()

    def _training_goes_on(self) -> None:
        """A tape or a function that trains begins: an evaluation is over."""
        self._calls = 0
        if self._loop.phase == "eval":
            self._eval_ends(None)

    def _hook_functions(self, module: Any) -> None:
        original = module.Function.__call__

        @functools.wraps(original)
        def __call__(function: Any, *args: Any, **kwargs: Any) -> Any:
            if self._fitting or self._function is not None:
                return original(function, *args, **kwargs)
            if self._calls and getattr(function, "_memroom_trains", False):
                self._training_goes_on()
            self._function = function
            try:
                return original(function, *args, **kwargs)
            finally:
                self._function = None
                if getattr(function, "_memroom_trains", False):
                    self._function_ended(function)
                elif getattr(function, "_memroom_taped", False):
                    self._computed()
                elif getattr(function, "_memroom_models", False):
                    self._evaluates()

        module.Function.__call__ = __call__
        retraces.hook(module)

    @guard.hook("function ended", heavy=True, needed=True)
    def _function_ended(self, function: Any) -> None:
        self._gradients = 0
        if self._leader.ends_step(function):
            self._close()

    def _hook_session(self, module: Any) -> None:
        """A program without eager execution: running the operation that applies gradients is a
        step.
        """
        cls = module.BaseSession
        original = cls.run

        @functools.wraps(original)
        def run(session: Any, fetches: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(session, fetches, *args, **kwargs)
            if self._train_ops and not self._fitting:
                self._ran(session, fetches)
            return result

        cls.run = run

    @guard.hook("session ran", heavy=True, needed=True)
    def _ran(self, session: Any, fetches: Any) -> None:
        names = {getattr(f, "name", f) for f in self._tf.nest.flatten(fetches)}
        if not names.isdisjoint(self._train_ops) and self._leader.ends_step(session):
            self._close()

    def _hook_model(self, module: Any) -> None:
        """Models that are called outside of fit, and saved."""
        cls: Any = getattr(module, "Model", None)
        if not isinstance(cls, type):
            return
        owner: Any = cls
        self._hook_savers(module, "Model", ("save", "save_weights", "export"))
        if "__call__" in cls.__dict__:
            return

        @functools.wraps(cls.__call__)  # a layer's
        def __call__(model: Any, *args: Any, **kwargs: Any) -> Any:
            result = super(owner, model).__call__(*args, **kwargs)  # type: ignore[misc]
            if (
                not self._taping
                and not self._fitting
                and not kwargs.get("training")
                and self._loop.step
            ):
                self._evaluates()
            return result

        owner.__call__ = __call__

    @guard.hook("model called", needed=True)
    def _evaluates(self) -> None:
        if self._function is not None:
            if not self._tf.executing_eagerly():
                self._function._memroom_models = True
            return
        self._calls += 1
        if (
            self._calls == CALLS
            and self._loop.step
            and self._loop.phase != "eval"
            and now() >= self._eval_due
        ):
            self._eval_due = now() + _EVAL_EVERY_NS
            self._loop.mark("eval", True)
            self._loop.phase = "eval"

    def _hook_savers(self, module: Any, cls: str, methods: Tuple[str, ...]) -> None:
        owner = getattr(module, cls, None)
        for name in methods:
            if isinstance(owner, type):
                wrapping.once(owner, name, self._marked_as_saving)

    def _marked_as_saving(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def save(*args: Any, **kwargs: Any) -> Any:
            self._saving += 1
            before = self._save_begins() if self._saving == 1 else None
            try:
                return original(*args, **kwargs)
            finally:
                self._saving -= 1
                if not self._saving:
                    self._save_ends(before)

        return save

    @guard.hook("save begins", heavy=True, needed=True)
    def _save_begins(self) -> str:
        before, self._loop.phase = self._loop.phase, "save"
        self._loop.mark("save", True)
        return before

    @guard.hook("save ends", heavy=True, needed=True)
    def _save_ends(self, before: Optional[str]) -> None:
        self._loop.phase = before or "forward"
        self._loop.mark("save", False)
