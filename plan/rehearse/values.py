"""What is known about the numbers in fake tensors.

Scripts branch on values: is there padding, how many tokens, which expert. What follows from the
script's own data (masks, labels, positions, counters) is computed for real beside the fake tensor,
as long as it is small; such a twin is attached to the fake tensor and dies with it. What the model
computes is unknown: where a script reads it, it gets a fixed finite value, and the record says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Iterable, TypeVar

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

if TYPE_CHECKING:
    from torch._ops import OpOverload

    from .stage import Stage

T = TypeVar("T")

WHOLE = 1 << 23  # elements of integers and booleans that are followed: a graph's edges
RANDOM = (
    1 << 18
)  # elements of noise that are followed: scripts compare it and sort it to choose positions
# elements of floating-point tensors that are followed: counters, scales and masks; what a model
# computes depends on its weights, which are unknown
FLOATS = 1 << 20
COPY = 1 << 18  # elements of an unknown tensor that become a real host tensor when copied there

READ = (
    "values computed on the card were read (.item(), .tolist(), if tensor: ...): they were "
    "answered with fixed finite values"
)
SHAPED = (
    "shapes depend on values computed on the card (routing, masks): they were answered with "
    "random values"
)
TRUTHS = {"isnan": False, "isinf": False, "isfinite": True}
TINY_TESTS = {
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "isnan",
    "isinf",
    "isfinite",
    "logical_not",
    "logical_and",
    "logical_or",
    "any",
    "all",
    "sum",
}
# a known operand of this value decides the result, whatever the other is
DECIDING = {"bitwise_and": False, "logical_and": False, "bitwise_or": True, "logical_or": True}
ROUTERS = {"topk", "sort", "argsort", "argmax", "argmin", "multinomial"}
NOISE = {
    "rand": torch.rand,
    "randn": torch.randn,
    "rand_like": torch.rand,
    "randn_like": torch.randn,
    "uniform_": torch.rand,
}
TWIN = "_memroom_twin"
GUESSED = "_memroom_guessed"  # marks a twin that comes from random scores


def twin_of(t: torch.Tensor) -> torch.Tensor | None:
    """The real tensor beside a fake one, a real tensor itself, or None."""
    return t.__dict__.get(TWIN) if type(t) is FakeTensor else t


def swap(values: Iterable[Any], change: Callable[[torch.Tensor], torch.Tensor]) -> list[Any]:
    """Arguments with every tensor changed, one level of lists deep."""
    out = []
    for v in values:
        if isinstance(v, torch.Tensor):
            v = change(v)
        elif isinstance(v, (list, tuple)) and any(isinstance(x, torch.Tensor) for x in v):
            v = type(v)(change(x) if isinstance(x, torch.Tensor) else x for x in v)
        out.append(v)
    return out


class Unknown(Exception):
    """An operand's values are not known."""


def known(t: torch.Tensor) -> torch.Tensor:
    twin = twin_of(t)
    if twin is None:
        raise Unknown
    return twin


