"""Finds the calls of modules that no other module's call encloses: what a training loop itself
calls.

One wrapper around nn.Module.__call__, shared by every remedy that wants to stand between the loop
and its model. A wrapper that only passes its arguments on (DistributedDataParallel and the like)
counts as not there: what it calls is the outermost module, so its own bookkeeping still happens
once per step.
"""

import threading
import weakref
from typing import Any, Callable, Dict, List, Tuple

import torch

from ... import compiled
from . import aside

_handlers: List[Any] = []
_elsewhere: List[Any] = []  # what takes away what handlers have put elsewhere


class _State:
    __slots__ = ("inner", "original")

    def __init__(self) -> None:
        self.original: Any = None  # nn.Module.__call__, while ours stands around it
        # id of a block -> (a weak reference to it, handler): calls inside an outermost call that
        # somebody wants to see. The dict is replaced, never changed: a second run goes by the one
        # that its first run went by.
        self.inner: Dict[Any, Any] = {}


_state = _State()
_local = threading.local()

# Wrappers by class name, looked up along the class hierarchy so that nothing has to be imported.
_TRANSPARENT = {
    "DistributedDataParallel",
    "DataParallel",
    "DeepSpeedEngine",
    "_FabricModule",
    "LegacyDistributedDataParallel",
}


def transformed() -> bool:
    """Whether torch.func (grad, vmap, ...) transforms what runs now, or torch.jit records it: its
    tensors bear neither hooks nor functions of ours.
    """
    return _functorch() is not None or torch.jit.is_tracing()


_functorch = getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", lambda: None)


def _in_backward() -> bool:
    """Whether a backward pass runs on this thread: then a call is the second run of something
    checkpointed by the script, no call of its loop, and must be what it was the first time.
    """
    return _graph_task() != -1


_graph_task = getattr(torch._C, "_current_graph_task_id", lambda: -1)


def handle(handler: Callable[..., Any]) -> None:
    """Adds handler(module, call, args, kwargs) -> result around every outermost call; the last
    added is the outermost.
    """
    _handlers.append(handler)
    _begin()


def handle_inner(blocks: Any, handler: Callable[..., Any]) -> None:
    """Lets handler(block, call, args, kwargs) -> result stand around the calls of these blocks,
    wherever they are.
    """
    there = {key: entry for key, entry in _state.inner.items() if entry[0]() is not None}
    _state.inner = {**there, **{id(block): (weakref.ref(block), handler) for block in blocks}}
    _begin()


def leave_inner(blocks: Any) -> None:
    left = {id(block) for block in blocks}
    _state.inner = {key: entry for key, entry in _state.inner.items() if key not in left}


def inner() -> Any:
    """The blocks with a handler as this thread sees them, for a second run: inside(inner())."""
    seen = getattr(_local, "inner", None)
    return _state.inner if seen is None else seen


def _begin() -> None:
    if _state.original is None:
        compiled.install(torch)
        aside.install()
        _state.original = torch.nn.Module.__call__
        torch.nn.Module.__call__ = _wrap(_state.original)


def in_use() -> bool:
    """Whether anybody stands around calls already."""
    return bool(_handlers)


def when_forgotten(do: Any) -> None:
    """do() takes away what a handler has put elsewhere, when handlers are taken away."""
    _elsewhere.append(do)


def forget_all() -> None:
    """Takes the wrapper away again."""
    _handlers.clear()
    while _elsewhere:
        _elsewhere.pop()()
    _state.inner = {}
    aside.forget()
    if _state.original is not None:
        torch.nn.Module.__call__ = _state.original
        _state.original = None


def _wrap(original: Callable[..., Any]) -> Any:
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if compiled.compiling() or transformed():
            return original(self, *args, **kwargs)
        if getattr(_local, "inside", False):
            handled = inner().get(id(self))
            if handled is not None and handled[0]() is self:
                return _block(self, handled[1], original, args, kwargs)
            return original(self, *args, **kwargs)
        if _in_backward():
            with inside():
                return __call__(self, *args, **kwargs)
        if is_transparent(self):
            return original(self, *args, **kwargs)
        with inside():
            return _through(_handlers, self, original, args, kwargs)

    return compiled.left_alone(__call__)


def _block(
    block: Any,
    handler: Callable[..., Any],
    original: Callable[..., Any],
    args: Tuple[Any, ...],
    kwargs: Dict[str, Any],
) -> Any:
    def call(*a: Any, **k: Any) -> Any:
        return original(block, *a, **k)

    return handler(block, call, args, kwargs)


class inside:
    """Marks this thread as being inside an outermost call. A recompute during backward runs on a
    thread of autograd's and needs it: there, the calls within a block would look like calls of the
    loop. inner: the blocks with a handler, where they must be those of an earlier run.
    """

    def __init__(self, inner: Any = None) -> None:
        self.inner = inner

    def __enter__(self) -> None:
        self.before = getattr(_local, "inside", False), getattr(_local, "inner", None)
        _local.inside = True
        if self.inner is not None:
            _local.inner = self.inner

    def __exit__(self, *_: Any) -> None:
        _local.inside, _local.inner = self.before


def _through(
    handlers: Any,
    module: torch.nn.Module,
    original: Callable[..., Any],
    args: Tuple[Any, ...],
    kwargs: Dict[str, Any],
) -> Any:
    if not handlers:
        handled = inner().get(id(module))  # a Sequential that the loop calls has runs itself
        if handled is not None and handled[0]() is module:
            return _block(module, handled[1], original, args, kwargs)
        return original(module, *args, **kwargs)

    def call(*a: Any, **k: Any) -> Any:
        return _through(handlers[:-1], module, original, a, k)

    return handlers[-1](module, call, args, kwargs)


def is_transparent(module: torch.nn.Module) -> Any:
    names = {c.__name__ for c in type(module).__mro__}
    if names & _TRANSPARENT:
        return True
    # Lightning sends training_step through DDP by replacing forward on the instance: the module
    # itself is then only a door, and calling it in pieces would run the user's training_step
    # several times.
    return "LightningModule" in names and "forward" in vars(module)


def sharded(module: torch.nn.Module) -> Any:
    """The name of what keeps the module's parameters in shards, or None. Such a module's calls are
    collective: every rank would have to be cut and repeated alike, and no rank knows what another
    one chose.
    """
    for m in module.modules():
        if {c.__name__ for c in type(m).__mro__} & {"FullyShardedDataParallel", "FSDPModule"}:
            return "FSDP"
    for p in module.parameters():
        if hasattr(p, "ds_id"):
            return "ZeRO"
        if type(p).__name__ == "DTensor" or getattr(p, "_is_flat_param", False):
            return "FSDP"
    return None
