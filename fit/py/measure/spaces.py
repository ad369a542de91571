"""Work spaces that cuDNN wants for convolutions, at the size of the whole batch.

cuDNN goes without a work space that it cannot have: it takes another algorithm, whose results are
rounded otherwise, and keeps to it. What a few rows show says nothing about it, because it takes
other algorithms for other sizes. So each convolution of the call is run once by itself, forward and
backward, on zeros of its real size, and the allocator tells what that took beside its tensors.
"""

import dataclasses
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch.overrides import TorchFunctionMode

from ..batch.inputs import is_tensor
from ..calls import tree
from ..memory.room import size_of
from .run import put_back

KINDS = {
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
}
MOST = 64  # different convolutions that are worth the time


@dataclasses.dataclass
class Moment:
    """One convolution. before: share of what the call keeps that lies before it; bytes: of its
    tensors and its work space.
    """

    before: float
    bytes: int
    space: int  # bytes of the work space alone


def of(
    module: torch.nn.Module,
    call: Callable[..., Any],
    args: Tuple[Any, ...],
    kwargs: Dict[str, Any],
    room: Any,
) -> List[Moment]:
    """The moments of a call; none where there is nothing to know or where it cannot
    be had.
    """
    if not room.is_card or not _may_want(module):
        return []
    try:
        leaves, rebuild = tree.flatten((args, kwargs))
        args, kwargs = rebuild([t.detach().clone() if is_tensor(t) else t for t in leaves])
        with put_back(module), torch.no_grad(), _Calls() as calls:
            call(*args, **kwargs)
        del args, kwargs
        return _moments(calls, room)
    except Exception as why:  # out of memory too: the choice is made without
        del why
        return []


def largest(
    module: torch.nn.Module,
    call: Callable[..., Any],
    args: Tuple[Any, ...],
    kwargs: Dict[str, Any],
    room: Any,
) -> int:
    """Bytes of the largest work space in a call."""
    return max([m.space for m in of(module, call, args, kwargs, room)], default=0)


def _may_want(module: torch.nn.Module) -> bool:
    cudnn = torch.backends.cudnn
    return (
        cudnn.enabled
        and not cudnn.benchmark  # which takes what is fastest at that moment
        and any(isinstance(m, torch.nn.modules.conv._ConvNd) for m in module.modules())
    )


class _Calls(TorchFunctionMode):
    """Notes the convolutions that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.order: List[Tuple[str, int]] = []  # (which, bytes of its result)
        self.known: Dict[str, Tuple[Any, ...]] = {}  # which -> how to call it again

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Tuple[Any, ...] = (),
        kwargs: Optional[Dict[str, Any]] = None,
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if getattr(func, "__name__", "") in KINDS and len(args) > 1:
            x, weight = args[:2]
            rest = [_bare(a) for a in args[2:]]
            named = {name: _bare(a) for name, a in kwargs.items()}
            which = "%s %s %s %s" % (func.__name__, tuple(x.shape), x.stride(), x.dtype)
            which += " %s %s" % (tuple(weight.shape), weight.stride())
            which += " %s %s" % (_text(rest), _text(sorted(named.items())))
            self.order.append((which, size_of(result)))
            self.known.setdefault(which, (func, x.shape, x.stride(), x.dtype, weight, rest, named))
        return result


def _bare(argument: Any) -> Any:
    return argument.detach() if isinstance(argument, torch.Tensor) else argument


def _text(arguments: Any) -> str:
    return str([tuple(a.shape) if isinstance(a, torch.Tensor) else a for a in arguments])


def _moments(calls: Any, room: Any) -> List[Moment]:
    if len(calls.known) > MOST:
        return []
    alone = {which: _alone(room, *how) for which, how in calls.known.items()}
    total, before, found = sum(size for _, size in calls.order) or 1, 0, []
    for which, size in calls.order:
        found.append(Moment(before / total, *alone[which]))
        before += size
    return found


def _alone(
    room: Any,
    func: Any,
    shape: Any,
    stride: Any,
    dtype: torch.dtype,
    weight: Any,
    rest: Any,
    named: Any,
) -> Tuple[int, int]:
    """Bytes of a convolution with its work space, and of the work space alone, whichever pass wants
    more.
    """
    x = torch.empty_strided(shape, stride, dtype=dtype, device=weight.device).zero_()
    x.requires_grad_(x.is_floating_point())
    weight = weight.detach().requires_grad_(True)

    def peak_of(run: Callable[..., Any]) -> Any:
        room.wait()
        held = room.held()
        room.start_peak()
        result = run()
        room.wait()
        return result, room.peak() - held

    with torch.enable_grad():
        y, forward = peak_of(lambda: func(x, weight, *rest, **named))
    forward -= size_of(y)
    gradient = torch.zeros_like(y)
    _, backward = peak_of(lambda: torch.autograd.grad(y, [x, weight], gradient))
    backward -= size_of(x) + size_of(weight)
    ahead, back = size_of(x) + size_of(y), 2 * size_of(x) + size_of(y)
    return max(ahead + forward, back + backward), max(forward, backward, 0)
