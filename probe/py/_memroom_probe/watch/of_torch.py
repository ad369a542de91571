"""PyTorch: step boundaries, phases, allocator statistics and exhausted memory.

Hooks sit where a step passes a handful of times, never on module calls: optimizer steps,
torch.autograd.backward, the data loader's next, Module.eval, torch.save. CUDA is never initialised
by us; what needs it waits in torch's own queue.
"""

from __future__ import annotations

import functools
import sys
import weakref
from typing import TYPE_CHECKING, Any

from .. import compiled, guard, imports, made, process
from . import (
    checkpoints,
    evaluation,
    feeding,
    generation,
    host,
    steps,
    tables,
    torch_account,
    torch_oom,
    torch_rest,
    torch_stacks,
    torch_unseen,
    workers,
)

if TYPE_CHECKING:
    from torch.nn import Module
    from torch.optim import Optimizer

now = guard.now

_torch: Any = None
_leader = steps.Leader()
_unseen = torch_unseen.Unseen()
_by_hand = torch_unseen.ByHand()
_PATIENCE = 64  # passes with an optimizer but without a step of it
_passes = 0
# the optimizer that ended the last step
_stepped: weakref.ref[Optimizer] | None = None
_devices: tuple[int, ...] = ()  # the CUDA devices it uses
_looked = 0  # when that was last looked at, in messages to the monitor
_step_began = 0
_backward_due = 0  # when the memory at the beginning of backward is read next
# a program may evaluate after every step of a millisecond; marks are for those that take a while
_EVAL_EVERY_NS = 100000000
_eval_due = 0
_depth = 0  # of optimizer steps inside each other, where steps are wrapped and not hooked


def install(torch: Any) -> None:
    global _torch
    if _torch is torch:  # a reload: torch's own state, and so our hooks, survive it
        return
    _torch = torch
    compiled.install(torch)
    for part in (
        _hook_optimizers,
        _hook_backward,
        torch_rest.install,
        _hook_save,
        _hook_eval,
        evaluation.install,
        checkpoints.install,
        torch_account.install,
        torch_stacks.install,
        torch_oom.install,
    ):
        try:
            part(torch)
        except Exception as error:  # a version that lacks one of them: the others still work
            guard.fault(part.__module__ + "." + part.__name__, error)
    imports.when_imported("torch.utils.data.dataloader", _hook_loader)
    imports.when_imported("torch.utils.data._utils.fetch", workers.hook)
    imports.when_imported("multiprocessing.process", workers.hook_processes)
    imports.when_imported("transformers.modeling_utils", _hook_pretrained)
    imports.when_imported("transformers.cache_utils", generation.hook)
    if (process.world() or 1) > 1:
        imports.when_imported("numpy", tables.hook_numpy)
        imports.when_imported("pandas", tables.hook_pandas)
    steps.command("empty_cache", _empty_cache)
    cuda = getattr(torch.version, "cuda", None) or getattr(torch.version, "hip", None)
    steps.begin("torch", str(torch.__version__), **({"cuda": cuda} if cuda else {}))


def cuda_ready() -> bool:
    """Says whether the program has initialised CUDA, in this process and not only in its parent."""
    cuda = _torch.cuda
    return cuda.is_initialized() and not getattr(_torch._C, "_cuda_isInBadFork", lambda: False)()


def reading(device: int) -> steps.Reading:
    """(device, allocated, reserved, peak allocated, inactive split, retries, ooms) of one
    device.
    """
    stats = _torch._C._cuda_memoryStats(device)
    allocated = stats["allocated_bytes"]["all"]
    return (
        device,
        allocated["current"],
        stats["reserved_bytes"]["all"]["current"],
        allocated["peak"],
        stats["inactive_split_bytes"]["all"]["current"],
        stats["num_alloc_retries"],
        stats["num_ooms"],
    )


def _devices_of(optimizer: Optimizer) -> tuple[int, ...]:
    """The CUDA devices an optimizer's parameters are on, or the current one if they are in host
    memory; none without CUDA.
    """
    global _looked
    _looked = steps.flushes
    if not cuda_ready():
        return ()
    on = {
        p.device.index
        for group in optimizer.param_groups
        for p in group["params"]
        if p.device.type == "cuda"
    }
    return tuple(sorted(on)) or (_torch.cuda.current_device(),)


def first_reading() -> steps.Reading:
    """The reading of the current device, or zeros without CUDA."""
    return reading(_torch.cuda.current_device()) if cuda_ready() else (-1, 0, 0, 0, 0, 0, 0)


@compiled.left_alone
def _before_step(optimizer: Optimizer, args: Any = None, kwargs: Any = None) -> None:
    global _step_began
    if not compiled.compiling() and not steps.resting:
        entered = now()
        steps.phase = "optimizer"
        _step_began = now()
        guard.spent_ns += _step_began - entered + 2 * guard.NOTE_NS


@compiled.left_alone
def _after_step(optimizer: Optimizer, args: Any = None, kwargs: Any = None) -> None:
    if compiled.compiling():
        return
    _by_hand.on = False
    if compiled.in_use:
        _unseen.told(optimizer)
    _stepped_once(optimizer)


