"""Starts a rehearsal inside a process that has run for a while: the fork of a caller that has
imported torch, built models and perhaps trained them on the host.

What a rehearsal from the start gets for nothing is made up for here: names that modules imported
before the rehearsal replaced them, answers about cards that libraries remembered, and parameters
that are real.
"""

from __future__ import annotations

import dis
import functools
import gc
import importlib
import sys
import traceback
from types import ModuleType
from typing import Any

from .install import Rehearsal, follow
from .lines import OWN, Lines

# Words in the names of functions that remember what they learnt about the machine.
ABOUT_CARDS = ("cuda", "gpu", "bf16", "fp16", "tf32", "accelerator", "device", "flash")

# Parts that a rehearsal of PyTorch imports.
NEEDED = "card elements fakes keras_fit overlay rules script stage typed world".split()

_CACHED = type(functools.lru_cache(len))


class Caller:
    """What is read of a process before it is copied: a copy that looked at all its objects would
    copy their memory too. Modules that were read are not read again until they have grown.
    """

    def __init__(self) -> None:
        self.marks: dict[str, tuple[int, int]] = {}
        # functions and classes of torch by where they are found
        self.names: dict[tuple[str, str], Any] = {}
        # id of one -> modules that took it from torch, with their name for it
        self.takers: dict[int, set[tuple[str, str]]] = {}
        # where libraries remember what they learnt about the machine
        self.learnt: set[tuple[str, str]] = set()
        self.found: list[Any] = []  # modules and optimizers, until the process is copied

    def preload(self) -> None:
        """Imports what each copy needs."""
        for name in NEEDED:
            importlib.import_module("." + name, __package__)

    def read(self) -> None:
        torch = sys.modules.get("torch")
        if torch is None:
            return
        news = []
        for name, module in list(sys.modules.items()):
            if isinstance(module, ModuleType):
                mark = (id(module), len(vars(module)))
                if self.marks.get(name) != mark:
                    self.marks[name] = mark
                    news.append((name.partition(".")[0], name, list(vars(module).items())))
        for top, name, values in news:
            if top == "torch":
                for attribute, value in values:
                    if callable(value):
                        self.names[name, attribute] = value
                        self.takers.setdefault(id(value), set())
        for top, name, values in news:
            for attribute, value in values:
                if type(value) is _CACHED and any(word in attribute for word in ABOUT_CARDS):
                    if top not in getattr(sys, "stdlib_module_names", ()):
                        self.learnt.add((name, attribute))
                if top not in ("torch", "_memroom_probe") and id(value) in self.takers:
                    self.takers[id(value)].add((name, attribute))
        kinds = {torch.nn.Module, torch.optim.Optimizer}
        below = list(kinds)
        while below:
            more = set(type.__subclasses__(below.pop())) - kinds
            kinds |= more
            below += more
        self.found = [o for o in gc.get_objects() if type(o) in kinds]


def begin(target: dict[str, Any], path: str, caller: Caller) -> Rehearsal:
    """Puts this process on the stage. It must be a fork that ends with the rehearsal."""
    torch = sys.modules.get("torch")
    rehearsal = Rehearsal(target, path)
    if torch is not None:
        torch.set_num_threads(1)  # its threads did not survive the fork
        rehearsal.begin(torch)
        rehearsal.script.forked = True
    follow(rehearsal)
    if torch is not None:
        _rename(caller)
        for name, attribute in caller.learnt:  # is asked again
            cached = getattr(sys.modules.get(name), attribute, None)
            if type(cached) is _CACHED:
                cached.cache_clear()
        with torch.no_grad():
            rehearsal.adopted = Adopted(rehearsal, torch)
            rehearsal.adopted.modules(caller.found)
    return rehearsal


def _rename(caller: Caller) -> None:
    """Modules that took a name from torch get what the rehearsal put in its place."""
    for (name, attribute), old in caller.names.items():
        new = getattr(sys.modules.get(name), attribute, old)
        if new is not old and callable(new):
            for taker, own in caller.takers[id(old)]:
                module = sys.modules.get(taker)
                if getattr(module, own, None) is old:
                    setattr(module, own, new)


