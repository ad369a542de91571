"""Keras' random numbers while a batch is computed in pieces: each piece draws for all rows, and
takes those that are its own. So dropout, noise and augmentation are as in the whole batch.

What is drawn with one row for all samples is the same in every piece. Where the first dimension
holds several rows a sample, the sample's are taken together.
"""

import contextlib
import functools
import threading
from typing import Any, Callable, Iterator

SHAPED = ("normal", "uniform", "randint", "truncated_normal")  # their first argument is a shape


class _Thread(threading.local):
    piece: Any = None  # (rows of the batch, first row of this piece, rows of this piece)


_thread = _Thread()


@contextlib.contextmanager
def of_piece(rows: Any, begin: Any, count: Any) -> Iterator[None]:
    before, _thread.piece = _thread.piece, (rows, begin, count)
    try:
        yield
    finally:
        _thread.piece = before


def install(tf: Any) -> None:
    from keras.src.backend.tensorflow import random

    if not hasattr(random.dropout, "__wrapped__"):
        for name in SHAPED:
            setattr(random, name, _shaped(tf, getattr(random, name)))
        random.dropout = _dropout(tf, random.dropout)


def _shaped(tf: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def draw(shape: Any, *args: Any, **kwargs: Any) -> Any:
        simple = all(not getattr(value, "shape", ()) for value in (*args, *kwargs.values()))
        whole = _whole(tf, shape) if simple else None
        if whole is None:
            return original(shape, *args, **kwargs)
        shape, own = whole
        return own(original(shape, *args, **kwargs))

    return draw


def _dropout(tf: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def dropout(inputs: Any, rate: Any, noise_shape: Any = None, seed: Any = None) -> Any:
        shape = tf.shape(inputs)
        if noise_shape is not None:
            shape = [shape[n] if size is None else size for n, size in enumerate(noise_shape)]
        whole = _whole(tf, shape) if rate not in (0.0, 1.0) else None
        if whole is None:
            return original(inputs, rate, noise_shape, seed)
        shape, own = whole
        factors = own(original(tf.ones(shape, inputs.dtype), rate, seed=seed))
        # a value that is not finite is dropped, too
        return tf.where(tf.equal(factors, 0), tf.zeros([], inputs.dtype), inputs * factors)

    return dropout


def _whole(tf: Any, shape: Any) -> Any:
    """(the shape of all rows, a function that takes this piece's); None where no piece is computed,
    or the shape has no rows.
    """
    if _thread.piece is None or not (tf.is_tensor(shape) and shape.shape[0] or len(shape)):
        return None
    rows, begin, count = _thread.piece
    first, known = shape[0], tf.get_static_value(shape[0])
    if known is not None:
        if tf.is_tensor(count) or known % count:
            return None  # the same whatever rows there are
        first = int(known)
    each = first // count  # rows of what is drawn that belong to one of the batch
    rest = shape[1:] if tf.is_tensor(shape) else list(shape[1:])

    def own(drawn: Any) -> Any:
        more = len(drawn.shape) - 1
        return tf.slice(drawn, [each * begin] + [0] * more, [each * count] + [-1] * more)

    return tf.concat([[each * rows], rest], 0), own
