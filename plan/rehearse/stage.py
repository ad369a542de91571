"""The stage of a rehearsal: a dispatch mode through which every operation of the script passes.

Tensors of the card and big tensors of the host are torch's own fake tensors: shapes, types, strides
and lifetimes without data. Small tensors of the host stay real, so that data loading, tokenizing
and bookkeeping go on as ever. An operation on the card is run on fake tensors; the storages it
makes and, from the rules, the scratch that CUDA takes inside it are noted in the recorder in the
order in which CUDA asks for them.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any, Callable, Iterable

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

from . import forms, products
from . import recorder as record
from .values import Values

if TYPE_CHECKING:
    from torch._ops import OpOverload

    from .card import Card

aten = torch.ops.aten
DEVICE = torch.ops.prim.device.default  # asked for more often than anything is computed

# A tensor of the host above this size is fake when the script makes it from nothing.
REAL_LIMIT = 1 << 20
# What all small host tensors made from nothing may take together before they are fake as well.
REAL_TOTAL = 256 << 20
SMALL = 4096  # bytes; these are never fake

FACTORIES = {
    "empty",
    "empty_strided",
    "zeros",
    "ones",
    "full",
    "rand",
    "randn",
    "randint",
    "arange",
    "randperm",
    "eye",
    "linspace",
    "normal",
    "bernoulli",
    "zeros_like",
    "ones_like",
    "empty_like",
    "full_like",
    "rand_like",
    "randn_like",
    "randint_like",
    "new_empty",
    "new_zeros",
    "new_ones",
    "new_full",
    "new_empty_strided",
    "scalar_tensor",
    "empty_permuted",
    "tril_indices",
    "triu_indices",
}

# Backward formulas that add tensors themselves; any other addition during backward is the engine
# summing gradients.
ADDING_NODES = (
    "VarMean",
    "StdMean",
    "VarBackward",
    "StdBackward",
    "Linalg",
    "NativeBatchNormBackwardBackward",
)


def tensors_in(values: Iterable[Any]) -> list[torch.Tensor]:
    """All tensors among arguments or results, one level of lists deep."""
    found = []
    for v in values:
        if isinstance(v, torch.Tensor):
            found.append(v)
        elif isinstance(v, (list, tuple)):
            found.extend(t for t in v if isinstance(t, torch.Tensor))
    return found


IN_PLACE = {"add", "index_put", "scatter_add"}


class Fakes(FakeTensorMode):
    """torch's fake mode, which would look for a real card where the pretended one answers."""

    avoid_device_init = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as the stage's

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is DEVICE:
            return args[0].device
        return self.dispatch(func, types, args, kwargs or {})


def packed(t: torch.Tensor) -> bool:
    """Whether a tensor's elements lie side by side, in whatever order (channels last is one)."""
    if t.is_contiguous():
        return True
    size = 1
    for length, stride in sorted(zip(t.shape, t.stride()), key=lambda d: (d[1], d[0])):
        if length != 1 and stride != size:
            return False
        size *= length
    return True


def on_card(t: object) -> bool:
    return type(t) is FakeTensor and t.fake_device.type == "cuda"


class Call:
    """One operation on the card, as the rules see it."""

    __slots__ = ("stage", "func", "name", "args", "kwargs", "out", "outs", "thread")

    def __init__(
        self,
        stage: Stage,
        func: OpOverload,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        out: Any,
    ) -> None:
        self.stage, self.func, self.name, self.args, self.kwargs, self.out = (
            stage,
            func,
            name,
            args,
            kwargs,
            out,
        )
        self.outs = (
            [out]
            if isinstance(out, torch.Tensor)
            else tensors_in(out if isinstance(out, (list, tuple)) else [out])
        )
        self.thread = threading.get_ident()

    def arg(self, index: int, name: str, default: Any = None) -> Any:
        return self.args[index] if index < len(self.args) else self.kwargs.get(name, default)


Rule = Callable[[Call], None]  # notes what CUDA allocates in a call


