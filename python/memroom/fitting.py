"""Making a training function fit, for those who prefer a line of code to `memroom run --fit`."""

import functools
import gc
import inspect
from typing import Any, Callable, Optional, TypeVar

Result = TypeVar("Result")


def fit(train: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
    """Calls train(*args, **kwargs) with micro-batching and checkpointing in place, as much of them
    as its models turn out to need on the device they are on: same effective batch, same losses.
    Needs the probe, so it acts under `memroom run` and is a plain call elsewhere.
    """
    import sys

    if "_memroom_probe" not in sys.modules:
        return train(*args, **kwargs)
    from _memroom_probe import entries
    from _memroom_probe.fit import registry
    from _memroom_probe.fit.calls import outermost

    if outermost.in_use():  # `run --fit` has done it already
        return train(*args, **kwargs)
    registry.apply([{"id": "micro_batch"}, {"id": "checkpointing"}], entries._say)
    try:
        return train(*args, **kwargs)
    finally:
        outermost.forget_all()


def find_executable_batch_size(
    function: Optional[Callable[..., Any]] = None,
    starting_batch_size: int = 128,
    reduce_batch_size_fn: Optional[Callable[[], int]] = None,
) -> Callable[..., Any]:
    """Decorates a function whose first argument is the batch size: it is called with
    starting_batch_size, and with a smaller one (half of it, or what reduce_batch_size_fn says) each
    time it runs out of memory. Takes the arguments of accelerate's decorator of this name. The
    effective batch changes with it; `fit` keeps it.
    """
    if function is None:
        return functools.partial(
            find_executable_batch_size,
            starting_batch_size=starting_batch_size,
            reduce_batch_size_fn=reduce_batch_size_fn,
        )

    size = starting_batch_size  # what was found holds for later calls too

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal size
        names = list(inspect.signature(function).parameters)
        if len(names) <= len(args):
            given = ", ".join("%s=%s" % pair for pair in zip(names[1:], args[1:]))
            raise TypeError(
                (
                    "the batch size is passed to `%s` as the first argument when it is called; "
                    "write `%s(%s)`"
                )
                % (function.__name__, function.__name__, given)
            )
        while size > 0:
            try:
                return function(size, *args, **kwargs)
            except Exception as error:
                if not _is_out_of_memory(error):
                    raise
                _let_go(error)
            _clear()
            size = int(reduce_batch_size_fn()) if reduce_batch_size_fn else size // 2
        raise RuntimeError("No executable batch size found, reached zero.")

    return call


def _is_out_of_memory(error: BaseException) -> bool:
    text = str(error)
    return type(error).__name__ in ("OutOfMemoryError", "MemoryError") or any(
        words in text
        for words in (
            "out of memory",
            "CUDNN_STATUS_NOT_SUPPORTED",
            "CUBLAS_STATUS_ALLOC_FAILED",
            "can't allocate memory",
        )
    )


def _let_go(error: BaseException) -> None:
    """Frames of the traceback hold the tensors of the failed attempt."""
    import traceback

    traceback.clear_frames(error.__traceback__)
    error.__traceback__ = None


def _clear() -> None:
    import sys

    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