@compiled.left_alone
def _stepped_once(optimizer: Optimizer) -> None:
    if not steps.resting:
        _step_ends(optimizer)
    else:
        _rests(optimizer)


@compiled.uncompiled
def _rests(optimizer: Optimizer) -> None:
    if _leader.ends_step(optimizer):
        steps.rest()


@compiled.left_alone
def _glance(optimizer: Optimizer, args: Any = None, kwargs: Any = None) -> None:
    """After a step while hooks rest: all that is left of them (see torch_rest)."""
    if _leader.leads() is optimizer:
        _leader.silence = 0
    elif not _leader.ends_step(optimizer):
        return
    steps.rest()
    if steps.resting <= 0:
        torch_rest.back()


@guard.hook("optimizer ends", heavy=True, needed=True)
def _step_ends(optimizer: Optimizer) -> None:
    global _stepped, _devices
    steps.optimizer_ns += now() - _step_began
    if not _leader.ends_step(optimizer):
        torch_account.seen(optimizer)
        steps.phase = "forward"
        return
    if _stepped is None or _stepped() is not optimizer:
        torch_account.seen(optimizer)
        _stepped, _devices = weakref.ref(optimizer), _devices_of(optimizer)
    elif _looked != steps.flushes:
        _devices = _devices_of(optimizer)
    steps.close(reading, _devices)
    if steps.resting and optimizer is not _by_hand:
        torch_rest.aside()


def _hook_optimizers(torch: Any) -> None:
    module = sys.modules["torch.optim.optimizer"]  # torch.optim deletes its attribute
    hooked = hasattr(module, "register_optimizer_step_post_hook")  # since 2.0
    if hooked:
        before = module.register_optimizer_step_pre_hook(_before_step)
        after = module.register_optimizer_step_post_hook(_after_step)
        hooks = getattr(module, "_global_optimizer_pre_hooks", {})
        torch_rest.place(hooks, before.id, _before_step, torch_rest.nothing)
        hooks = getattr(module, "_global_optimizer_post_hooks", {})
        torch_rest.place(hooks, after.id, _after_step, _glance)
    made.install(torch, _made if hooked else _made_before_hooks)


@guard.hook("optimizer made")
def _made(optimizer: Optimizer) -> None:
    _by_hand.on = False
    _unseen.made(optimizer)


def _made_before_hooks(optimizer: Optimizer) -> None:
    _wrap_step(type(optimizer))
    _made(optimizer)


