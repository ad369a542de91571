"""torch.compile and our hooks: a compiled program is compiled as if we were not there.

torch.compile meets our functions in two ways. It may inline one into the program that it traces:
the function then asks `compiling` first and does only what the original would do. Or it may be
offered a frame of ours that runs as usual, between two compiled parts: `left_alone` tells it to
run that frame as it is, and `uncompiled` also everything that the frame calls.
"""

from __future__ import annotations

import functools

from . import imports

TYPE_CHECKING = False
if TYPE_CHECKING:  # a name that type checkers take for true: importing typing takes a while
    from typing import Any, Callable


def _never() -> bool:
    return False


def _keep(callback: Any) -> Any:
    return None


# Whether a compiler traces what runs now; torch's own function once it is known. It is a name of
# the module and no attribute of an object: the compiler knows the function there by identity.
compiling = _never


class Compiler:
    """What is known of the program's compiler."""

    __slots__ = ("codes", "frames", "in_use", "leave_alone", "torch", "waiting")

    def __init__(self) -> None:
        self.torch: Any = None
        self.codes: list[Any] = []  # code objects of ours that torch.compile leaves alone
        self.leave_alone: Any = None  # torch's function for that, once the compiler is loaded
        self.in_use = False  # whether the program compiles anything
        self.waiting: list[Callable[[], object]] = []  # called when it begins to
        # sets what compiles Python frames on this thread, returns what did before
        self.frames: Callable[[Any], Any] = _keep


compiler = Compiler()


def install(torch: Any) -> None:
    """Learns from torch how to ask and how to be left alone. A second call does nothing."""
    if compiler.torch is torch:
        return
    compiler.torch = torch
    # The traced program must find torch's own function here: the compiler knows it by identity.
    known = getattr(getattr(torch, "compiler", None), "is_compiling", None)
    if known is not None:
        _ask(known)
    else:  # torch 2.0 to 2.2 know it elsewhere; before 2.0 nothing is compiled
        imports.when_imported("torch._dynamo.external_utils", _ask_there)
    frames = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    compiler.frames = getattr(frames, "set_eval_frame", _keep)
    imports.when_imported("torch._dynamo.eval_frame", _loaded)


def _ask_there(module: Any) -> None:
    _ask(getattr(module, "is_compiling", _never))


def _ask(known: Callable[[], bool]) -> None:
    global compiling
    compiling = known


def _loaded(module: Any) -> None:
    """The compiler is loaded, which Optimizer.zero_grad does. What is compiled goes through a
    context of its own class.
    """
    compiler.leave_alone = getattr(module, "skip_code", None)
    if compiler.leave_alone is not None:
        for code in compiler.codes:
            compiler.leave_alone(code)
    context = getattr(module, "OptimizeContext", None)
    if context is None:
        _begins()
        return
    original = context.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        _begins()
        original(self, *args, **kwargs)

    context.__init__ = left_alone(__init__)


def _begins() -> None:
    """The program compiles something."""
    compiler.in_use = True
    while compiler.waiting:
        compiler.waiting.pop()()


def when_used(fn: Any) -> None:
    """Calls fn(), once, when the program begins to compile."""
    compiler.waiting.append(fn)


def left_alone(fn: Any) -> Any:
    """Runs fn's own frame as it is, never compiled; what it calls may be."""
    compiler.codes.append(fn.__code__)
    if compiler.leave_alone is not None:
        compiler.leave_alone(fn.__code__)
    return fn


def uncompiled(fn: Any) -> Any:
    """fn without a compiler looking at it or at anything that it calls."""

    def run(*args: Any, **kwargs: Any) -> Any:
        before = compiler.frames(None)
        try:
            return fn(*args, **kwargs)
        finally:
            compiler.frames(before)

    return left_alone(run)
