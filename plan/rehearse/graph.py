"""Plays the graph of a training step as TensorFlow's executor would run it on a card, without
running it.

Keras is stopped when it is about to fit: the training step is traced for the shapes of one real
batch, and the traced operations are gone through in their order. A result takes memory when its
operation runs and gives it back after its last reader; what is only another view of a buffer takes
none, and element-wise operations write into an input that nobody else needs. Loops (recurrent
layers) are gone through as often as they turn. Which of the real executor's freedoms (parallel
branches, rewritten graphs, XLA, cuDNN's workspaces) are taken is not known here: the answer is
marked as unvalidated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterable, Sequence, Union

from . import recorder as record

if TYPE_CHECKING:
    import tensorflow as tf
    from tensorflow.python.framework.func_graph import FuncGraph

# what a tensor of the graph is while it is played; None is what takes no memory of the card
Value = Union["Buffer", "List", None]

VIEWS = {
    "Identity",
    "IdentityN",
    "Reshape",
    "Squeeze",
    "ExpandDims",
    "StopGradient",
    "PreventGradient",
    "Bitcast",
    "EnsureShape",
    "Snapshot",
    "ReadVariableOp",
}
IN_PLACE = {
    "Relu",
    "Relu6",
    "LeakyRelu",
    "Elu",
    "Selu",
    "Tanh",
    "Sigmoid",
    "Softplus",
    "Exp",
    "Log",
    "Neg",
    "Square",
    "Sqrt",
    "Rsqrt",
    "Abs",
    "Sign",
    "Reciprocal",
    "Add",
    "AddV2",
    "AddN",
    "Sub",
    "Mul",
    "RealDiv",
    "Div",
    "DivNoNan",
    "MulNoNan",
    "Maximum",
    "Minimum",
    "Pow",
    "SquaredDifference",
    "ReluGrad",
    "Relu6Grad",
    "LeakyReluGrad",
    "EluGrad",
    "TanhGrad",
    "SigmoidGrad",
    "RsqrtGrad",
    "SqrtGrad",
    "Softmax",
    "LogSoftmax",
    "Select",
    "SelectV2",
    "ClipByValue",
    "BiasAdd",
}
CALLS = {
    "PartitionedCall": "f",
    "StatefulPartitionedCall": "f",
    "If": "then_branch",
    "StatelessIf": "then_branch",
}
ASSIGNS = {
    "AssignVariableOp",
    "AssignAddVariableOp",
    "AssignSubVariableOp",
    "ResourceApplyGradientDescent",
}
LOOPS = ("While", "StatelessWhile")
PREPARED = ("Const", "EmptyTensorList")  # made for the backward pass, needed by the forward one
STEPS = 2
TURNS = 1024  # of one loop that are gone through; a longer one is cut there

UNKNOWN_SIZES = "some tensors of the traced step have no known size: they were left out"
LONG_LOOP = "a loop turns more than %d times: it was followed as far" % TURNS


class Buffer:
    """Memory of the card. `ident` 0 is memory that is always there, such as a variable's."""

    __slots__ = ("ident", "size", "refs")

    def __init__(self, ident: int, size: int) -> None:
        self.ident, self.size, self.refs = ident, size, 0


class List:
    """TensorFlow's list of tensors, with which loops keep what their backward pass needs."""

    __slots__ = ("items", "refs")

    def __init__(self, items: list[Value]) -> None:
        self.items, self.refs = items, 0