class Adopted:
    """Makes what was real before the rehearsal part of it."""

    def __init__(self, rehearsal: Rehearsal, torch: Any) -> None:
        self.rehearsal, self.torch = rehearsal, torch
        self.stage = rehearsal.stage
        self.kept: list[Any] = []  # the real ones: letting go of them would ask a driver

    def modules(self, found: list[Any]) -> None:
        """Every module of the process and every optimizer's state."""
        torch = self.torch
        seen: set[int] = set()
        for module in found:
            self.compile(module)
            for p in module.__dict__.get("_parameters", {}).values():
                if p is not None and id(p) not in seen:
                    seen.add(id(p))
                    self.parameter(p)
            buffers = module.__dict__.get("_buffers", {})
            for name, b in buffers.items():
                if b is not None and self.is_real(b) and b.device.type == "cuda":
                    buffers[name] = self.fake(b)
        for o in found:
            for state in o.state.values() if isinstance(o, torch.optim.Optimizer) else ():
                for key, value in list(state.items()) if isinstance(state, dict) else ():
                    if isinstance(value, torch.Tensor) and value.dim() and self.is_real(value):
                        state[key] = self.fake(value)

    def compile(self, module: Any) -> None:
        """What was compiled before is compiled again, for the card."""
        if type(module).__name__ == "OptimizedModule":
            again = self.torch.compile(module._orig_mod)
            module.__dict__["forward"] = getattr(again, "forward", again)
        elif getattr(module, "_compiled_call_impl", None) is not None:
            module._compiled_call_impl = None
            module.compile()

    def is_real(self, t: Any) -> bool:
        return type(t) in (self.torch.Tensor, self.torch.nn.Parameter)

    def parameter(self, p: Any, meta: bool = False) -> None:
        """Exchanges a real parameter's inside for a fake one: who holds it keeps it. meta: one
        without content too, as if it had been read from a file.
        """
        torch = self.torch
        if not self.is_real(p) or p.device.type == "meta" and not meta:
            return
        grad, p.grad = p.grad, None
        new = torch.nn.Parameter(self.fake(p.detach()), requires_grad=p.requires_grad)
        try:
            torch.utils.swap_tensors(p, new)
        except RuntimeError:  # a graph of an earlier pass holds on to it
            self.replace(p, new)
            p, new = new, p
        self.kept.append(new)
        if grad is not None:
            p.grad = self.fake(grad)

    def replace(self, old: Any, new: Any) -> None:
        """Puts another object where lists and dictionaries hold a parameter."""
        for holder in gc.get_referrers(old):
            if isinstance(holder, dict):
                for key, value in list(holder.items()):
                    if value is old:
                        holder[key] = new
                if any(key is old for key in holder):
                    holder[new] = holder.pop(old)
            elif isinstance(holder, list):
                for i, value in enumerate(holder):
                    if value is old:
                        holder[i] = new

    def fake(self, t: Any) -> Any:
        """A fake tensor of the same form, on the card if the real one is."""
        self.kept.append(t)
        if t.device.type == "cuda":
            return self.torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cuda")
        return self.stage.fake_of(t)


SPARSE = (
    "sparse tensors can be moved to the card in a rehearsal, and not computed with: use dense ones "
    "in the test"
)
# What a rehearsal cannot do: part of an error's text -> what it is, and the way out.
CANNOT = (
    (
        "autograd's threading in combination with fork",
        "this process has already trained on a real card, and no copy of it can run another "
        "backward pass: ask before the first backward pass, or put the code into a script and use "
        "`memroom plan --rehearse -- python script.py`",
    ),
    (
        "no fake impl",
        "an operation has no fake implementation, so nobody knows the sizes of its results: "
        "register one with torch.library.register_fake",
    ),
    (
        "UnsupportedOperator",
        "an operation has no fake implementation, so nobody knows the sizes of its results: "
        "register one with torch.library.register_fake",
    ),
    (
        "Could not run '",
        "an operation has a kernel for the card only, and no fake implementation: register one "
        "with torch.library.register_fake",
    ),
    (
        "data-dependent",
        "a size depends on values that a rehearsal does not have: compute it from sizes or from "
        "tensors of the host, or pass it in",
    ),
    (
        "Multiple dispatch failed",
        "a tensor is of a class that has no fake counterpart, as a lazy layer's weight before its "
        "first call: call the model once on the host, or use a plain tensor",
    ),
    ("SparseTensorImpl", SPARSE),
    ("meta converter nyi", SPARSE),
    (
        "Found no NVIDIA driver",
        "an operation goes to the card past the rehearsal, as sparse tensors do: use another in "
        "the test",
    ),
    (
        "CUDA_HOME",
        "a CUDA extension is compiled when it is first used, which a rehearsal cannot do: use the "
        "plain PyTorch version of it in the test",
    ),
)


# What an assertion means that failed after values of the card were read.
ASSERTED = (
    "what is computed on the card is not known in a rehearsal, and was answered with fixed values: "
    "an assertion about it belongs into a test that is not rehearsed"
)


def told(error: BaseException, rehearsal: Rehearsal | None) -> dict[str, str]:
    """What the caller is told of an error: its kind and text, the program's line that it came
    through, the trace from there on, and what it means for somebody who rehearses; that is empty
    where the program raised it by itself.
    """
    lines = rehearsal.recorder.lines if rehearsal is not None else Lines()
    stack = []
    tb = error.__traceback__
    while tb is not None:
        stack.append(tb)
        tb = tb.tb_next
    kinds = [lines.kind(tb.tb_frame.f_code) for tb in stack]
    own = [i for i, kind in enumerate(kinds) if kind == OWN]
    text = "%s: %s" % (type(error).__name__, error)
    cannot = next((what for part, what in CANNOT if part in text), "")
    if stack:
        code = stack[-1].tb_frame.f_code
        does = dis.opname[code.co_code[stack[-1].tb_lasti]]
        if kinds[-1] == OWN and does.startswith("RAISE"):
            cannot = ""
        elif lines.ours(code) and not does.startswith(("RAISE", "CALL", "PRECALL", "RERAISE")):
            cannot = "the rehearsal broke, and not the code: please report it with this trace"
    if isinstance(error, AssertionError) and rehearsal is not None and "torch" in sys.modules:
        from .values import READ, SHAPED

        cannot = ASSERTED if rehearsal.recorder.warnings.keys() & {READ, SHAPED} else cannot
    told = traceback.format_exception(
        type(error), error, stack[own[0]] if own else error.__traceback__
    )
    at = stack[own[-1]] if own else None
    return {
        "kind": type(error).__name__,
        "text": str(error)[:2000],
        "at": "%s:%d" % (lines.shown(at.tb_frame.f_code), at.tb_lineno) if at else "",
        "cannot": cannot,
        "trace": "".join(told),
    }
