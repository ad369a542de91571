"""Kernels that people write in Triton: TRL's and Liger's losses, linear attention and others.

A kernel writes into tensors that are there and takes no memory of the allocator. It is not compiled
and does not run: what it could have written is no longer known. One of which there are several
forms is timed when it first runs, with a buffer that pushes everything out of the card's cache.
"""

from typing import Any

from ..imports import when_imported

CACHE = 256 << 20  # bytes of Triton's own buffer between two timed runs
SKIPPED = "kernels written in Triton did not run: they take no memory of their own"


def watch(rehearsal: Any) -> None:
    when_imported("triton.runtime.jit", lambda m: _launches(m.JITFunction, rehearsal))
    when_imported("triton.runtime.autotuner", lambda m: _choices(m.Autotuner, rehearsal))


def _launches(kind: Any, rehearsal: Any) -> None:
    def run(self: Any, *args: Any, **kwargs: Any) -> None:
        _forget(rehearsal, args, kwargs)

    kind.run = run


def _choices(kind: Any, rehearsal: Any) -> None:
    def run(self: Any, *args: Any, **kwargs: Any) -> None:
        if len(self.configs) > 1 and not getattr(self, "_memroom_timed", False):
            self._memroom_timed = True
            torch = rehearsal.torch
            torch.empty(CACHE // 4, dtype=torch.int, device="cuda")
        _forget(rehearsal, args, kwargs)

    kind.run = run


def _forget(rehearsal: Any, args: Any, kwargs: Any) -> None:
    rehearsal.recorder.warn(SKIPPED)
    tensors = [t for t in (*args, *kwargs.values()) if isinstance(t, rehearsal.torch.Tensor)]
    rehearsal.stage.values.forget(tensors)
