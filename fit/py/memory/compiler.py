"""torch's compiler, kept out of memory until somebody compiles something.

torch imports it with the first optimizer, only to tell it that it must not look into that
optimizer's functions. In host memory it takes 60 to 70 MiB, as much as a small model's whole
training. Until it is there nothing is compiled, so those functions may as well be called directly.
"""

import ctypes
import functools
import os
import re
import sys
from typing import Any, List

import torch

from ... import imports

_MARK = "__dynamo_disable"  # where torch keeps what it calls instead of such a function
_direct: List[Any] = []  # the functions that are called directly for now
_steps: List[Any] = []  # (function around an optimizer's step, its code), where ours runs for now


def _around_a_step(func: Any) -> Any:
    """What torch puts around the step of its optimizers, less what it tells the compiler."""

    def _use_grad(*args: Any, **kwargs: Any) -> Any:
        before = torch.is_grad_enabled()
        try:
            torch.set_grad_enabled(args[0].defaults["differentiable"])
            return func(*args, **kwargs)
        finally:
            torch.set_grad_enabled(before)

    return _use_grad


def spare() -> None:
    """Lets torch's functions run without it. Once it is imported, they are torch's own again."""
    mark = getattr(torch, "_disable_dynamo", None)
    if mark is None or "torch._dynamo" in sys.modules:
        return
    for holder in (torch.optim.Optimizer, sys.modules.get("torch.utils.checkpoint")):
        for value in list(vars(holder).values()) if holder is not None else ():
            _call_directly(value)
    for kind in torch.optim.Optimizer.__subclasses__():
        _step_directly(vars(kind).get("step"))

    @functools.wraps(mark)
    def marked(fn: Any = None, recursive: bool = True) -> Any:
        if fn is None:
            return functools.partial(marked, recursive=recursive)
        return _call_directly(mark(fn, recursive))

    torch._disable_dynamo = marked

    def restore(_: Any) -> None:
        if torch._disable_dynamo is marked:
            torch._disable_dynamo = mark
        while _steps:
            step, code = _steps.pop()
            step.__code__ = code
        while _direct:
            function = _direct.pop()
            if getattr(function, _MARK, None) is function:
                delattr(function, _MARK)

    imports.before_import("torch._dynamo", restore)


def stay_alone() -> None:
    """Where training is on the CPU, the compiler shares its memory: it starts no helpers then that
    import torch once more, 270 MiB each. What it makes is the same.
    """
    imports.when_imported("torch._inductor.config", _without_workers)
    imports.when_imported("torch._inductor.cpu_vec_isa", _load_here)


def _without_workers(config: Any) -> None:
    if not torch.cuda.is_available() and "TORCHINDUCTOR_COMPILE_THREADS" not in os.environ:
        config.compile_threads = 1


def _load_here(module: Any) -> None:
    """To see whether a program with the processor's vector instructions can be loaded, torch starts
    another Python for it. Where that finds no room, it is taken for a no, and the program is
    compiled without them: slower, and rounded otherwise.
    """
    if not torch.cuda.is_available() and not isinstance(module.subprocess, _Here):
        module.subprocess = _Here(module.subprocess)


class _Here:
    """The module subprocess, with one call that is answered in this process."""

    def __init__(self, usual: Any) -> None:
        self._usual = usual

    def __getattr__(self, name: str) -> Any:
        return getattr(self._usual, name)

    def check_call(self, command: Any, *args: Any, **kwargs: Any) -> Any:
        python = list(command[:2]) == [sys.executable, "-c"] and len(command) == 3
        found = re.search(r"cdll\.LoadLibrary\(\W(.+)\W\)", command[2]) if python else None
        if found is None:
            return self._usual.check_call(command, *args, **kwargs)
        ctypes.CDLL(found.group(1))
        return 0


def _call_directly(value: Any) -> Any:
    """value, which runs what it stands for if it is one of those that wait for the compiler."""
    function = getattr(value, "__wrapped__", None)
    code = getattr(value, "__code__", None)
    waits = code is not None and code.co_filename == sys.modules["torch._compile"].__file__
    if waits and function is not None and getattr(function, _MARK, None) is None:
        try:
            setattr(function, _MARK, function)
            _direct.append(function)
        except (AttributeError, TypeError):
            pass  # a method of an object: torch asks the compiler then
    return value


def _step_directly(step: Any) -> None:
    while step is not None:
        code = getattr(step, "__code__", None)
        if code is not None and code.co_name == "_use_grad" and "_dynamo" in code.co_names:
            ours = _around_a_step(None).__code__
            if code.co_freevars == ours.co_freevars and step.__globals__.get("torch") is torch:
                _steps.append((step, code))
                step.__code__ = ours
            return
        step = getattr(step, "__wrapped__", None)
