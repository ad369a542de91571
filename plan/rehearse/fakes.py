"""Makes torch's fake tensors pass for tensors of a script: parameters, copies, conversions,
printing.

Fake tensors were made for compilers, which never pickle, deep-copy or print them. What a script may
do with a tensor and a fake tensor cannot is given to it here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Sequence, Union

import torch
from torch._subclasses.fake_tensor import FakeTensor

if TYPE_CHECKING:
    from .stage import Stage

Lengths = Union[torch.Tensor, Sequence[int]]


def install(stage: Stage) -> None:
    _parameters(stage)
    _swap()
    _attributes(stage)
    _detours(stage)
    _resizes(stage)
    torch.inference_mode = torch.autograd.inference_mode = (
        torch.autograd.grad_mode.inference_mode
    ) = _inference_mode
    # what libraries look at to recognise tracing; torch itself uses fake_tensor.FakeTensor
    torch._subclasses.FakeTensor = _Nothing


class _Nothing:
    """No tensor is an instance of this."""


def _inference_mode(mode: bool | Callable[..., Any] = True) -> Any:
    """Inference mode allocates what no_grad does, but hands operations to the stage before they are
    taken apart.
    """
    if callable(mode):
        return torch.no_grad()(mode)
    return torch.no_grad() if mode else torch.set_grad_enabled(torch.is_grad_enabled())


_inference_mode.clone = None  # the compiler asks for it; nothing is recognised by it


def _parameters(stage: Stage) -> None:
    """Every parameter is fake from its birth: a real one could not move to the card and stay the
    same object, which tied weights and optimizers made before the move depend on.
    """
    make = torch.nn.Parameter.__new__

    def new(
        cls: type[torch.nn.Parameter], data: torch.Tensor | None = None, requires_grad: bool = True
    ) -> torch.nn.Parameter:
        if (
            data is not None
            and type(data) in (torch.Tensor, torch.nn.Parameter)
            and data.device.type == "cpu"
        ):
            data = stage.fake_of(data)
        return make(cls, data, requires_grad)

    torch.nn.Parameter.__new__ = new


def _swap() -> None:
    """Module.to exchanges fake parameters by swap_tensors, which refuses tensors that anybody
    refers to weakly.
    """
    original = torch.utils.swap_tensors

    def swap(a: torch.Tensor, b: torch.Tensor) -> None:
        if type(a) is FakeTensor and type(b) is FakeTensor:
            a.__dict__, b.__dict__ = b.__dict__, a.__dict__
            torch._C._swap_tensor_impl(a, b)
        else:
            original(a, b)

    torch.utils.swap_tensors = swap


def _attributes(stage: Stage) -> None:
    base = torch.Tensor.data

    def set_data(t: FakeTensor, value: torch.Tensor) -> None:
        base.__set__(t, value)
        if type(value) is FakeTensor:
            t.fake_device = value.fake_device

    def deepcopy(t: FakeTensor, memo: dict[int, Any]) -> FakeTensor:
        if id(t) not in memo:
            with torch.no_grad():
                copy = t.detach().clone()
            copy.requires_grad_(t.requires_grad)
            if getattr(t, "_is_param", False):
                copy._is_param = True
            if t.grad is not None:
                copy.grad = deepcopy(t.grad, memo)
            memo[id(t)] = copy
        return memo[id(t)]

    FakeTensor.data = property(lambda t: base.__get__(t), set_data)
    FakeTensor.__deepcopy__ = deepcopy
    FakeTensor.__repr__ = FakeTensor.__str__ = _describe
    FakeTensor.__reduce_ex__ = lambda t, proto: (
        _rebuild,
        (tuple(t.shape), t.dtype, str(t.device), t.requires_grad),
    )
    FakeTensor.tolist = lambda t: stage.values.real(t).tolist()
    FakeTensor.numpy = lambda t, force=False: stage.values.real(t).numpy()
    FakeTensor.__array__ = lambda t, dtype=None, copy=None: stage.values.real(t).numpy()
    FakeTensor.__format__ = lambda t, spec: format(
        stage.values.real(t).item() if t.dim() == 0 else str(t), spec
    )
    FakeTensor.data_ptr = lambda t: id(t.untyped_storage())
    FakeTensor.is_shared = lambda t: False
    FakeTensor.share_memory_ = lambda t: t
    torch.Tensor.pin_memory = lambda t, *a: t
    torch.Tensor.is_pinned = lambda t, *a: False


def _resizes(stage: Stage) -> None:
    """Sharded models empty the storages of gathered weights and fill them again."""
    resize = torch.UntypedStorage.resize_

    def follow(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        if size != storage.nbytes():
            stage.recorder.resize(storage, size)
        return resize(storage, size)

    torch.UntypedStorage.resize_ = follow


def _detours(stage: Stage) -> None:
    """cuDNN's sampler has no fake kernel: torch's own allocates the same. The loss of speech, given
    a tensor of lengths that is fake or lies in host memory, takes a way that mixes devices: given
    numbers it takes the usual one.
    """
    ctc = torch.ctc_loss

    def numbers(lengths: Lengths) -> Sequence[int]:
        return stage.values.real(lengths).tolist() if isinstance(lengths, torch.Tensor) else lengths

    def ctc_loss(
        log_probs: torch.Tensor,
        targets: torch.Tensor,
        input_lengths: Lengths,
        target_lengths: Lengths,
        *more: Any,
        **named: Any,
    ) -> torch.Tensor:
        return ctc(
            log_probs, targets, numbers(input_lengths), numbers(target_lengths), *more, **named
        )

    def grid_sampler(
        input: torch.Tensor,
        grid: torch.Tensor,
        interpolation_mode: int,
        padding_mode: int,
        align_corners: bool,
    ) -> torch.Tensor:
        sample = torch.grid_sampler_2d if input.dim() == 4 else torch.grid_sampler_3d
        return sample(input, grid, interpolation_mode, padding_mode, align_corners)

    make = torch.tensor

    def tensor(data: Any, *args: Any, **named: Any) -> torch.Tensor:
        """A list of tensors of the card is read number by number."""
        if isinstance(data, (list, tuple)) and any(type(x) is FakeTensor for x in data):
            data = [x.tolist() if type(x) is FakeTensor else x for x in data]
        return make(data, *args, **named)

    for ours in (ctc_loss, grid_sampler, tensor):
        _scripted(getattr(torch, ours.__name__), ours)
        setattr(torch, ours.__name__, ours)


def _scripted(original: Callable[..., Any], ours: Callable[..., Any]) -> None:
    """torch.jit.script knows torch's own functions by their identity: ours stands for the same."""
    try:
        from torch.jit import _builtins

        name = _builtins._find_builtin(original)
        if name is not None:
            _builtins._register_builtin(ours, name)
    except (ImportError, AttributeError):
        pass  # another release's table: scripts that are compiled cannot be rehearsed


def _describe(t: FakeTensor, *args: Any, **kwargs: Any) -> str:
    return "tensor(..., device='%s', size=%s, dtype=%s)" % (t.fake_device, tuple(t.shape), t.dtype)


def _rebuild(
    shape: tuple[int, ...], dtype: torch.dtype, device: str, requires_grad: bool
) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=device, requires_grad=requires_grad)
