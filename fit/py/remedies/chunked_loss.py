"""Cross entropy over many classes without its copies: the rows are worked through in pieces.

The usual way keeps the log-probabilities of every row and makes two gradients of their size; this
one makes one gradient, with the same kernels on the same rows: it is equal to the bit. Only the
mean adds the rows' losses in another order.
"""

import functools
from typing import Any, Dict, List

import torch
import torch.nn.functional as F

from ... import compiled
from ..calls import autocast, outermost
from ..memory import room

ABOVE = 128 << 20  # bytes of fp32 logits below which the usual way is left alone
OF_CARD = 1 / 16  # of what a card's allocator may take, where that is less
PIECE = 32 << 20  # bytes of fp32 logits worked on at once, at the most
LEAST = 1 << 20  # and at the least
SHARE = 1 / 12  # of what is free: several tensors of that size are there at once


def install(params: Any, say: Any) -> Any:
    original, above = F.cross_entropy, params.get("above")
    told: List[bool] = []

    @functools.wraps(original)
    def cross_entropy(
        input: Any,
        target: Any,
        weight: Any = None,
        size_average: Any = None,
        ignore_index: Any = -100,
        reduce: Any = None,
        reduction: Any = "mean",
        label_smoothing: float = 0.0,
    ) -> Any:
        if (
            not compiled.compiling()
            and type(input)
            is torch.Tensor  # a compiler's second pass traces with tensors of its own
            and weight is None
            and size_average is None
            and reduce is None
            and label_smoothing == 0.0
            and reduction in ("mean", "sum")
            and input.dim() == 2
            and target.dim() == 1
            and not target.is_floating_point()
            and input.is_floating_point()
            and input.numel() * 4 >= _least(input.device, above)
            and torch.is_grad_enabled()
            and not outermost.transformed()
        ):
            if not told:
                told.append(True)
                say(
                    "applied",
                    "cross entropy over %d classes computed in chunks" % input.shape[1],
                    id="chunked_loss",
                    equivalence="exact",
                )
            logs = _type_of_logs(input, original)
            return _CrossEntropy.apply(input, target, ignore_index, reduction, logs)
        return original(
            input, target, weight, size_average, ignore_index, reduce, reduction, label_smoothing
        )

    _install_divergence(above, say)
    compiled.install(torch)
    # A compiled program must be able to trace it, or its graph would end here; it then finds the
    # original, because somebody compiles.
    F.cross_entropy = cross_entropy


def _install_divergence(above: Any, say: Any) -> Any:
    """The same for the divergence of two distributions over many classes, which teaches a network
    what another one says. The usual way makes three tensors of their size beside them.
    """
    original = F.kl_div
    told: List[bool] = []

    @functools.wraps(original)
    def kl_div(
        input: Any,
        target: Any,
        size_average: Any = None,
        reduce: Any = None,
        reduction: Any = "mean",
        log_target: Any = False,
    ) -> Any:
        if (
            not compiled.compiling()
            and type(input) is torch.Tensor
            and type(target) in (torch.Tensor, torch.nn.Parameter)
            and size_average is None
            and reduce is None
            and reduction in ("mean", "sum", "batchmean", "none")
            and input.shape == target.shape
            and input.dtype == target.dtype
            and input.dim() > 1
            and input.is_floating_point()
            and not target.requires_grad
            and input.numel() * 4 >= _least(input.device, above)
            and torch.is_grad_enabled()
            and not autocast.is_on(input.device)
            and not outermost.transformed()
        ):
            if not told:
                told.append(True)
                say(
                    "applied",
                    "divergence over %d classes computed in chunks" % input.shape[-1],
                    id="chunked_loss",
                    equivalence="exact",
                )
            if reduction == "none":
                return _Divergences.apply(input, target, log_target)
            total = _Divergence.apply(input, target, reduction == "mean", log_target)
            return total / input.shape[0] if reduction == "batchmean" else total
        return original(input, target, size_average, reduce, reduction, log_target)

    F.kl_div = kl_div


class _Divergences(torch.autograd.Function):
    """One for each element."""

    @staticmethod
    def forward(ctx: Any, input: Any, target: Any, log_target: Any) -> Any:
        ctx.log_target = log_target
        ctx.save_for_backward(target)
        out = torch.empty_like(input, memory_format=torch.contiguous_format)
        flat = (t.reshape(-1, input.shape[-1]) for t in (input, target, out))
        given, wanted, found = flat
        for rows in _pieces(given):
            found[rows] = _divergence(given[rows], wanted[rows], log_target)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (target,) = ctx.saved_tensors
        return _times(target, -1, grad, ctx.log_target), None, None


def _times(target: Any, share: Any, grad: torch.Tensor, log_target: Any) -> Any:
    """The probabilities times share and grad. In place, unless that is differentiated again: a
    gradient of one number for all is not made as large as they are.
    """
    if torch.is_grad_enabled():
        return (target.exp() if log_target else target) * (share * grad)
    found = target.exp() if log_target else target.clone()
    return found.mul_(grad).mul_(share)


