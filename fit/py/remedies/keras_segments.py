"""Keras models whose batch must stay whole, as with BatchNormalization: the graph of a Functional
or Sequential model runs in parts, of which each keeps its inputs and is computed again for its
gradients.
"""

import contextlib
import functools
import math
import threading
import weakref
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

UNKNOWN = 32  # stands for a length that a graph leaves open
Run = Callable[[Any, Callable[..., List[Any]], Tuple[Any, ...]], List[Any]]


class _Thread(threading.local):
    graph: Any = None  # that runs in parts
    run: Optional[Run] = None  # run(owners, call, tensors)


_thread = _Thread()
_known: "weakref.WeakKeyDictionary[Any, List[_Part]]" = weakref.WeakKeyDictionary()


def graph_of(model: Any) -> Any:
    """The graph behind a model's call, where there is one that can run in parts."""
    from keras.src.models.functional import Functional

    graph = getattr(model, "_functional", None) or model
    if not isinstance(graph, Functional) or type(graph).call is not Functional.call:
        return None
    nodes = _nodes(graph)
    marked = any(getattr(t, "_keras_mask", None) is not None for n in nodes for t in n.outputs)
    return None if marked or len(nodes) < 3 else graph


@contextlib.contextmanager
def running(graph: Any, run: Run) -> Iterator[None]:
    before = _thread.graph, _thread.run
    _thread.graph, _thread.run = graph, run
    try:
        yield
    finally:
        _thread.graph, _thread.run = before


def install() -> None:
    from keras.src import tree
    from keras.src.ops.function import Function

    original = Function._run_through_graph
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def in_parts(
        self: Any, inputs: Any, operation_fn: Any = lambda op: op, call_fn: Any = None
    ) -> Any:
        run = _thread.run
        if self is not _thread.graph or run is None or call_fn is not None:
            return original(self, inputs, operation_fn, call_fn)
        with running(None, run):
            tensors = dict(zip(map(id, self.inputs), tree.flatten(inputs)))
            for part in _parts(self):
                call = functools.partial(_compute, tree, part, operation_fn)
                found = run(part.owners, call, tuple(tensors[key] for key in part.takes))
                tensors.update(zip(part.gives, found))
            outputs = [tensors[id(t)] for t in self.outputs]
            return tree.pack_sequence_as(self._outputs_struct, outputs)

    Function._run_through_graph = in_parts


class _Part:
    """Consecutive operations. takes, gives: names of the tensors that go in, and of those that are
    wanted later.
    """

    def __init__(self, nodes: Sequence[Any], later: Sequence[int]) -> None:
        made = {id(t) for node in nodes for t in node.outputs}
        wanted = [id(t) for node in nodes for t in node.input_tensors]
        self.nodes, self.owners = nodes, [node.operation for node in nodes]
        self.takes = [key for key in dict.fromkeys(wanted) if key not in made]
        self.gives = sorted(made.intersection(later))


def _compute(tree: Any, part: _Part, operation_fn: Any, *tensors: Any) -> List[Any]:
    local: Dict[int, Any] = dict(zip(part.takes, tensors))
    for node in part.nodes:
        args, kwargs = node.arguments.fill_in(local)
        outputs = operation_fn(node.operation)(*args, **kwargs)
        local.update(zip((id(t) for t in node.outputs), tree.flatten(outputs)))
    return [local[key] for key in part.gives]


def _nodes(graph: Any) -> List[Any]:
    """What a run computes, in its order."""
    there, found = {id(t) for t in graph.inputs}, []
    for depth in sorted(graph._nodes_by_depth, reverse=True):
        for node in graph._nodes_by_depth[depth]:
            ready = all(id(t) in there for t in node.input_tensors)
            if node.operation and not node.is_input and ready:
                there.update(id(t) for t in node.outputs)
                found.append(node)
    return found


def _parts(graph: Any) -> List[_Part]:
    """The parts that hold the least at a time: what lies between them, and the inside of one."""
    if graph in _known:
        return _known[graph]
    nodes, outputs = _nodes(graph), [id(t) for t in graph.outputs]
    sizes = {id(t): _size(t) for node in nodes for t in node.outputs}
    inside = [sum(sizes[id(t)] for t in node.outputs) for node in nodes]
    found = _known[graph] = min(
        (
            _cut(nodes, outputs, inside, sum(inside) / n)
            for n in range(1, 3 * math.isqrt(len(nodes)) + 1)
        ),
        key=lambda parts: (
            sum(sizes[key] for part in parts for key in part.gives)
            + max(sum(sizes[id(t)] for n in part.nodes for t in n.outputs) for part in parts),
            len(parts),
        ),
    )
    return found


def _cut(
    nodes: Sequence[Any], outputs: Sequence[int], inside: Sequence[int], most: float
) -> List[_Part]:
    """Parts of so much each."""
    ends, held = [0], 0.0
    for n, size in enumerate(inside):
        if held and held + size > most:
            ends.append(n)
            held = 0.0
        held += size
    parts = []
    for begin, end in zip(ends, ends[1:] + [len(nodes)]):
        later = [id(t) for node in nodes[end:] for t in node.input_tensors]
        parts.append(_Part(nodes[begin:end], [*later, *outputs]))
    return parts


def _size(tensor: Any) -> int:
    return math.prod(n or UNKNOWN for n in tensor.shape[1:])