def on_host(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {
        k: (
            torch.device("cpu")
            if k == "device" and v is not None
            else False
            if k == "pin_memory"
            else v
        )
        for k, v in kwargs.items()
    }


def small(t: torch.Tensor) -> bool:
    return bool(t.numel() <= (FLOATS if t.dtype.is_floating_point or t.dtype.is_complex else WHOLE))


class Values:
    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    def remember(self, fake: FakeTensor, real: torch.Tensor) -> None:
        if small(real):
            fake.__dict__[TWIN] = real.detach().clone()

    # -- reading
    # ------------------------------------------------------------

    def before(
        self, func: OpOverload, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, bool]:
        """Operations that hand values to the host are answered here: (answer, True)."""
        if name == "_local_scalar_dense":
            return self.scalar(args[0]), True
        if name in ("_use_cudnn_ctc_loss", "_use_miopen_ctc_loss"):
            return False, True  # it serves only lengths and types that are rare
        if name in ("equal", "is_nonzero", "allclose"):
            return bool(self.scalar(args[0]) if name == "is_nonzero" else True), True
        if (
            name == "_to_copy"
            and type(args[0]) is FakeTensor
            and args[0].fake_device.type == "cuda"
        ):
            device = kwargs.get("device")
            if (
                device is not None
                and torch.device(device).type == "cpu"
                and (twin_of(args[0]) is not None or args[0].numel() <= COPY)
            ):
                return func(self.real(args[0]), **kwargs), True
        if name == "copy_" and type(args[0]) is not FakeTensor:
            if args[0].numel() <= COPY:
                args[0].copy_(self.real(args[1]))
            return args[0], True
        return None, False

    def scalar(self, t: torch.Tensor) -> bool | int | float:
        twin = twin_of(t)
        if twin is not None:
            answer: bool | int | float = twin.item()
            return answer
        self.stage.recorder.warn(READ)
        return True if t.dtype is torch.bool else 1.0 if t.dtype.is_floating_point else 1

    def real(self, t: torch.Tensor) -> torch.Tensor:
        """A real host tensor for a fake one: its known values, or ones."""
        twin = twin_of(t)
        if twin is not None:
            return twin
        self.stage.recorder.warn(READ)
        with _disable_current_modes():  # scripts ask from outside the stage as well
            return (
                torch.ones((), dtype=t.dtype).expand(t.shape)
                if t.numel() > COPY
                else torch.ones(t.shape, dtype=t.dtype)
            )

    def shares(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Sizes of the parts of a tensor that were read from the card (how many rows an expert
        gets) and do not add up: equal ones.
        """
        t, sizes, dim = args[0], args[1], args[2] if len(args) > 2 else 0
        whole = t.shape[dim]
        if not sizes or sum(sizes) == whole or any(size != 1 for size in sizes):
            return args
        self.stage.recorder.warn(SHAPED)
        each, over = divmod(whole, len(sizes))
        return (t, [each + (i < over) for i in range(len(sizes))], dim)

    # -- following
    # ------------------------------------------------------------

    def after(
        self, func: OpOverload, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> None:
        outs = (
            [out]
            if isinstance(out, torch.Tensor)
            else [t for t in out if isinstance(t, torch.Tensor)]
            if isinstance(out, (list, tuple))
            else []
        )
        if not outs or not all(small(t) for t in outs):
            if name in NOISE and self.is_noise(outs[0]):
                outs[0].__dict__[TWIN] = NOISE[name](outs[0].shape)
            elif name in TRUTHS and outs:
                outs[0].__dict__[TWIN] = torch.tensor(TRUTHS[name]).expand(outs[0].shape)
            elif name in ROUTERS and outs and args[0].numel() <= WHOLE:
                self.route(func, args, kwargs, outs)
            return
        if name.startswith(("empty", "new_empty")):
            # anything, even a value that is not finite; whole numbers will be written, such as
            # positions piece by piece
            if not outs[0].dtype.is_floating_point and not outs[0].dtype.is_complex:
                self.remember(outs[0], torch.zeros(outs[0].shape, dtype=outs[0].dtype))
            return
        guessed = False

        def value(t: torch.Tensor) -> torch.Tensor:
            nonlocal guessed
            guessed = guessed or GUESSED in t.__dict__
            return known(t)

        try:
            twins = func(
                *swap(args, value),
                **{
                    k: (value(v) if isinstance(v, torch.Tensor) else v)
                    for k, v in on_host(kwargs).items()
                },
            )
        except Unknown:
            return self.unknown(func, name, args, kwargs, outs)
        except (RuntimeError, TypeError, ValueError, IndexError):
            return self.forget(outs)
        twins = [twins] if isinstance(twins, torch.Tensor) else twins
        for t, twin in zip(outs, twins):
            if type(t) is FakeTensor and isinstance(twin, torch.Tensor):
                t.__dict__[TWIN] = twin
                if guessed:
                    t.__dict__[GUESSED] = True

    @staticmethod
    def is_noise(t: torch.Tensor) -> bool:
        """Random values of the card that are no parameter's."""
        return (
            type(t) is FakeTensor
            and t.fake_device.type == "cuda"
            and t.numel() <= RANDOM
            and not t.requires_grad
            and not getattr(t, "_is_param", False)
        )

    def unknown(
        self,
        func: OpOverload,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        outs: list[torch.Tensor],
    ) -> None:
        if name in TRUTHS:
            outs[0].__dict__[TWIN] = torch.tensor(TRUTHS[name]).expand(outs[0].shape)
        elif name in ROUTERS:
            self.route(func, args, kwargs, outs)
        elif self.decided(name, args, outs):
            outs[0].__dict__[TWIN] = torch.tensor(DECIDING[name]).expand(outs[0].shape)
        elif not name.startswith("_amp_"):  # the scaler's finding (no infinities) stays
            self.forget(outs)

    @staticmethod
    def decided(name: str, args: tuple[Any, ...], outs: list[torch.Tensor]) -> bool:
        """Whether an operand that is known leaves only one result."""
        if name not in DECIDING or outs[0].dtype is not torch.bool:
            return False
        twins = [twin_of(a) if isinstance(a, torch.Tensor) else torch.tensor(a) for a in args]
        return any(t is not None and bool((t == DECIDING[name]).all()) for t in twins)

    def route(
        self,
        func: OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        outs: list[torch.Tensor],
    ) -> None:
        """Positions chosen by unknown scores: random ones, in range and spread evenly."""
        scores = torch.rand(args[0].shape)
        twins = func(scores, *args[1:], **on_host(kwargs))
        twins = [twins] if isinstance(twins, torch.Tensor) else twins
        for t, twin in zip(outs, twins):
            if not t.dtype.is_floating_point:
                t.__dict__[TWIN], t.__dict__[GUESSED] = twin, True

    def forget(self, outs: list[torch.Tensor]) -> None:
        for t in outs:
            if type(t) is FakeTensor:
                t.__dict__.pop(TWIN, None)

    # -- shapes that depend on values
    # ------------------------------------------------------------

    def resolve(
        self, func: OpOverload, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The result of an operation whose shape depends on values; the fake mode is on."""
        if name == "index":
            return func(args[0], self.positions(args[1]))
        device = next(t.fake_device for t in args if type(t) is FakeTensor)
        twins = self.off_stage(lambda: func(*swap(args, self.sample), **on_host(kwargs)))
        if isinstance(twins, torch.Tensor):
            return self.fake(twins, device)
        return tuple(self.fake(t, device) if isinstance(t, torch.Tensor) else t for t in twins)

    def fake(self, real: torch.Tensor, device: torch.device) -> FakeTensor:
        out = torch.empty_strided(real.shape, real.stride(), dtype=real.dtype, device=device)
        if small(real):
            out.__dict__[TWIN] = real
        return out

    def positions(self, indices: Iterable[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Masks among indices as the positions that they select."""
        out: list[torch.Tensor | None] = []
        for i in indices:
            if isinstance(i, torch.Tensor) and i.dtype in (torch.bool, torch.uint8):
                device = i.fake_device if type(i) is FakeTensor else torch.device("cpu")
                for p in self.off_stage(lambda i=i: self.sample(i).nonzero(as_tuple=True)):
                    out.append(self.fake(p, device))
            else:
                out.append(i)
        return out

    def sample(self, t: torch.Tensor) -> torch.Tensor:
        """Known values, or random ones of the right form."""
        twin = twin_of(t)
        if twin is None or GUESSED in t.__dict__:
            self.stage.recorder.warn(SHAPED)
        if twin is not None:
            return twin
        values = torch.rand(t.shape)
        values = values < 0.5 if t.dtype is torch.bool else values.to(t.dtype)
        if type(t) is FakeTensor and (small(t) or t.dtype is torch.bool):
            t.__dict__[TWIN] = values  # asked again, it answers the same
        return values

    def off_stage(self, work: Callable[[], T]) -> T:
        """Runs work on real tensors while the fake mode is on."""
        mode = torch._C._unset_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
        try:
            return work()
        finally:
            torch._C._set_dispatch_mode(mode)
