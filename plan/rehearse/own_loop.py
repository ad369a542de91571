"""Follows a loop of the script's own in TensorFlow through its first step, without running it.

An eager step goes into a graph from its first GradientTape on, as it would inside tf.function,
until the same tape comes again, a value is asked for that no graph has, or the script ends. Of a
tf.function that trains, the graph is traced and the call does not happen. What changes no variable
is no step.
"""

from __future__ import annotations

import atexit
import gc
import sys
from types import FrameType, TracebackType
from typing import Any

from . import graph

NO_STEP = (
    "the script follows gradients with GradientTape in a way that a rehearsal cannot take for a "
    "training step: %s. Run it under `memroom run` and look at `memroom show`"
)
SESSION = (
    "the script trains in a session of TensorFlow 1, or with eager execution switched off: a "
    "rehearsal follows Keras' fit and GradientTape loops. Run it under `memroom run` and look at "
    "`memroom show`"
)
EAGER = (
    "the loop runs eagerly: tensors that its names still hold when the next step begins are not in "
    "the figures, nor what follows the optimizer where it asks for values"
)


class Loop:
    def __init__(self, rehearsal: Any, play: Any) -> None:
        self.rehearsal, self.play = rehearsal, play  # play(graph, variables, states): ends all
        self.optimizers: dict[int, Any] = {}  # that were applied in what is traced
        self.graph: Any = None  # into which an eager step goes
        self.scope: Any = None
        self.tapes: set[tuple[str, int]] = set()  # where the ones of this step begin

    def install(self, tf: Any) -> None:
        from tensorflow.python.client import session
        from tensorflow.python.eager.polymorphic_function import polymorphic_function

        self.tf = tf
        tape, function = tf.GradientTape, polymorphic_function.Function
        enter, call = tape.__enter__, function.__call__

        def entered(this: Any) -> Any:
            if not self.rehearsal.tracing and "torch" not in sys.modules:
                self.begins(sys._getframe(1))
            return enter(this)

        def called(this: Any, *args: Any, **kwargs: Any) -> Any:
            if tf.executing_eagerly() and not self.rehearsal.tracing:
                self.optimizers.clear()
                traced = this.get_concrete_function(*args, **kwargs).graph
                if self.optimizers or changes(traced):
                    self.ends(traced)
            return call(this, *args, **kwargs)

        run = session.BaseSession.run

        def ran(this: Any, *args: Any, **kwargs: Any) -> Any:
            if any("gradients/" in op.name for op in this.graph.get_operations()):
                self.rehearsal.fail(SESSION)
            return run(this, *args, **kwargs)

        tape.__enter__, function.__call__, session.BaseSession.run = entered, called, ran

    def begins(self, frame: FrameType) -> None:
        """A tape begins: a step, a part of it, or the next one."""
        place = (frame.f_code.co_filename, frame.f_lineno)
        if self.graph is None:
            if not self.tf.executing_eagerly():
                return  # in a tf.function
            from tensorflow.python.framework.func_graph import FuncGraph

            self.graph = FuncGraph("step")
            self.scope = self.graph.as_default()
            self.scope.__enter__()
            atexit.register(self.over)
            sys.excepthook = self.broke
        elif place in self.tapes:
            self.over()
        self.tapes.add(place)

    def leave(self) -> None:
        """Keras trains, by itself: what went into the graph before was no step."""
        if self.graph is not None:
            self.scope.__exit__(None, None, None)
            atexit.unregister(self.over)
            self.graph = None

    def broke(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        while trace is not None and trace.tb_next is not None and not library(trace.tb_next):
            trace = trace.tb_next
        line = "line %d" % trace.tb_lineno if trace is not None else "its end"
        self.over("%s asks for a value of a step before it is over (%s)" % (line, kind.__name__))

    def over(self, why: str = "no variable changes after the tape") -> None:
        if self.graph is None or self.rehearsal.written:
            return
        if not (self.optimizers or changes(self.graph)):
            self.rehearsal.fail(NO_STEP % why)
        self.graph.inputs = list(self.graph.internal_captures)
        self.rehearsal.recorder.warn(EAGER)
        self.ends(self.graph)

    def ends(self, step: Any) -> None:
        states = [v for o in self.optimizers.values() for v in o.variables]
        trained = {id(v) for o in self.optimizers.values() for v in o._trainable_variables}
        states = [getattr(v, "value", v) for v in states if id(v) not in trained]
        known = {id(v) for v in states}
        self.leave()
        with self.tf.init_scope():
            alive = [v for v in gc.get_objects() if isinstance(v, self.tf.Variable)]
        self.play(innermost(step), [v for v in alive if id(v) not in known], states)


def library(trace: TracebackType) -> bool:
    return "site-packages" in trace.tb_frame.f_code.co_filename


def innermost(step: Any) -> Any:
    """The graph that has the gradients: a call of a call has them in its own."""
    if not any("gradient_tape/" in op.name for op in step.get_operations()):
        for op in step.get_operations():
            body = graph.body_of(op, graph.CALLS[op.type]) if op.type in graph.CALLS else None
            if body is not None and changes(innermost(body)):
                return innermost(body)
    return step


def changes(step: Any) -> bool:
    """Whether a graph has gradients and changes variables."""
    names = [(op.type, op.name) for op in step.get_operations()]
    return any(kind in graph.ASSIGNS for kind, _ in names) and any(
        "gradient_tape/" in name for _, name in names
    )