def _divergence(given: Any, wanted: Any, log_target: Any) -> Any:
    if log_target:
        return wanted.exp() * (wanted - given)
    return torch.xlogy(wanted, wanted) - wanted * given


class _Divergence(torch.autograd.Function):
    """A sum, or a mean over all elements."""

    @staticmethod
    def forward(ctx: Any, input: Any, target: Any, mean: Any, log_target: Any) -> Any:
        ctx.mean, ctx.log_target = mean, log_target
        ctx.save_for_backward(target)
        total = torch.zeros(
            (), dtype=torch.promote_types(input.dtype, torch.float32), device=input.device
        )
        given, wanted = input.reshape(-1, input.shape[-1]), target.reshape(-1, input.shape[-1])
        for rows in _pieces(given):
            part = _divergence(given[rows], wanted[rows], log_target)
            total += part.sum(dtype=total.dtype)
        return (total / input.numel() if mean else total).to(input.dtype)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (target,) = ctx.saved_tensors
        share = -(grad / target.numel() if ctx.mean else grad)
        return _times(target, 1, share, ctx.log_target), None, None, None


@functools.lru_cache(maxsize=None)
def _least(device: torch.device, asked: Any) -> Any:
    """Bytes of fp32 logits from which it is done in pieces. asked: those that were asked for."""
    if asked is not None:
        return asked
    return min(ABOVE, OF_CARD * room.of(device).limit) if device.type == "cuda" else ABOVE


_logs: Dict[Any, Any] = {}  # kind of logits -> type of their log-probabilities


def _type_of_logs(logits: torch.Tensor, usual: Any) -> Any:
    """The type in which cross entropy computes log-probabilities of such logits. Under autocast a
    CPU widens the logits first, and a card only the log-probabilities: they are rounded to half
    precision there, and so must they be here. The graph of a small loss tells.
    """
    mixed = autocast.is_on(logits.device)
    key = logits.device.type, logits.dtype, mixed
    if key not in _logs:
        _logs[key] = logits.dtype if not mixed or _widened_after(logits, usual) else torch.float32
    return _logs[key]


def _widened_after(logits: torch.Tensor, usual: Any) -> Any:
    """Whether the graph of a loss copies to another type behind its log-probabilities."""
    few = logits.detach()[:1].clone().requires_grad_()
    with torch.enable_grad():
        node = usual(few, torch.zeros(1, dtype=torch.int64, device=few.device)).grad_fn
    copied = False
    while node is not None and "LogSoftmax" not in node.name():
        copied = copied or "Copy" in node.name()
        node = next((behind for behind, _ in node.next_functions if behind is not None), None)
    return copied and node is not None


class _CrossEntropy(torch.autograd.Function):
    """logs: the type of log-probabilities."""

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, target: Any, ignored: Any, reduction: Any, logs: Any
    ) -> Any:
        ctx.ignored, ctx.reduction, ctx.logs = ignored, reduction, logs
        ctx.dtype = torch.float32 if autocast.is_on(logits.device) else logits.dtype
        counted = target != ignored
        safe = target.masked_fill(~counted, 0)
        total = torch.zeros(
            (), dtype=torch.promote_types(ctx.dtype, torch.float32), device=logits.device
        )
        for rows in _pieces(logits):
            chosen = (
                _log_softmax(logits[rows], ctx.logs).gather(1, safe[rows].unsqueeze(1)).squeeze(1)
            )
            total -= chosen.masked_fill(~counted[rows], 0).to(total.dtype).sum()
        ctx.save_for_backward(logits, target)
        return (total / counted.sum() if reduction == "mean" else total).to(ctx.dtype)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        logits, target = ctx.saved_tensors
        if torch.is_grad_enabled():  # somebody differentiates the gradient again
            log = torch.log_softmax(logits.to(ctx.logs), 1).to(ctx.dtype)
            loss = F.nll_loss(log, target, ignore_index=ctx.ignored, reduction=ctx.reduction)
            return torch.autograd.grad(loss, logits, grad, create_graph=True) + (None,) * 4
        counted = target != ctx.ignored
        share = -grad / counted.sum() if ctx.reduction == "mean" else -grad
        out = torch.empty_like(logits)
        for rows in _pieces(logits):
            log = _log_softmax(logits[rows], ctx.logs)
            index = target[rows].masked_fill(~counted[rows], 0).unsqueeze(1)
            of_log = torch.zeros_like(log).scatter_(
                1, index, (share * counted[rows]).to(log.dtype).unsqueeze(1)
            )
            out[rows] = torch._log_softmax_backward_data(of_log, log, 1, log.dtype)
        return (out,) + (None,) * 4


def _piece(device: Any) -> Any:
    """Bytes of logits to work on at once."""
    if device.type != "cuda":
        return PIECE
    around = room.of(device)
    return int(min(PIECE, max(LEAST, SHARE * (around.limit - around.held()))))


def _log_softmax(logits: torch.Tensor, dtype: torch.dtype) -> Any:
    return torch._log_softmax(logits.to(dtype), 1, False)


def _pieces(logits: torch.Tensor) -> Any:
    step = max(1, _piece(logits.device) // (4 * logits.shape[1]))
    return [slice(i, i + step) for i in range(0, len(logits), step)]
