"""Keras models and layers that are called under a GradientTape: a few rows at a time, forward and,
computed again, backward.

What a call keeps for its backward pass is that of the slice in work. Outputs are put together, so
the program's loss sees the whole batch, and the gradients of slices add up to the batch's: the
mathematics is the same in loops of one's own, in train_step and in fit, eagerly and in a
tf.function. That holds where no row depends on another, no variable is set and no random number
comes from elsewhere than Keras' own seeds: each is tried before a layer is cut. Seeds are put back
for each slice, so that all draw what the whole batch would have drawn (keras_draws).
"""

import contextlib
import copy
import functools
import random
import sys
import threading
import weakref
from typing import (
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)

from ..memory.heap import heap
from . import keras_draws, keras_segments

ROWS = 4  # of the trial
OPEN = 16  # stands for a length that is not known while a function is traced
NO_CALL = (
    "no Keras model or layer is called under the tape: where a network is written as functions, "
    "there is no call to split. What helps in the script: a tape for each part of the batch, and "
    "their gradients added up; or tf.recompute_grad around parts of the network"
)
OLD_KERAS = (
    "calls of Keras 2 are not split, nor does its optimizer accumulate: Keras 3 does (leave out "
    "TF_USE_LEGACY_KERAS). What helps here: a smaller batch_size"
)
NO_SESSION = (
    "a session of TensorFlow 1 runs its graph whole, so that there is no call to split. What helps "
    "in the script: feed a part of the batch at a time, and add the gradients up before they are "
    "applied"
)

Say = Callable[..., None]
Tensor = Any  # of TensorFlow
Part = Callable[[Any], Tuple[List[Tensor], List[Tensor]]]
Pieces = Callable[[Any], Any]  # rows of a batch, a number or a tensor -> pieces


class _Thread(threading.local):
    inside = False  # a layer is being called
    parts = False  # of a layer that stays whole


_thread = _Thread()
_met: Set[str] = set()  # "cut" once a layer was called under a tape, or Keras accumulates


def told() -> None:
    """It was said already why nothing is cut."""
    _met.add("cut")