class Stage(TorchDispatchMode):
    """The mode. `rules` maps an operation's name to the function that says what CUDA allocates
    inside it.
    """

    card: Card  # set by whoever makes the stage
    before_write: Callable[[torch.Tensor], None]  # told what an operation writes into
    attention: torch.library.Library  # of the parts: their registrations live as long as it does
    recurrent: torch.library.Library

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # inductor.py keeps the stage itself from being compiled; torch's guard against it costs as
        # much as an operation
        return False

    def __init__(self, recorder: record.Recorder, rules: dict[str, Rule]) -> None:
        super().__init__()
        # operations that a part plays itself, by name: of the stage, the operation, its arguments
        self.played: dict[str, Callable[..., Any]] = {}
        # operations whose results lie in another order on a card, by name
        self.laid_out: dict[str, Callable[[Stage, tuple[Any, ...], Any], Any]] = {}
        self.fake = Fakes(allow_non_fake_inputs=True, allow_fallback_kernels=False)
        fake_tensor.init_gpu_context = lambda device: None
        self.recorder = recorder
        self.rules = rules
        self.values = Values(self)
        self.modules: list[str] = []  # names of the modules being called, outermost first
        self.real_bytes = 0
        self.turn = threading.RLock()  # the script's own threads take turns
        self.names: dict[OpOverload, str] = {}
        self.forms: dict[Any, Any] = {}  # form of a call -> forms of its results
        self.parts: set[OpOverload] = set()  # operations that consist of others
        # type of tensor -> whether it only holds others, as DTensor does
        self.wrappers: dict[type, bool] = {}
        self.in_linear = False  # inside torch.nn.functional.linear
        self.in_math = False  # inside the math implementation of attention
        # (operation, category) of what is allocated next, where a part plays an operation itself
        self.label: tuple[str, int] | None = None

    # -- routing
    # ------------------------------------------------------------

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is DEVICE and type(args[0]) is FakeTensor:
            return args[0].fake_device  # device: meta, while another thread plays an operation
        kwargs = kwargs or {}
        tensors = tensors_in(args)
        if kwargs:
            tensors += tensors_in(kwargs.values())
        if any(self.wraps(t) for t in tensors):
            return NotImplemented  # it takes itself apart, and what it holds comes here
        name = self.names.get(func)
        if name is None:
            name = self.names[func] = func._schema.name.split("::")[-1]
            if self.composed(func, name):
                self.parts.add(func)
        if not any(type(t) is FakeTensor for t in tensors):
            if func in self.parts:
                with self:
                    return func.decompose(*args, **kwargs)
            device = kwargs.get("device")
            if device is None or torch.device(device).type == "cpu":
                if kwargs.get("pin_memory"):  # pinning asks the driver
                    kwargs = dict(kwargs, pin_memory=False)
                if name not in FACTORIES:
                    return func(*args, **kwargs)
                if not self.too_big(name, args, kwargs):
                    return self.count_real(func(*args, **kwargs))
        return self.on_fakes(func, name, args, kwargs, tensors)

    def composed(self, func: OpOverload, name: str) -> bool:
        """Whether an operation consists of others, by its one kernel. Such come here whole from
        code that runs without autograd, as inside a DTensor; fake tensors take them apart.
        """
        return (
            func.namespace == "aten"
            and name not in self.rules
            and name not in self.played
            and torch._C._dispatch_has_kernel_for_dispatch_key(
                func.name(), "CompositeImplicitAutograd"
            )
        )

    def wraps(self, t: torch.Tensor) -> bool:
        kind = type(t)
        if kind not in self.wrappers:
            self.wrappers[kind] = kind is not FakeTensor and is_traceable_wrapper_subclass(t)
        return self.wrappers[kind]

    def too_big(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a host tensor made from nothing should cost no memory."""
        numel: float = 1
        if args and isinstance(args[0], torch.Tensor) and name.endswith("_like"):
            numel = args[0].numel()
        elif name in ("arange", "randperm", "linspace"):
            numel = max((a for a in args if isinstance(a, (int, float))), default=0)
        else:
            for a in args:
                if isinstance(a, (list, tuple)) and all(isinstance(n, int) for n in a):
                    for n in a:
                        numel *= n
                    break
        size = numel * (getattr(kwargs.get("dtype"), "itemsize", None) or 4)
        return size > REAL_LIMIT or (size > SMALL and self.real_bytes > REAL_TOTAL)

    def count_real(self, t: Any) -> Any:
        """Keeps account of host tensors for as long as they live."""
        size = t.untyped_storage().nbytes() if isinstance(t, torch.Tensor) else 0
        if size > SMALL:
            self.real_bytes += size
            weakref.finalize(t.untyped_storage(), self.release_real, size)
        return t

    def release_real(self, size: int) -> None:
        self.real_bytes -= size

    def on_fakes(
        self,
        func: OpOverload,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[torch.Tensor],
    ) -> Any:
        with self.turn:
            return self.play(func, name, args, kwargs, tensors)

    def play(
        self,
        func: OpOverload,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[torch.Tensor],
    ) -> Any:
        if (
            kwargs.get("generator") is not None
        ):  # of a device, or of the host for what is not made there
            kwargs = dict(kwargs, generator=None)
        if name[-1] == "_" and args:
            for t in tensors_in(args[:1]):
                if on_card(t):
                    self.before_write(t)
        answer, done = self.values.before(func, name, args, kwargs)
        if done:
            return answer
        if name == "split_with_sizes":
            args = self.values.shares(args)
        if name == "_to_copy" and args[0].layout is torch.sparse_coo:
            return self.sparse_copy(args[0])
        if name in self.played:
            return self.played[name](self, func, *args, **kwargs)
        if name == "add" and len(args) == 2 and self.sums_gradients(args):
            return self.sum_gradients(func, args)
        if name in IN_PLACE and self.is_in_place(name, args):
            with self.fake:
                out = aten.alias(args[0])
            self.note(Call(self, func, name, args, kwargs, out))
            return out
        key = forms.of_call(func, name, args, kwargs)
        known = self.forms.get(key)
        if known is None and name == "select" and key is not None and type(args[0]) is FakeTensor:
            known = forms.selected(*args)
        if known is None:
            out = self.computed(func, name, args, kwargs, key)
        else:
            out = forms.made(known, self.fake, args)
        if name in self.laid_out:
            with self.fake:
                out = self.laid_out[name](self, args, out)
        self.values.after(func, name, args, kwargs, out)
        call = Call(self, func, name, args, kwargs, out)
        if any(on_card(t) for t in call.outs) or any(on_card(t) for t in tensors):
            self.note(call)
        return out

    def computed(
        self,
        func: OpOverload,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        key: tuple[Any, ...] | None,
    ) -> Any:
        """What torch's fake mode returns; it is remembered where the form of the call decides."""
        with self.fake:
            try:
                if products.is_widened(func, name):
                    return products.widened(args, kwargs)
                out = func(*args, **kwargs)
                if key is not None and key == forms.of_call(func, name, args, kwargs):
                    self.forms[key] = forms.learnt(args, kwargs, out)
                return out
            except (
                fake_tensor.DynamicOutputShapeException,
                fake_tensor.DataDependentOutputException,
                fake_tensor.UnsupportedOperatorException,
                NotImplementedError,
            ):
                return self.values.resolve(func, name, args, kwargs)

    def sparse_copy(self, t: torch.Tensor) -> torch.Tensor:
        """A sparse tensor that moves to the card, such as a mask that a model keeps: what it takes
        is noted. It stays in host memory, where operations with tensors of the card end.
        """
        copy = t.detach().clone()
        for part in (copy._indices(), copy._values()):
            size = part.numel() * part.itemsize
            ident = self.recorder.alloc(size, "_to_copy", category=record.WEIGHTS)
            weakref.finalize(copy, self.recorder.free, ident)
        return copy

    def fake_of(self, t: torch.Tensor) -> FakeTensor:
        """A fake host tensor of the same form as a real one; tiny ones remember their values."""
        with self.fake:
            fake = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype)
        self.values.remember(fake, t)
        return fake

    # -- allocations
    # ------------------------------------------------------------

    def note(self, call: Call) -> None:
        """Notes what CUDA allocates in this call: its results, and what its rule says besides."""
        rule = self.rules.get(call.name)
        if rule is not None:
            rule(call)
        else:
            for t in call.outs:
                self.result(t, call)

    def result(self, t: torch.Tensor, call: Call, category: int = record.UNKNOWN) -> None:
        """Notes the storage of a result unless it is one that is known already (views, in-place
        operations).
        """
        if type(t) is not FakeTensor or t.fake_device.type != "cuda":
            return
        storage = t.untyped_storage()
        if not self.recorder.known(storage):
            if category == record.UNKNOWN and self.is_batch(call):
                category = record.INPUT
            name, category = self.label or (call.name, category)
            self.recorder.hold(
                storage, storage.nbytes(), name, self.modules[-1] if self.modules else "", category
            )

    def is_batch(self, call: Call) -> bool:
        """Whether this is a batch on its way to the card: copied from the host, by no module, while
        the script trains. Optimizers claim their state after their step.
        """
        return (
            call.name == "_to_copy"
            and not self.modules
            and self.recorder.phase != "load"
            and not on_card(call.args[0])
        )

    def hold_as(
        self, t: torch.Tensor, size: int, call: Call, category: int = record.UNKNOWN
    ) -> None:
        """Notes a result whose storage on CUDA has another size than on fake tensors."""
        storage = t.untyped_storage()
        if not self.recorder.known(storage):
            self.recorder.hold(
                storage, size, call.name, self.modules[-1] if self.modules else "", category
            )

    def take(self, size: int, call: Call, category: int = record.TEMPORARY) -> int:
        """Notes scratch inside an operation and returns its id for `free`."""
        return self.recorder.alloc(
            size, call.name, self.modules[-1] if self.modules else "", category
        )

    def scratch(self, call: Call, *sizes: int) -> None:
        """Scratch that is taken in this order and released together, first taken first."""
        for ident in [self.take(s, call) for s in sizes]:
            self.recorder.free(ident)

    # -- where torch avoids in-place operations on fake tensors
    # ----------------------------------------------------

    def is_in_place(self, name: str, args: tuple[Any, ...]) -> bool:
        """Whether torch would write into the first argument, were it not fake: a Linear's bias is
        added to the product, an indexed gradient is written into the zeros made for it.
        """
        if name != "add":
            node = torch._C._current_autograd_node()
            return node is not None and node.name().startswith(("IndexBackward", "GatherBackward"))
        if self.in_math:  # attention's scores, to which the mask is added
            return True
        return (
            self.in_linear
            and len(args) > 1
            and isinstance(args[1], torch.Tensor)
            and args[1].dim() == 1
        )

    # -- the engine's own sums
    # ------------------------------------------------------------

    def sums_gradients(self, args: tuple[Any, ...]) -> bool:
        node = torch._C._current_autograd_node()
        if node is None or torch.is_grad_enabled() or not all(type(a) is FakeTensor for a in args):
            return False
        return args[0].shape == args[1].shape and not any(n in node.name() for n in ADDING_NODES)

    def sum_gradients(self, func: OpOverload, args: tuple[Any, ...]) -> torch.Tensor:
        """Two gradients meet. The real engine adds into the first one in place where nobody else
        holds it; for fake tensors it never does, so the decision is taken here by the engine's own
        conditions.
        """
        first, second = args
        if self.alone(first) and first.dtype == second.dtype:
            return first
        with self.fake:
            out = func(first, second)
        self.note(Call(self, func, "add", args, {}, out))
        return out

    def alone(self, t: torch.Tensor) -> bool:
        """Whether the engine's buffer holds the only reference to a gradient, and to all of its
        storage. The counts include the three references of this call to the tensor, and one to the
        storage.
        """
        return (
            packed(t)
            and t._use_count() <= 4
            and torch._C._storage_Use_Count(t.untyped_storage()._cdata) <= 2
        )
