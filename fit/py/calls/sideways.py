"""Runs a trial on a thread of its own.

A thread numbers the nodes of the graphs that it makes, and a backward pass takes those with the
highest numbers first. On a card backward passes run on a thread of autograd's. What they make to be
differentiated again (create_graph) is numbered there, and runs together with what the loop's thread
has numbered. Had a trial moved the loop's numbers on, later backward passes would add gradients in
another order: a GAN with a gradient penalty was off by 3e-4 after twelve steps. On a thread that
nobody else numbers on, a trial moves nothing. Nor does it leave behind which algorithms cuDNN took.
"""

import contextlib
import threading
from typing import Any, Iterator, List

import torch

from . import outermost


def run(trial: Any) -> Any:
    """Returns what trial() gives, or raises what it raises. Where something is on that only this
    thread has, as a mode of torch's, it runs here.
    """
    if _is_special():
        return trial()
    found: List[Any] = []
    surroundings = _Surroundings()

    def work() -> None:
        try:
            with surroundings.here():
                found.append((trial(), None))
        except BaseException as why:
            found.append((None, why))

    thread = threading.Thread(target=work, name="memroom-trial", daemon=True)
    thread.start()
    thread.join()
    result, why = found.pop()
    # each thread has work spaces of cuBLAS' own, which would stay
    getattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)()
    if why is not None:
        raise why
    return result


def _is_special() -> bool:
    """Whether something is on that takes every call of this thread: modes, as `with
    torch.device(...)` is one, hooks for what is saved; or torch does not tell.
    """
    if not hasattr(torch, "get_autocast_dtype") or torch.is_inference_mode_enabled():
        return True
    from torch.overrides import _get_current_function_mode
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda _: None)
    on = _get_current_function_mode(), _get_current_dispatch_mode(), hooks(True)
    return any(one is not None for one in on)


class _Surroundings:
    """What torch keeps for each thread, as it is on the thread that makes this."""

    def __init__(self) -> None:
        self.gradients = torch.is_grad_enabled()
        self.cached = torch.is_autocast_cache_enabled()
        self.kinds = [
            (kind, torch.get_autocast_dtype(kind))
            for kind in ("cuda", "cpu")
            if torch.is_autocast_enabled(kind)
        ]
        on = torch.cuda.is_available() and torch.cuda.is_initialized()
        self.stream = torch.cuda.current_stream() if on else None

    @contextlib.contextmanager
    def here(self) -> Iterator[Any]:
        with contextlib.ExitStack() as stack:
            if self.stream is not None:
                stack.enter_context(torch.cuda.device(self.stream.device))
                stack.enter_context(torch.cuda.stream(self.stream))
            stack.enter_context(torch.set_grad_enabled(self.gradients))
            # Backward passes run on this thread too: torch keeps for each thread which algorithm
            # cuDNN took, and one that was taken for want of room must not stay.
            stack.enter_context(torch.autograd.set_multithreading_enabled(False))
            for kind, dtype in self.kinds:
                stack.enter_context(torch.autocast(kind, dtype=dtype, cache_enabled=self.cached))
            stack.enter_context(outermost.inside())
            yield