class Player:
    def __init__(self, recorder: record.Recorder) -> None:
        self.recorder = recorder
        self.constants: dict[str, Value] = {}
        # graph -> its operations in order; the graph is kept, so that its id is not another's
        self.orders: dict[int, tuple[list[tf.Operation], FuncGraph]] = {}
        self.gradients_end = 0
        self.turn = 0

    # -- memory
    # ------------------------------------------------------------

    def new(self, size: int, op: tf.Operation, category: int) -> Buffer | None:
        if size <= 0:
            return None
        return Buffer(self.recorder.alloc(size, op.type, layer_of(op.name), category), size)

    def hold(self, value: Value) -> Value:
        if value is not None:
            value.refs += 1
        return value

    def drop(self, value: Value) -> None:
        if value is None:
            return
        value.refs -= 1
        if value.refs:
            return
        if isinstance(value, List):
            for item in value.items:
                self.drop(item)
        elif value.ident:
            self.recorder.free(value.ident)

    # -- a step
    # ------------------------------------------------------------

    def variables(self, weights: Iterable[Any], states: Iterable[Any]) -> None:
        """Everything that outlives a step."""
        for category, held in ((record.WEIGHTS, weights), (record.OPTIMIZER, states)):
            for v in held:
                size = bytes_of(tuple(v.shape), itemsize(v.dtype))
                self.recorder.alloc(size, "Variable", getattr(v, "path", ""), category)

    def step(self, graph: FuncGraph, number: int, train: bool = True) -> None:
        ops = self.ordered(graph)
        backward = [
            i
            for i, op in enumerate(ops)
            if op.name.startswith("gradient_tape/") and op.type not in PREPARED
        ]
        self.gradients_begin, self.gradients_end = (
            (backward[0], backward[-1]) if backward else (len(ops), len(ops))
        )
        self.top = {op.name: i for i, op in enumerate(ops)}
        self.recorder.mark("forward" if train else "eval")
        inputs = [
            self.new(size_of(t), t.op, record.INPUT)
            if t.dtype.name not in ("resource", "variant")
            else Buffer(0, 0)
            for t in graph.inputs
        ]
        results = self.run(graph, inputs, True)
        for value in results:
            self.drop(value)
        if train:
            self.recorder.mark("optimizer", number)

    def run(
        self, graph: FuncGraph, inputs: Sequence[Value], outermost: bool = False
    ) -> list[Value]:
        """Goes through a graph and returns its outputs, held. `inputs` are taken over."""
        values: dict[str, Value] = {}  # by the tensor's name
        left: dict[str, int] = {}  # readers that a tensor still has
        ops = self.ordered(graph)
        for op in ops:
            for t in op.inputs:
                left[t.name] = left.get(t.name, 0) + 1
        for t in graph.outputs:
            left[t.name] = left.get(t.name, 0) + 1
        for t, value in zip(graph.inputs, inputs):
            values[t.name] = self.hold(value)
        for op in ops:
            if op.type == "Placeholder" and op.outputs[0].name in values:
                continue
            if outermost:
                self.enter(op)
            outs = self.play(op, [values.get(t.name) for t in op.inputs], left, outermost)
            for t, value in zip(op.outputs, outs):
                if left.get(t.name):
                    values[t.name] = self.hold(value)
                else:
                    self.drop(self.hold(value))
            for t in op.inputs:
                left[t.name] -= 1
                if not left[t.name] and t.name in values:
                    self.drop(values.pop(t.name))
        outputs = [self.hold(values.get(t.name)) for t in graph.outputs]
        for value in values.values():
            self.drop(value)
        return outputs

    def ordered(self, graph: FuncGraph) -> list[tf.Operation]:
        """Operations in the order in which they were made, but none before what it reads: loops get
        inputs afterwards.
        """
        if id(graph) not in self.orders:
            done: set[str] = set()
            order: list[tf.Operation] = []
            for op in graph.get_operations():
                waiting = [op]
                while waiting:
                    last = waiting[-1]
                    missing = (
                        [t.op for t in last.inputs if t.op.name not in done]
                        if last.name not in done
                        else []
                    )
                    if missing:
                        waiting.extend(missing)
                        continue
                    waiting.pop()
                    if last.name not in done:
                        done.add(last.name)
                        order.append(last)
            self.orders[id(graph)] = (order, graph)
        return self.orders[id(graph)][0]

    def enter(self, op: tf.Operation) -> None:
        at = self.top[op.name]
        if at > self.gradients_end:
            self.recorder.mark("optimizer")
        elif at >= self.gradients_begin:
            self.recorder.mark("backward")

    # -- an operation
    # ------------------------------------------------------------

    def play(
        self, op: tf.Operation, args: list[Value], left: dict[str, int], outermost: bool
    ) -> list[Value]:
        kind = op.type
        if kind in LOOPS:
            return self.loop(op, args)
        if kind in CALLS:
            return self.call(op, args)
        if kind.startswith(("TensorList", "EmptyTensorList")):
            return self.lists(op, args)
        if kind == "Const":
            return [self.constant(op)]
        category = self.category(op) if outermost else record.ACTIVATIONS
        if kind in VIEWS:
            self.promote(args[:1], category)
            return list(args[: len(op.outputs)])
        if kind in IN_PLACE and len(op.outputs) == 1:
            size = size_of(op.outputs[0])
            for t, value in zip(op.inputs, args):
                if (
                    isinstance(value, Buffer)
                    and value.ident
                    and value.size == size
                    and value.refs == 1
                    and left[t.name] == 1
                ):
                    self.promote([value], category)
                    return [value]
        return [self.new(self.known(t), op, category) for t in op.outputs]

    def promote(self, values: list[Value], category: int) -> None:
        """A buffer that is handed on belongs to what its last reader needs it for."""
        for v in values:
            if isinstance(v, Buffer) and v.ident and category != record.TEMPORARY:
                self.recorder.tags[v.ident].category = category

    def known(self, t: tf.Tensor) -> int:
        size = size_of(t)
        if size < 0:
            self.recorder.warn(UNKNOWN_SIZES)
        return size

    def category(self, op: tf.Operation) -> int:
        at = self.top[op.name]
        if at > self.gradients_end:
            return record.TEMPORARY
        readers = [self.top.get(r.name, -1) for t in op.outputs for r in t.consumers()]
        if at >= self.gradients_begin:
            return (
                record.GRADIENTS
                if any(r > self.gradients_end for r in readers)
                else record.TEMPORARY
            )
        return (
            record.ACTIVATIONS
            if any(self.gradients_begin <= r <= self.gradients_end for r in readers)
            else record.TEMPORARY
        )

    def constant(self, op: tf.Operation) -> Value:
        """Constants are put on the card once."""
        if op.name not in self.constants:
            self.constants[op.name] = self.hold(
                self.new(self.known(op.outputs[0]), op, record.UNKNOWN)
            )
        return self.constants[op.name]

    def call(self, op: tf.Operation, args: list[Value]) -> list[Value]:
        body = body_of(op, CALLS[op.type])
        if body is None:
            return self.results(op)
        inputs = args[1:] if op.type in ("If", "StatelessIf") else args
        return self.released(self.run(body, inputs))

    def results(self, op: tf.Operation) -> list[Value]:
        """What an operation returns, where nothing is known of its inside."""
        return [self.new(self.known(t), op, record.ACTIVATIONS) for t in op.outputs]

    def released(self, values: list[Value]) -> list[Value]:
        """Values without the reference that `run` gave with them; whoever stores them takes one."""
        for v in values:
            if v is not None:
                v.refs -= 1
        return values

    def loop(self, op: tf.Operation, args: list[Value]) -> list[Value]:
        body = body_of(op, "body")
        if body is None:
            return self.results(op)
        turns = self.turns(op, args)
        values = [self.hold(v) for v in args]
        for self.turn in range(turns):
            after = self.run(body, values)
            for v in values:
                self.drop(v)
            values = after
        self.turn = 0
        return self.released(values)

    def turns(self, op: tf.Operation, args: list[Value]) -> int:
        """How often a loop turns: as its bound says, or as often as there is something in its
        lists.
        """
        import tensorflow as tf

        found = [tf.get_static_value(t) for t in op.inputs[1:2] if t.dtype.is_integer]
        n = (
            int(found[0])
            if found and found[0] is not None and found[0] > 0
            else max((len(a.items) for a in args if isinstance(a, List)), default=1)
        )
        if n > TURNS:
            self.recorder.warn(LONG_LOOP)
        return min(n, TURNS)

    def lists(self, op: tf.Operation, args: list[Value]) -> list[Value]:
        kind, first = op.type, args[0] if args else None
        if kind == "EmptyTensorList":
            return [List([])]
        if kind == "TensorListReserve":
            return [List([None] * self.length(op.inputs[1]))]
        if kind == "TensorListFromTensor":
            return [self.list_of([first] * (op.inputs[0].shape[0] or 1))]
        if not isinstance(first, List):
            return [
                self.new(self.known(t), op, record.ACTIVATIONS)
                if t.dtype.name != "variant"
                else None
                for t in op.outputs
            ]
        if kind == "TensorListPushBack":
            return [self.list_of(first.items + [args[1]])]
        if kind == "TensorListPopBack":
            item = first.items[-1] if first.items else None
            return [self.list_of(first.items[:-1]), item]
        if kind == "TensorListSetItem":
            items = list(first.items) or [None]
            items[self.turn % len(items)] = args[2]
            return [self.list_of(items)]
        if kind == "TensorListGetItem":
            return [next((i for i in first.items if i is not None), None)]
        return [
            self.new(self.known(t), op, record.ACTIVATIONS) if t.dtype.name != "variant" else None
            for t in op.outputs
        ]

    def list_of(self, items: list[Value]) -> List:
        for item in items:
            self.hold(item)
        return List(items)

    def length(self, t: tf.Tensor) -> int:
        import tensorflow as tf

        value = tf.get_static_value(t)
        return int(value) if value is not None and value > 0 else 1


def body_of(op: tf.Operation, attribute: str) -> FuncGraph | None:
    try:
        return op.graph._get_function(op.get_attr(attribute).name).graph
    except (AttributeError, ValueError):
        return None


def layer_of(name: str) -> str:
    """The layer an operation belongs to: Keras names operations after their layers."""
    parts = [p for p in name.split("/") if p != "gradient_tape"]
    return "/".join(parts[:2]) if len(parts) > 1 else ""


def itemsize(dtype: Any) -> int:
    import tensorflow as tf

    answer: int = tf.as_dtype(dtype).size
    return answer


def bytes_of(shape: Iterable[int | None], item: int) -> int:
    size = item
    for n in shape:
        if n is None:
            return -1
        size *= n
    return size


def size_of(t: tf.Tensor) -> int:
    """Bytes on the card, 0 for what stays on the host (shapes, handles), -1 where nobody knows."""
    if t.dtype.name in ("resource", "variant", "string"):
        return 0
    if t.shape.rank is None:
        return -1
    if t.dtype.name == "int32" and t.shape.rank <= 1:
        return 0
    return bytes_of(t.shape.as_list(), t.dtype.size)