def watch_tapes(tensorflow: Any, say: Say) -> None:
    """Says so where gradients are computed and no layer was called, or by a session: nothing can
    be cut then.
    """
    tape = tensorflow.GradientTape
    original = tape.gradient

    @functools.wraps(original)
    def gradient(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _met and not _thread.inside:
            _met.add("cut")
            why = OLD_KERAS if "tf_keras" in sys.modules else NO_CALL
            say("declined", why, id="micro_batch")
        return original(self, *args, **kwargs)

    tape.gradient = gradient

    from tensorflow.python.client import session

    run = session.BaseSession.run

    @functools.wraps(run)
    def run_graph(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _met and any("gradients/" in op.name for op in self.graph.get_operations()):
            _met.add("cut")
            say("declined", NO_SESSION, id="micro_batch")
        return run(self, *args, **kwargs)

    session.BaseSession.run = run_graph


class Calls:
    """Cuts the outermost calls of layers under a tape into pieces, as many as `pieces` makes of a
    number of rows.
    """

    def __init__(self, keras: Any, pieces: Pieces, say: Say) -> None:
        import tensorflow as tf

        self.tf, self.keras, self.pieces, self.say = tf, keras, pieces, say
        # layer -> how it is called -> what was found
        self.known: weakref.WeakKeyDictionary[Any, Dict[str, Found]] = weakref.WeakKeyDictionary()
        self.told: Set[Tuple[str, Optional[int]]] = set()
        self.paused = 0  # depth of fits in which Keras itself accumulates

    def install(self) -> None:
        keras_draws.install(self.tf)
        layer = self.keras.layers.Layer
        original = layer.__call__

        @functools.wraps(original)
        def __call__(it: Any, *args: Any, **kwargs: Any) -> Any:
            if _thread.inside or self.paused or _no_tape() or _thread.parts and not _parts(it):
                return original(it, *args, **kwargs)
            with _inside():
                return self._call(it, functools.partial(original, it), args, kwargs)

        layer.__call__ = __call__
        keras_segments.install()

    def _call(self, layer: Any, call: Any, args: Any, kwargs: Any) -> Any:
        _met.add("cut")
        heap.give_back()
        cut = Cut(self.tf, layer, call, args, kwargs)
        why = cut.why_not()
        if cut.rows is not None and min(cut.rows, self.pieces(cut.rows)) < 2 and not why:
            return call(*args, **kwargs)
        found = Found(why) if why else self._find(layer, cut)
        if not found.why:
            self._tell(layer, cut, found)
            cut.states, cut.same_rows = found.states, found.same_rows
            return cut.run(self.pieces)
        if self._first(layer, None):
            self.say("declined", "%s: %s" % (layer.name, found.why), id="micro_batch")
        if not found.again:
            return call(*args, **kwargs)
        graph = keras_segments.graph_of(layer)
        if graph is None and any(_parts(part) for part in layer._layers):
            with _among_parts():
                return call(*args, **kwargs)
        if self._first(layer, -1):
            how = "in parts" if graph else "as a whole"
            words = "%s: computed again for its gradients, %s" % (layer.name, how)
            self.say("applied", words, id="checkpointing", equivalence="exact")
        if graph is None:
            cut.places = cut.all_places()
            return cut.run(None)
        with keras_segments.running(graph, self._segment):
            return call(*args, **kwargs)

    def _find(self, layer: Any, cut: "Cut") -> "Found":
        found = self.known.setdefault(layer, {})
        if cut.how() not in found:
            found[cut.how()] = Trial(self.tf, cut).found()
        return found[cut.how()]

    def _segment(self, owners: Any, call: Any, tensors: Any) -> List[Tensor]:
        """What a part of a model's graph gives, computed again when its gradients are wanted."""
        cut = Cut(self.tf, None, call, tensors, {})
        cut.owners, cut.places = owners, cut.all_places()
        outputs: List[Tensor] = cut.run(None)
        return outputs

    def _first(self, layer: Any, what: Optional[int]) -> bool:
        """Whether this is to be told: once, and not without end."""
        if len(self.told) >= 20 or (layer.name, what) in self.told:
            return False
        self.told.add((layer.name, what))
        return True

    def _tell(self, layer: Any, cut: "Cut", found: "Found") -> None:
        if not self._first(layer, cut.rows or 0):
            return
        rows = cut.rows or 0
        pieces = _count(rows, self.pieces) if rows else 0
        batches = "batches of %d in %d pieces" % (rows, pieces) if rows else "batches in pieces"
        self.say(
            "applied",
            "%s: %s, each computed again for its gradients" % (layer.name, batches),
            id="micro_batch",
            equivalence="expected" if found.draws_others else "exact",
            rows=rows,
            pieces=pieces,
        )


class Found(NamedTuple):
    """What a trial of a layer showed."""

    why: Optional[str] = None  # it is not cut
    again: bool = False  # it may be computed again, with all rows
    states: Sequence[Any] = ()  # Keras variables that a call sets
    draws_others: bool = False  # pieces draw other numbers than the whole batch would
    # variables, by id, whose gradient is of the same chosen rows whatever the batch: positions
    same_rows: Set[int] = set()


def _parts(layer: Any) -> bool:
    """Whether a layer is made of several."""
    return len(getattr(layer, "_layers", ())) > 1


@contextlib.contextmanager
def paused(calls: Optional[Calls]) -> Iterator[None]:
    """Meanwhile Keras itself accumulates, and no call is cut."""
    _met.add("cut")
    if calls is None:
        yield
        return
    calls.paused += 1
    try:
        yield
    finally:
        calls.paused -= 1


@contextlib.contextmanager
def _inside() -> Iterator[None]:
    before, _thread.inside = _thread.inside, True
    try:
        yield
    finally:
        _thread.inside = before


@contextlib.contextmanager
def _among_parts() -> Iterator[None]:
    """Meanwhile the layers inside of one that stays whole are looked at."""
    before = _thread.inside, _thread.parts
    _thread.inside, _thread.parts = False, True
    try:
        yield
    finally:
        _thread.inside, _thread.parts = before


def _context() -> Any:
    """What the layers around a call hand on to it, as whether this is training."""
    from keras.src.backend.common import global_state

    return copy.copy(global_state.get_global_attribute("current_call_ctx"))


@contextlib.contextmanager
def _in_context(context: Any) -> Iterator[None]:
    """As it was when the call came: it is computed again when the layers around it are done."""
    from keras.src.backend.common import global_state

    before = global_state.get_global_attribute("current_call_ctx")
    global_state.set_global_attribute("current_call_ctx", copy.copy(context))
    try:
        yield
    finally:
        global_state.set_global_attribute("current_call_ctx", before)


def _no_tape() -> bool:
    """Whether no tape records in this thread."""
    from tensorflow.python import pywrap_tfe

    return bool(pywrap_tfe.TFE_Py_TapeSetIsEmpty())


class Cut:
    """A call whose tensors with a row for each sample are cut."""

    def __init__(self, tf: Any, layer: Any, call: Any, args: Any, kwargs: Any) -> None:
        self.tf, self.layer, self.call = tf, layer, call
        self.given = (args, kwargs)
        self.flat: List[Any] = [
            tf.convert_to_tensor(t) if type(t).__module__ == "numpy" and hasattr(t, "shape") else t
            for t in tf.nest.flatten(self.given)
        ]
        ranked = [n for n, t in enumerate(self.flat) if tf.is_tensor(t) and _rank(t)]
        self.rows: Optional[int] = self.flat[ranked[0]].shape[0] if ranked else None  # None: open
        self.places = [n for n in ranked if self.flat[n].shape[0] == self.rows]
        self.structure: Any = None  # of the outputs
        self.logits: List[int] = []  # numbers of the outputs whose logits Keras notes
        self.owners: Sequence[Any] = (layer,)  # of the variables
        self.states: Sequence[Any] = ()  # Keras variables that the call sets
        self.same_rows: Set[int] = set()  # see Found
        self.context = _context()

    def why_not(self) -> Optional[str]:
        tf = self.tf
        if any(
            hasattr(t, "_keras_history") or "KerasTensor" in type(t).__name__ for t in self.flat
        ):
            return "it is put together under a tape"
        if any(isinstance(t, (tf.RaggedTensor, tf.SparseTensor)) for t in self.flat):
            return "its inputs are ragged or sparse: they have no rows to cut"
        if not self.places:
            return "its inputs have no rows to cut"
        if any(getattr(t, "_keras_mask", None) is not None for t in self.flat):
            return "its inputs carry a mask"
        if tf.distribute.get_strategy().num_replicas_in_sync > 1:
            return "several replicas call it at once"
        others = [self.flat[n] for n in self.all_places() if n not in self.places]
        if any(_is_recorded(t) for t in others):
            return "one of its inputs has no row for each sample, and is trained"
        return None

    def all_places(self) -> List[int]:
        return [n for n, t in enumerate(self.flat) if self.tf.is_tensor(t)]

    def how(self) -> str:
        """All of the call but its tensors, and what of the layer is trained."""
        given = self.tf.nest.map_structure(
            lambda t: None if self.tf.is_tensor(t) or hasattr(t, "shape") else t, self.given
        )
        trained = [part.trainable for part in self.layer._flatten_layers()]
        return "%r %r %s" % (given, getattr(self.context, "training", None), trained)

    def seeds(self) -> List[Any]:
        """Variables with the state of Keras' random numbers."""
        weights = {id(v) for v in self.layer.weights}
        return [
            v
            for v in self.layer.variables
            if id(v) not in weights and "seed_generator" in v.path and v.shape == (2,)
        ]

    def on(self, rows: Sequence[Tensor]) -> List[Tensor]:
        """The call with other rows: its outputs, flat."""
        flat = list(self.flat)
        for place, t in zip(self.places, rows):
            flat[place] = t
        return self.on_all(flat)

    def on_all(self, flat: List[Any]) -> List[Tensor]:
        """The outputs, and behind them the logits that Keras notes on probabilities: its losses
        take those, where probabilities would be clipped.
        """
        args, kwargs = self.tf.nest.pack_sequence_as(self.given, flat)
        with _inside(), _in_context(self.context):
            self.structure = self.call(*args, **kwargs)
        outputs = [t for t in self.tf.nest.flatten(self.structure) if t is not None]
        self.logits = [n for n, t in enumerate(outputs) if hasattr(t, "_keras_logits")]
        return outputs + [outputs[n]._keras_logits for n in self.logits]

    def run(self, pieces: Optional[Pieces]) -> Any:
        """The call in pieces, or as one; what it returns is what the whole call would. The pass
        for the gradients sets no variable, and finds all as they were before the first one,
        whatever the program has set since.
        """
        tf = self.tf
        from keras import StatelessScope
        from tensorflow.python.eager import record

        inputs = [self.flat[n] for n in self.places]
        slices = _Slices(tf, inputs[0], self.rows, pieces)
        trained = [n for n, x in enumerate(inputs) if x.dtype.is_floating and _is_recorded(x)]
        owned = {id(v): v for owner in self.owners for v in getattr(owner, "variables", ())}
        begun = [(v, tf.identity(v._value)) for v in owned.values()]
        values = {id(v._value): value for v, value in begun}

        def whole(*xs: Tensor) -> Any:
            def forward(number: Any) -> List[Tensor]:
                for variable in () if slices.whole else self.states:
                    variable._value.assign(values[id(variable._value)])
                with slices.drawing(number):
                    return self.on([slices.of(x, number) for x in xs])

            with record.stop_recording():
                outputs = slices.joined(forward)

            def backward(*given: Tensor, variables: Any = None) -> Any:
                watched = list(variables or ())
                grads = [None if g is None else tf.convert_to_tensor(g) for g in given]
                again = slices.after(grads, xs)

                def part(number: Any) -> Tuple[List[Tensor], List[Tensor]]:
                    mine = [slices.of(x, number) for x in again]
                    sources = [mine[n] for n in trained] + [values.get(id(v), v) for v in watched]
                    with tf.GradientTape(watch_accessed_variables=False) as tape:
                        tape.watch(sources)
                        with slices.drawing(number), StatelessScope(begun):
                            results = self.on(mine)
                    pairs = [
                        (result, slices.of(grad, number))
                        for result, grad in zip(results, grads)
                        if result.dtype.is_floating and grad is not None
                    ]
                    with _inside():
                        found = tape.gradient(
                            [result for result, _ in pairs],
                            sources,
                            output_gradients=[grad for _, grad in pairs],
                            unconnected_gradients="zero",
                        )
                    return found[: len(trained)], found[len(trained) :]

                same = [id(v) in self.same_rows for v in watched]
                rows, sums = slices.summed(part, [xs[n].dtype for n in trained], watched, same)
                back: List[Optional[Tensor]] = [None] * len(xs)
                for n, grad in zip(trained, rows):
                    back[n] = grad
                return (back, sums) if watched else back

            return outputs, backward

        outputs = tf.custom_gradient(whole)(*inputs)
        left = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
        for n in reversed(self.logits):
            left[n]._keras_logits = left.pop()
        flat = [None if t is None else left.pop(0) for t in tf.nest.flatten(self.structure)]
        return tf.nest.pack_sequence_as(self.structure, flat)


class _Slices:
    """Rows in pieces, one after the other: in a loop of Python's, or in one of the graph that is
    traced, whose operations would run at the same time otherwise.
    """

    def __init__(
        self, tf: Any, like: Tensor, rows: Optional[int], pieces: Optional[Pieces]
    ) -> None:
        self.tf, self.static = tf, rows
        self.graph = not tf.executing_eagerly()
        self.rows: Any = tf.shape(like)[0] if rows is None and pieces else rows
        self.count: Any  # pieces
        if pieces is None:
            self.count = 1
        elif rows is None:
            self.count = tf.minimum(pieces(self.rows), self.rows)
        else:
            self.count = _count(rows, pieces)
        self.whole = isinstance(self.count, int) and self.count == 1
        # rows of each, where they are all alike
        self.size = rows // self.count if rows is not None and rows % self.count == 0 else None

    def after(self, grads: Sequence[Any], xs: Sequence[Tensor]) -> List[Tensor]:
        """The inputs, once there are gradients: a graph would compute all pieces again at once."""
        with self.tf.control_dependencies([g for g in grads if g is not None]):
            return [self.tf.identity(x) for x in xs] if self.graph else list(xs)

    def of(self, x: Tensor, number: Any) -> Tensor:
        if self.whole:
            return x
        if self.size is None:
            begin, end = self._ends(number)
            return x[begin:end]
        more = len(x.shape) - 1
        return self.tf.slice(x, [number * self.size] + [0] * more, [self.size] + [-1] * more)

    def _ends(self, number: Any) -> Tuple[Any, Any]:
        return number * self.rows // self.count, (number + 1) * self.rows // self.count

    def drawing(self, number: Any) -> Any:
        """Meanwhile random numbers are those of this piece."""
        if self.whole:
            return contextlib.nullcontext()
        begin, end = self._ends(number)
        return keras_draws.of_piece(self.rows, begin, self.size or end - begin)

    def joined(self, forward: Callable[[Any], List[Tensor]]) -> List[Tensor]:
        """The outputs of all pieces, put together."""
        tf = self.tf
        if self.whole:
            return forward(0)
        if not self.graph:
            parts = [forward(n) for n in range(self.count)]
            return [tf.concat(outputs, 0) for outputs in zip(*parts)]
        # traced once beside: a loop must know the kinds of its results before it begins
        kinds = tf.nest.flatten(
            tf.function(lambda: forward(0), autograph=False)
            .get_concrete_function()
            .structured_outputs
        )

        def turn(number: Any, *arrays: Any) -> Any:
            outputs = forward(number)
            return (number + 1,) + tuple(a.write(number, t) for a, t in zip(arrays, outputs))

        arrays = self._loop(turn, [self._array(kind.dtype) for kind in kinds])
        outputs = [array.concat() for array in arrays]
        for output, kind in zip(outputs, kinds):
            if kind.shape.rank is not None:
                output.set_shape([self.static] + kind.shape.as_list()[1:])
        return outputs

    def summed(
        self, part: Part, dtypes: Sequence[Any], variables: Sequence[Any], same: Sequence[bool]
    ) -> Tuple[List[Tensor], List[Tensor]]:
        """(gradients of the inputs, put together; those of the variables, added up). While another
        tape records, gradients are differentiated again: then the graph's loop is left out.

        Gradients of chosen rows (embeddings) stay apart, as in one pass, because optimizers square
        them as they come. same: those of the same rows in each piece are one in a pass.
        """
        if self.whole:
            return part(0)
        if not self.graph or isinstance(self.count, int) and not _no_tape():
            parts = [part(n) for n in range(self.count)]
            rows = [self.tf.concat(found, 0) for found in zip(*[mine for mine, _ in parts])]
            totals = zip(zip(*[sums for _, sums in parts]), same)
            return rows, [self._total(found, alike) for found, alike in totals]
        return self._summed_in_graph(part, dtypes, variables, same)

    def _total(self, found: Sequence[Tensor], same: bool) -> Tensor:
        tf = self.tf
        if any(not isinstance(g, tf.IndexedSlices) for g in found):
            return functools.reduce(lambda a, b: a + b, map(tf.convert_to_tensor, found))
        values, indices = ([getattr(g, n) for g in found] for n in ("values", "indices"))
        if same:
            return tf.IndexedSlices(tf.add_n(values), indices[0], found[0].dense_shape)
        return tf.IndexedSlices(tf.concat(values, 0), tf.concat(indices, 0), found[0].dense_shape)

    def _summed_in_graph(
        self, part: Part, dtypes: Sequence[Any], variables: Sequence[Any], same: Sequence[bool]
    ) -> Tuple[List[Tensor], List[Tensor]]:
        tf, inputs = self.tf, len(dtypes)
        chosen: Dict[int, Any] = {}  # number of a variable whose gradient is of chosen rows -> type

        def look() -> Tensor:
            for n, g in enumerate(part(0)[1]):
                if isinstance(g, tf.IndexedSlices):
                    chosen[n] = g.indices.dtype
            return tf.constant(0)

        tf.function(look, autograph=False).get_concrete_function()

        def turn(number: Any, *before: Any) -> Any:
            mine, found = part(number)
            left, after = list(before), []
            for t in mine:
                after.append(left.pop(0).write(number, t))
            for n, g in enumerate(found):
                if n in chosen:
                    after.append(left.pop(0).write(number, g.values))
                    after.append(left.pop(0).write(number, g.indices))
                else:
                    after.append(left.pop(0) + tf.convert_to_tensor(g))
            return (number + 1, *after)

        values = [self._array(dtype) for dtype in dtypes]
        for n, v in enumerate(variables):
            if n in chosen:
                values += [self._array(v.dtype), self._array(chosen[n])]
            else:
                values.append(tf.zeros(v.shape, v.dtype))
        loop = list(self._loop(turn, values))
        rows = [loop.pop(0).concat() for _ in range(inputs)]
        sums = []
        for n, v in enumerate(variables):
            if n in chosen:
                rest, places = loop.pop(0), loop.pop(0)
                if same[n]:
                    rest, places = tf.reduce_sum(rest.stack(), 0), places.read(0)
                else:
                    rest, places = rest.concat(), places.concat()
                sums.append(tf.IndexedSlices(rest, places, tf.constant(v.shape.as_list())))
            else:
                sums.append(loop.pop(0))
        return rows, sums

    def _array(self, dtype: Any) -> Any:
        return self.tf.TensorArray(dtype, size=self.count, infer_shape=self.size is not None)

    def _loop(self, turn: Callable[..., Any], values: Sequence[Any]) -> Sequence[Any]:
        found: Sequence[Any] = self.tf.while_loop(
            lambda number, *rest: number < self.count,
            turn,
            (self.tf.constant(0),) + tuple(values),
            parallel_iterations=1,
            maximum_iterations=self.count,
        )
        return found[1:]


class Trial:
    """Calls a layer with a few rows, to learn whether it may be cut. All that this changes is put
    back.
    """

    def __init__(self, tf: Any, cut: Cut) -> None:
        self.tf, self.cut = tf, cut

    def found(self) -> Found:
        try:
            with self.tf.init_scope(), self._put_back() as assigned:
                return self._tried(assigned)
        except Exception as error:
            return Found(
                "it could not be tried with a few rows (%s: %s)"
                % (type(error).__name__, str(error).split("\n")[0][:160])
            )

    def _tried(self, assigned: Dict[int, Tuple[Any, Any]]) -> Found:
        tf, cut = self.tf, self.cut
        flat = [self._sample(n, t) if tf.is_tensor(t) else t for n, t in enumerate(cut.flat)]
        rows = int(flat[cut.places[0]].shape[0])
        self._seed(0)
        cut.on_all(flat)  # builds what was not built
        states = [(v.value, tf.identity(v.value)) for v in cut.seeds()]

        def again(given: List[Any], seed: int) -> List[Tensor]:
            for variable, state in states:
                variable.assign(state)
            self._seed(seed)
            return cut.on_all(given)

        first = again(flat, 0)
        if any(getattr(t, "_keras_mask", None) is not None for t in first):
            return Found("its results carry a mask")
        if any(part._get_own_losses() for part in cut.layer._flatten_layers()):
            return Found("it adds losses of its own while it is called (add_loss)")
        set_here = [v for v in cut.layer.variables if id(v.value) in assigned]
        seeds = {id(v) for v in cut.seeds()}
        others = [v for v in set_here if id(v) not in seeds]
        own = {id(v.value) for v in set_here}
        strange = [v for key, (v, _) in assigned.items() if key not in own]
        if strange:
            return Found("it sets the variable %s once a batch" % getattr(strange[0], "name", ""))
        if not self._same(first, again(flat, 1)):
            return Found(
                "it draws random numbers of tf.random: those of a piece that is computed again "
                "would be others. keras.random with a SeedGenerator can be put back"
            )
        why = self._why_whole(flat, first, rows, others) or self._mixed(flat, first, rows, again)
        if why:
            return Found(why, again=True)
        same_rows = self._same_rows(flat, rows, again)
        if same_rows is None:
            why = (
                "a gradient is of rows that samples choose, and of others: pieces count these twice"
            )
            return Found(why, again=True)
        draws_others = bool(states) and not self._same(first, self._halves(flat, again), rows)
        return Found(None, False, set_here, draws_others, same_rows)

    def _same_rows(self, flat: List[Any], rows: int, again: Any) -> Optional[Set[int]]:
        """What Found says; None where a variable's chosen rows are partly those of samples."""
        tf, half = self.tf, rows // 2
        some = list(flat)
        for n in self.cut.places:
            some[n] = flat[n][:half]

        def chosen(given: List[Any]) -> Dict[int, Any]:
            with _recording(), tf.GradientTape() as tape:
                outputs = [t for t in again(given, 0) if t.dtype.is_floating]
            variables = tape.watched_variables()
            pairs = zip(variables, tape.gradient(outputs, variables))
            return {id(v): g.indices for v, g in pairs if isinstance(g, tf.IndexedSlices)}

        found, part = set(), chosen(some)
        for key, of_all in chosen(flat).items():
            if of_all.shape == part[key].shape and bool(tf.reduce_all(of_all == part[key])):
                found.add(key)
            elif of_all.shape[0] * half != part[key].shape[0] * rows:
                return None
        return found

    def _why_whole(
        self, flat: List[Any], first: List[Tensor], rows: int, others: List[Any]
    ) -> Optional[str]:
        """The reason why no piece may be computed by itself, as far as one call shows it."""
        if any(not _rank(t) or t.shape[0] != rows for t in first):
            return "one of its results has no row for each sample"
        normal = [p for p in self.cut.layer._flatten_layers() if isinstance(p, _batch_norm())]
        if others and any(p.trainable for p in normal):
            return "a BatchNormalization layer takes its statistics over the whole batch"
        if others:
            return "it sets the variable %s once a batch" % getattr(others[0], "path", "")
        return None

    def _mixed(self, flat: List[Any], first: List[Tensor], rows: int, again: Any) -> Optional[str]:
        tf, cut, half = self.tf, self.cut, rows // 2
        other = list(flat)
        for n in cut.places:
            other[n] = tf.concat([flat[n][:half]] * 2 + [flat[n][2 * half :]], 0)
        if not self._same(first, again(other, 0), half):
            return "what it computes for a row depends on the other rows of the batch"
        return None

    def _halves(self, flat: List[Any], again: Callable[[List[Any], int], List[Tensor]]) -> Any:
        slices = _Slices(self.tf, flat[self.cut.places[0]], len(flat[self.cut.places[0]]), _two)
        parts = []
        for number in range(slices.count):
            mine = list(flat)
            for n in self.cut.places:
                mine[n] = slices.of(flat[n], number)
            with slices.drawing(number):
                parts.append(again(mine, 0))
        return [self.tf.concat(outputs, 0) for outputs in zip(*parts)]

    def _sample(self, number: int, t: Tensor) -> Tensor:
        """A few rows of an input; made up where it is not there yet, while a function is traced."""
        tf, is_cut = self.tf, number in self.cut.places
        if hasattr(t, "numpy"):
            return t[:ROWS] if is_cut else t
        import numpy as np

        shape = [OPEN if n is None else n for n in t.shape.as_list()]
        if is_cut:
            shape[0] = min(ROWS, self.cut.rows or ROWS)
        if t.dtype.is_floating:
            values = np.random.default_rng(0).uniform(size=shape)
        else:  # the second half of the rows is another number than the first
            values = np.zeros(shape)
            if shape:
                values[(shape[0] + 1) // 2 :] = 1
        return tf.cast(tf.constant(values), t.dtype)

    def _same(self, some: List[Tensor], others: List[Tensor], rows: Optional[int] = None) -> bool:
        """Whether results are alike: all of them, or their first rows."""
        import numpy as np

        return all(
            np.allclose(
                *(self.tf.cast(t[:rows] if rows else t, "float64") for t in (a, b)), 1e-3, 1e-5
            )
            for a, b in zip(some, others)
            if a.dtype.is_floating or a.dtype.is_integer
        )

    def _seed(self, seed: int) -> None:
        self.tf.random.set_seed(seed)

    @contextlib.contextmanager
    def _put_back(self) -> Iterator[Dict[int, Tuple[Any, Any]]]:
        """Returns the variables that are set meanwhile, with their values before, by id; puts these
        and the states of all random numbers back.
        """
        from tensorflow.python.eager import context
        from tensorflow.python.ops import resource_variable_ops

        assigned: Dict[int, Tuple[Any, Any]] = {}
        originals = [
            (cls, name, cls.__dict__[name])
            for cls in (
                resource_variable_ops.ResourceVariable,
                resource_variable_ops.BaseResourceVariable,
            )
            for name in ("assign", "assign_add", "assign_sub")
            if name in cls.__dict__
        ]

        def noting(original: Any) -> Any:
            @functools.wraps(original)
            def setter(it: Any, *args: Any, **kwargs: Any) -> Any:
                if id(it) not in assigned:
                    assigned[id(it)] = it, self.tf.identity(it)
                return original(it, *args, **kwargs)

            return setter

        here = context.context()
        numpy: Any = sys.modules.get("numpy")
        state = here._seed, here._rng, random.getstate(), numpy.random.get_state()
        for cls, name, original in originals:
            setattr(cls, name, noting(original))
        try:
            yield assigned
        finally:
            for cls, name, original in originals:
                setattr(cls, name, original)
            for variable, value in assigned.values():
                variable.assign(value)
            here._seed, here._rng = state[0], state[1]
            random.setstate(state[2])
            numpy.random.set_state(state[3])


def _count(rows: int, pieces: Pieces) -> int:
    """So many, or a few more where these are all alike."""
    least = min(pieces(rows), rows)
    tried = range(least, min(4 * least, rows) + 1)
    return next((n for n in tried if rows % n == 0), least)


def _two(rows: Any) -> Any:
    return 2


@contextlib.contextmanager
def _recording() -> Iterator[None]:
    """Tapes record, although init_scope has stopped them."""
    from tensorflow.python import pywrap_tfe

    stopped = pywrap_tfe.TFE_Py_TapeSetIsStopped()
    if stopped:
        pywrap_tfe.TFE_Py_TapeSetRestartOnThread()
    try:
        yield
    finally:
        if stopped:
            pywrap_tfe.TFE_Py_TapeSetStopOnThread()


def _is_recorded(tensor: Tensor) -> bool:
    """Whether a tape wants gradients for it."""
    from tensorflow.python.eager import record

    return bool(record.should_record_backprop([tensor]))


def _rank(t: Tensor) -> int:
    return getattr(t.shape, "rank", None) or 0


def _batch_norm() -> Any:
    keras: Any = sys.modules["keras"]
    return keras.layers.BatchNormalization
