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

from .. import compiled, faults, guard, imports, made, process
from . import (
    checkpoints,
    evaluation,
    feeding,
    generation,
    host,
    steps,
    tables,
    torch_account,
    torch_memory,
    torch_oom,
    torch_rest,
    torch_stacks,
    torch_unseen,
    workers,
    wrapping,
)
from .watched import Watched, watched

if TYPE_CHECKING:
    from torch.nn import Module
    from torch.optim import Optimizer

now = guard.now

_PATIENCE = 64  # passes with an optimizer but without a step of it
# a program may evaluate after every step of a millisecond; marks are for those that take a while
_EVAL_EVERY_NS = 100000000


def install(torch: Any) -> None:
    """Hooks torch, once: after a reload torch's own state, and so our hooks, are still there."""
    if watched.torch is None or not watched.torch.watches(torch):
        watched.torch = Torch(torch, watched)
        watched.torch.install()


class Torch:
    """The watch of PyTorch."""

    __slots__ = (
        "_account",
        "_backward_due",
        "_by_hand",
        "_caches",
        "_checkpoints",
        "_cuda",
        "_depth",
        "_devices",
        "_eval_due",
        "_evaluations",
        "_fetches",
        "_heap",
        "_leader",
        "_looked",
        "_loop",
        "_memory",
        "_passes",
        "_rest",
        "_step_began",
        "_stepped",
        "_torch",
        "_unseen",
        "_window",
    )

    def __init__(self, torch: Any, watched: Watched) -> None:
        self._torch, self._loop, self._heap = torch, watched.loop, watched.heap
        self._cuda = torch_memory.Cuda(torch)
        self._rest = torch_rest.Rest(self._loop)
        self._evaluations = evaluation.Evaluations(torch, self._loop)
        self._account = torch_account.Account(torch, self._cuda, self._loop, watched.builds)
        self._checkpoints = checkpoints.Checkpoints(torch, self._loop, self._account)
        self._memory = torch_oom.OutOfMemory(torch, self._cuda, self._loop)
        self._window = torch_stacks.Window(torch, self._cuda, self._memory, self._loop)
        self._caches = generation.Caches()
        self._fetches = workers.Fetches()

        self._leader = steps.Leader()
        self._unseen = torch_unseen.Unseen()
        self._by_hand = torch_unseen.ByHand()
        self._passes = 0
        # the optimizer that ended the last step
        self._stepped: weakref.ref[Any] | None = None
        self._devices: tuple[int, ...] = ()  # the CUDA devices it uses
        self._looked = 0  # when that was last looked at, in messages to the monitor
        self._step_began = 0
        self._backward_due = 0  # when the memory at the beginning of backward is read next
        self._eval_due = 0
        self._depth = 0  # of optimizer steps inside each other, where they are wrapped, not hooked

    def watches(self, torch: Any) -> bool:
        return self._torch is torch

    def install(self) -> None:
        torch = self._torch
        compiled.install(torch)
        for part in (
            self._hook_optimizers,
            self._hook_backward,
            self._rest.install,
            self._hook_save,
            self._hook_eval,
            self._checkpoints.install,
            self._account.install,
            self._window.install,
            self._memory.install,
        ):
            try:
                part()
            except Exception as error:  # a version that lacks one of them: the others still work
                faults.note(part.__module__ + "." + part.__name__, error)
        imports.when_imported("torch.utils.data.dataloader", self._hook_loader)
        imports.when_imported("torch.utils.data._utils.fetch", self._fetches.hook)
        imports.when_imported("multiprocessing.process", workers.hook_processes)
        imports.when_imported("transformers.modeling_utils", self._hook_pretrained)
        imports.when_imported("transformers.cache_utils", self._caches.hook)
        if (process.world() or 1) > 1:
            imports.when_imported("numpy", tables.hook_numpy)
            imports.when_imported("pandas", tables.hook_pandas)
        self._loop.command("heap", self._heap.tell)
        self._loop.command("empty_cache", self._empty_cache)
        cuda = getattr(torch.version, "cuda", None) or getattr(torch.version, "hip", None)
        self._loop.begin("torch", str(torch.__version__), **({"cuda": cuda} if cuda else {}))

    def _hook_optimizers(self) -> None:
        module = sys.modules["torch.optim.optimizer"]  # torch.optim deletes its attribute
        hooked = hasattr(module, "register_optimizer_step_post_hook")  # since 2.0
        if hooked:
            before, after, glance = self._step_hooks()
            first = module.register_optimizer_step_pre_hook(before)
            last = module.register_optimizer_step_post_hook(after)
            hooks = getattr(module, "_global_optimizer_pre_hooks", {})
            self._rest.place(hooks, first.id, before, torch_rest.nothing)
            hooks = getattr(module, "_global_optimizer_post_hooks", {})
            self._rest.place(hooks, last.id, after, glance)
        made.install(self._torch, self._made if hooked else self._made_before_hooks)

    def _step_hooks(self) -> Any:
        """What runs before a step, after it, and after it while hooks rest. torch.compile may trace
        these: they refer to nothing of ours before they have asked for it.
        """
        loop, leader = self._loop, self._leader

        @compiled.left_alone
        def before(optimizer: Optimizer, args: Any = None, kwargs: Any = None) -> None:
            if not compiled.compiling() and not loop.resting:
                entered = now()
                loop.phase = "optimizer"
                self._step_began = now()
                guard.ledger.spent_ns += self._step_began - entered + 2 * guard.NOTE_NS

        @compiled.left_alone
        def after(optimizer: Optimizer, args: Any = None, kwargs: Any = None) -> None:
            if compiled.compiling():
                return
            self._by_hand.on = False
            if compiled.compiler.in_use:
                self._unseen.told(optimizer)
            self._stepped_once(optimizer)

        @compiled.left_alone
        def glance(optimizer: Optimizer, args: Any = None, kwargs: Any = None) -> None:
            """All that is left of them while hooks rest (see torch_rest)."""
            if leader.leads() is optimizer:
                leader.silence = 0
            elif not leader.ends_step(optimizer):
                return
            loop.rest()
            if loop.resting <= 0:
                self._rest.back()

        return before, after, glance

    @compiled.left_alone
    def _stepped_once(self, optimizer: Optimizer) -> None:
        if not self._loop.resting:
            self._step_ends(optimizer)
        else:
            self._rests(optimizer)

    @compiled.uncompiled
    def _rests(self, optimizer: Optimizer) -> None:
        if self._leader.ends_step(optimizer):
            self._loop.rest()

    @guard.hook("optimizer ends", heavy=True, needed=True)
    def _step_ends(self, optimizer: Optimizer) -> None:
        self._loop.optimizer_ns += now() - self._step_began
        if not self._leader.ends_step(optimizer):
            self._account.seen(optimizer)
            self._loop.phase = "forward"
            return
        if self._stepped is None or self._stepped() is not optimizer:
            self._account.seen(optimizer)
            self._stepped, self._devices = weakref.ref(optimizer), self._devices_of(optimizer)
        elif self._looked != self._loop.flushes:
            self._devices = self._devices_of(optimizer)
        self._loop.close(self._cuda.reading, self._devices)
        if self._loop.resting and optimizer is not self._by_hand:
            self._rest.aside()

    def _devices_of(self, optimizer: Optimizer) -> tuple[int, ...]:
        self._looked = self._loop.flushes
        return self._cuda.devices_of(optimizer)

    @guard.hook("optimizer made")
    def _made(self, optimizer: Optimizer) -> None:
        self._by_hand.on = False
        self._unseen.made(optimizer)

    def _made_before_hooks(self, optimizer: Optimizer) -> None:
        self._wrap_step(type(optimizer))
        self._made(optimizer)

    def _wrap_step(self, cls: type[Optimizer]) -> None:
        """Wraps a class's step, before torch 2.0. A step that calls its parent's counts once."""
        step = cls.step
        if getattr(step, "_memroom", False):
            return
        before, after, _ = self._step_hooks()

        def wrapped(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            if self._depth == 0:
                before(optimizer)
            self._depth += 1
            try:
                result = step(optimizer, *args, **kwargs)
            finally:
                self._depth -= 1
            if self._depth == 0:
                after(optimizer)
            return result

        setattr(cls, "step", wrapping.marked(step, wrapped))  # noqa: B010

    def _hook_backward(self) -> None:
        torch, loop = self._torch, self._loop
        original = torch.autograd.backward

        @compiled.left_alone
        def timed(*args: Any, **kwargs: Any) -> Any:
            if loop.resting and loop.phase != "eval":
                return original(*args, **kwargs)
            entered = self._enter_backward()
            try:
                return original(*args, **kwargs)
            finally:
                loop.backward_ns += now() - entered
                loop.micro_batches += 1
                if loop.phase == "backward":
                    loop.phase = "forward"

        @compiled.left_alone
        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if compiled.compiling():
                return original(*args, **kwargs)
            if compiled.compiler.in_use:
                self._compiled_steps()
            if not self._by_hand.on:
                if loop.step == 0:
                    self._wait_for_steps()
                return timed(*args, **kwargs)
            self._pass_begins(args[0] if args else kwargs.get("tensors"))
            try:
                return timed(*args, **kwargs)
            finally:
                self._pass_ends()

        torch.autograd.backward = backward
        self._rest.place(vars(torch.autograd), "backward", backward, original)
        self._hook_grad(torch)

    def _hook_grad(self, torch: Any) -> None:
        """Functional programs call torch.autograd.grad, and so does torch.func."""
        original = torch.autograd.grad

        @compiled.left_alone
        @functools.wraps(original)
        def grad(*args: Any, **kwargs: Any) -> Any:
            if compiled.compiling() or not self._by_hand.on:
                return original(*args, **kwargs)
            self._pass_begins(args[0] if args else kwargs.get("outputs"))
            try:
                return original(*args, **kwargs)
            finally:
                self._pass_ends()

        def restore() -> None:  # the compiler knows torch's own function by identity
            if torch.autograd.grad is grad:
                torch.autograd.grad = original

        torch.autograd.grad = grad
        compiled.when_used(restore)

    def _wait_for_steps(self) -> None:
        """Counts passes of a program whose optimizer, if it has one, has not stepped yet."""
        self._passes += 1
        if self._passes == _PATIENCE:
            self._by_hand.on = True

    @guard.hook("pass begins")
    def _pass_begins(self, outputs: Any) -> None:
        """Ends the step that was made by hand since the last pass, if one was."""
        if self._by_hand.begins(outputs):
            self._step_began = now()
            self._stepped_once(self._by_hand)

    @guard.hook("pass ends")
    def _pass_ends(self) -> None:
        self._by_hand.ends()

    @guard.hook("compiled steps")
    def _compiled_steps(self) -> None:
        """Ends the steps that were part of a compiled program since the last backward pass."""
        for optimizer in self._unseen.stepped():
            self._step_began = now()
            self._stepped_once(optimizer)

    @compiled.uncompiled
    def _enter_backward(self) -> int:
        """Returns the time at which the backward pass itself begins."""
        began = now()
        if self._loop.phase == "eval" or self._loop.first_backward:
            self._backward_begins()
        elif began >= self._backward_due:
            self._read_at_backward(began)
            began = now()
        self._loop.phase = "backward"
        entered = now()
        guard.ledger.spent_ns += min(entered - began, guard.LIGHT_NS) + guard.NOTE_NS
        return entered

    @guard.hook("backward", heavy=True, needed=True)
    def _backward_begins(self) -> None:
        """The first backward pass of all, or after an evaluation, which it ends."""
        if self._loop.phase == "eval":
            self._evaluations.ends()
            self._loop.mark("eval", False, self._cuda.current())
        self._loop.backward_begins()

    @guard.hook("reading at backward", heavy=True)
    def _read_at_backward(self, began: int) -> None:
        """Reads what the forward pass left, as often as that is cheap. Several devices in one
        process step in turns: the last one that was read counts.
        """
        try:
            if self._devices:
                device = self._torch.cuda.current_device()
                self._loop.at_backward[device] = self._cuda.reading(device)[1]
                share = (
                    0.004 if self._loop.step < 100 else 0.002
                )  # whether the work grows is asked when a leak would be named
            else:
                self._loop.at_backward[-1] = host.heap()
                share = 0.0006
            self._backward_due = began + int((now() - began) / share)
        except Exception as error:
            faults.note("at backward", error)
            self._backward_due = began + 1000000000

    def _hook_loader(self, module: Any) -> None:
        original, loop = module._BaseDataLoaderIter.__next__, self._loop

        @compiled.left_alone
        @functools.wraps(original)
        def __next__(iterator: Any) -> Any:
            if not compiled.compiling() and loop.phase == "eval":
                self._evaluations.batch(iterator)
            if compiled.compiling() or loop.resting:
                data = original(iterator)
            else:
                before, loop.phase = loop.phase, "load"
                began = now()
                try:
                    data = original(iterator)
                finally:
                    loop.wait_ns += now() - began
                    loop.phase = before
                    guard.ledger.spent_ns += 2 * guard.NOTE_NS
            if feeding.waiting:
                feeding.batch(iterator, data)
            return data

        module._BaseDataLoaderIter.__next__ = __next__
        feeding.hook_torch(module)

    def _hook_eval(self) -> None:
        self._wrap_eval(self._torch.nn.Module)

    def _hook_pretrained(self, module: Any) -> None:
        """transformers' models have an eval of their own (since 5.0), without torch's."""
        cls = getattr(module, "PreTrainedModel", None)
        if cls is not None and "eval" in vars(cls):
            self._wrap_eval(cls)

    def _wrap_eval(self, cls: type[Module]) -> None:
        original = cls.eval

        @compiled.left_alone
        @functools.wraps(original)
        def eval(module: Module) -> Module:
            if not compiled.compiling():
                self._eval_begins(module)
            return original(module)

        cls.eval = eval

    @guard.hook("eval", heavy=True, needed=True)
    def _eval_begins(self, module: Module) -> None:
        """A module in training that is switched to evaluation begins a phase, which the next
        backward pass ends.
        """
        began = now()
        if (
            self._loop.phase == "eval"
            or self._loop.step == 0
            or not module.training
            or began < self._eval_due
        ):
            return
        parameter = next(module.parameters(), None)
        if (
            parameter is not None and parameter.requires_grad
        ):  # frozen parts are kept in eval mode all along
            self._loop.mark("eval", True, self._cuda.current())
            self._loop.phase = "eval"
            self._rest.back()  # the next backward pass ends the phase
            self._evaluations.begins(module)
            self._eval_due = began + _EVAL_EVERY_NS

    def _hook_save(self) -> None:
        torch = self._torch
        original = torch.save

        @compiled.left_alone
        @functools.wraps(original)
        def save(*args: Any, **kwargs: Any) -> Any:
            if compiled.compiling():
                return original(*args, **kwargs)
            before = self._save_begins()
            try:
                result = original(*args, **kwargs)
                self._checkpoints.saved(
                    args[0] if args else kwargs.get("obj"),
                    args[1] if len(args) > 1 else kwargs.get("f"),
                )
                return result
            finally:
                self._save_ends(before)

        torch.save = save

    @guard.hook("save begins", heavy=True, needed=True)
    def _save_begins(self) -> str:
        before, self._loop.phase = self._loop.phase, "save"
        self._loop.mark("save", True, self._cuda.current())
        return before

    @guard.hook("save ends", heavy=True, needed=True)
    def _save_ends(self, before: str | None) -> None:
        self._loop.phase = before or "forward"
        self._loop.mark("save", False, self._cuda.current())

    def _empty_cache(self, asked: dict[str, Any]) -> str:
        if not self._cuda.ready():
            return "CUDA is not in use"
        before = self._cuda.current()
        self._torch.cuda.empty_cache()
        after = self._cuda.current()
        return "reserved %d -> %d bytes" % (before[2], after[2])
