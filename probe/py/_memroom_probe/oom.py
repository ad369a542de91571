"""Tells exceptions of exhausted memory from others, and where in the user's code they were
raised.
"""

from __future__ import annotations

import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_FRAMES = 32
MAX_TEXT = 4000

# Words of an exception's text that mean memory ran out, and the wall each belongs to.
_TEXTS = (
    ("CUDA out of memory", "gpu"),
    ("CUDA error: out of memory", "gpu"),
    ("CUDNN_STATUS_ALLOC_FAILED", "gpu"),
    ("CUBLAS_STATUS_ALLOC_FAILED", "gpu"),
    ("HIP out of memory", "gpu"),
    ("MPS backend out of memory", "mps"),
    ("DefaultCPUAllocator", "host"),
    ("unable to allocate shared memory", "shm"),
    ("unable to open shared memory", "shm"),
    ("unable to write to file </torch_", "shm"),
    ("Bus error", "shm"),
    ("Cannot allocate memory", "host"),
    ("No space left on device", "shm"),
)


def wall(error: BaseException) -> str:
    """The wall an exception says was hit ("gpu", "host", "shm", "mps"), or "" if it is not about
    memory.
    """
    name, text = type(error).__name__, str(error)[:MAX_TEXT]
    if name == "ResourceExhaustedError" or "RESOURCE_EXHAUSTED" in text:
        return (
            "host"
            if "mklcpu" in text or "/device:CPU" in text or "cpu allocator" in text
            else "gpu"
        )
    if name == "OutOfMemoryError" and type(error).__module__.partition(".")[0] == "ray":
        return "host"  # Ray's memory monitor killed a worker: it watches the node, not the card
    if name == "OutOfMemoryError":
        return "mps" if "MPS" in text else "gpu"
    for words, where in _TEXTS:
        if words in text and not (words == "No space left on device" and "shm" not in text):
            return where
    return "host" if isinstance(error, MemoryError) else ""


def describe(error: BaseException) -> dict[Any, Any]:
    """The fields of a `died` message. An exception raised while another was handled tells the first
    one's wall too.
    """
    where, seen = "", 0
    cause: BaseException | None = error
    while cause is not None and seen < 8 and not where:
        where, cause, seen = wall(cause), cause.__cause__ or cause.__context__, seen + 1
    return {
        "type": type(error).__name__,
        "text": str(error)[:MAX_TEXT],
        "where": where,
        "frames": traceback_frames(error.__traceback__),
    }


def traceback_frames(traceback: types.TracebackType | None) -> list[dict[Any, Any]]:
    """The frames of a traceback, innermost first, at most MAX_FRAMES of them."""
    frames = []
    while traceback is not None:
        frames.append(_frame(traceback.tb_frame, traceback.tb_lineno))
        traceback = traceback.tb_next
    return frames[::-1][:MAX_FRAMES]


def current_frames(skip: int = 1) -> list[dict[Any, Any]]:
    """The Python frames of this thread, innermost first, without the probe's own."""
    frames: list[Any] = []
    frame: types.FrameType | None = sys._getframe(skip)
    while frame is not None and len(frames) < MAX_FRAMES:
        if "_memroom_probe" not in frame.f_code.co_filename:
            frames.append(_frame(frame, frame.f_lineno))
        frame = frame.f_back
    return frames


def _frame(frame: types.FrameType, line: int | None) -> dict[Any, Any]:
    code = frame.f_code
    return {"file": code.co_filename, "name": code.co_name, "line": line or 0}