def _wrap_step(cls: type[Optimizer]) -> None:
    """Before torch 2.0 the class's step is wrapped. A step that calls its parent's counts once."""
    step = cls.step
    if getattr(step, "_memroom", False):
        return

    @functools.wraps(step)
    def wrapped(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        global _depth
        if _depth == 0:
            _before_step(self)
        _depth += 1
        try:
            result = step(self, *args, **kwargs)
        finally:
            _depth -= 1
        if _depth == 0:
            _after_step(self)
        return result

    wrapped._memroom = True
    cls.step = wrapped


def _hook_backward(torch: Any) -> None:
    original = torch.autograd.backward

    @compiled.left_alone
    def timed(*args: Any, **kwargs: Any) -> Any:
        if steps.resting and steps.phase != "eval":
            return original(*args, **kwargs)
        entered = _enter_backward()
        try:
            return original(*args, **kwargs)
        finally:
            steps.backward_ns += now() - entered
            steps.micro_batches += 1
            if steps.phase == "backward":
                steps.phase = "forward"

    @compiled.left_alone
    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        if compiled.compiling():
            return original(*args, **kwargs)
        if compiled.in_use:
            _compiled_steps()
        if not _by_hand.on:
            if steps.step == 0:
                _wait_for_steps()
            return timed(*args, **kwargs)
        _pass_begins(args[0] if args else kwargs.get("tensors"))
        try:
            return timed(*args, **kwargs)
        finally:
            _pass_ends()

    torch.autograd.backward = backward
    torch_rest.place(vars(torch.autograd), "backward", backward, original)
    _hook_grad(torch)


def _hook_grad(torch: Any) -> Any:
    """Functional programs call torch.autograd.grad, and so does torch.func."""
    original = torch.autograd.grad

    @compiled.left_alone
    @functools.wraps(original)
    def grad(*args: Any, **kwargs: Any) -> Any:
        if not _by_hand.on or compiled.compiling():
            return original(*args, **kwargs)
        _pass_begins(args[0] if args else kwargs.get("outputs"))
        try:
            return original(*args, **kwargs)
        finally:
            _pass_ends()

    def restore() -> Any:  # the compiler knows torch's own function by identity
        if torch.autograd.grad is grad:
            torch.autograd.grad = original

    torch.autograd.grad = grad
    compiled.when_used(restore)


def _wait_for_steps() -> Any:
    """Counts passes of a program whose optimizer, if it has one, has not stepped yet."""
    global _passes
    _passes += 1
    if _passes == _PATIENCE:
        _by_hand.on = True


@guard.hook("pass begins")
def _pass_begins(outputs: Any) -> None:
    """Ends the step that was made by hand since the last pass, if one was."""
    global _step_began
    if _by_hand.begins(outputs):
        _step_began = now()
        _stepped_once(_by_hand)


@guard.hook("pass ends")
def _pass_ends() -> None:
    _by_hand.ends()


@guard.hook("compiled steps")
def _compiled_steps() -> None:
    """Ends the steps that were part of a compiled program since the last backward pass."""
    global _step_began
    for optimizer in _unseen.stepped():
        _step_began = now()
        _stepped_once(optimizer)


@compiled.uncompiled
def _enter_backward() -> int:
    """Gives the time at which the backward pass itself begins."""
    began = now()
    if steps.phase == "eval" or steps.first_backward:
        _backward_begins()
    elif began >= _backward_due:
        _read_at_backward(began)
        began = now()
    steps.phase = "backward"
    entered = now()
    guard.spent_ns += min(entered - began, guard.LIGHT_NS) + guard.NOTE_NS
    return entered


@guard.hook("backward", heavy=True, needed=True)
def _backward_begins() -> None:
    """The first backward pass of all, or after an evaluation, which it ends."""
    if steps.phase == "eval":
        evaluation.ends()
        steps.mark("eval", False, first_reading())
    steps.backward_begins()


@guard.hook("reading at backward", heavy=True)
def _read_at_backward(began: int) -> None:
    """Reads what the forward pass left, as often as that is cheap. Several devices in one process
    step in turns: the last one that was read counts.
    """
    global _backward_due
    try:
        if _devices:
            device = _torch.cuda.current_device()
            steps.at_backward[device] = reading(device)[1]
            share = (
                0.004 if steps.step < 100 else 0.002
            )  # whether the work grows is asked when a leak would be named
        else:
            steps.at_backward[-1] = host.heap()
            share = 0.0006
        _backward_due = began + int((now() - began) / share)
    except Exception as error:
        guard.fault("at backward", error)
        _backward_due = began + 1000000000


def _hook_loader(module: Any) -> None:
    original = module._BaseDataLoaderIter.__next__

    @compiled.left_alone
    @functools.wraps(original)
    def __next__(self: Any) -> Any:
        if steps.phase == "eval" and not compiled.compiling():
            evaluation.batch()
        if steps.resting or compiled.compiling():
            data = original(self)
        else:
            before, steps.phase = steps.phase, "load"
            began = now()
            try:
                data = original(self)
            finally:
                steps.wait_ns += now() - began
                steps.phase = before
                guard.spent_ns += 2 * guard.NOTE_NS
        if feeding.waiting:
            feeding.batch(self, data)
        return data

    module._BaseDataLoaderIter.__next__ = __next__
    feeding.hook_torch(module)


def _hook_eval(torch: Any) -> None:
    _wrap_eval(torch.nn.Module)


def _hook_pretrained(module: Any) -> None:
    """transformers' models have an eval of their own, which does not call torch's (since 5.0)."""
    cls = getattr(module, "PreTrainedModel", None)
    if cls is not None and "eval" in vars(cls):
        _wrap_eval(cls)


def _wrap_eval(cls: type[Module]) -> None:
    original = cls.eval

    @compiled.left_alone
    @functools.wraps(original)
    def eval(self: Module) -> Module:
        if not compiled.compiling():
            _eval_begins(self)
        return original(self)

    cls.eval = eval


@guard.hook("eval", heavy=True, needed=True)
def _eval_begins(module: Module) -> None:
    """A module in training that is switched to evaluation begins a phase, which the next backward
    pass ends.
    """
    global _eval_due
    began = now()
    if steps.phase == "eval" or steps.step == 0 or not module.training or began < _eval_due:
        return
    parameter = next(module.parameters(), None)
    if (
        parameter is not None and parameter.requires_grad
    ):  # frozen parts are kept in eval mode all along
        steps.mark("eval", True, first_reading())
        steps.phase = "eval"
        torch_rest.back()  # the next backward pass ends the phase
        evaluation.begins(module)
        _eval_due = began + _EVAL_EVERY_NS


def _hook_save(torch: Any) -> None:
    original = torch.save

    @compiled.left_alone
    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        if compiled.compiling():
            return original(*args, **kwargs)
        before = _save_begins()
        try:
            result = original(*args, **kwargs)
            checkpoints.saved(
                args[0] if args else kwargs.get("obj"),
                args[1] if len(args) > 1 else kwargs.get("f"),
            )
            return result
        finally:
            _save_ends(before)

    torch.save = save


@guard.hook("save begins", heavy=True, needed=True)
def _save_begins() -> str:
    before, steps.phase = steps.phase, "save"
    steps.mark("save", True, first_reading())
    return before


@guard.hook("save ends", heavy=True, needed=True)
def _save_ends(before: str | None) -> Any:
    steps.phase = before or "forward"
    steps.mark("save", False, first_reading())


def _empty_cache(asked: dict[str, Any]) -> str:
    if not cuda_ready():
        return "CUDA is not in use"
    before = first_reading()
    _torch.cuda.empty_cache()
    after = first_reading()
    return "reserved %d -> %d bytes" % (before[2], after[2])
