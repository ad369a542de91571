"""Cross entropy over many classes without its copies: the rows are worked through in pieces.

The usual way keeps the log-probabilities of every row and makes two gradients of their size; this
one makes one gradient, with the same kernels on the same rows: it is equal to the bit. Only the
mean adds the rows' losses in another order.
"""

import functools

import torch
import torch.nn.functional as F

from ... import compiled
from ..calls import outermost

ABOVE = 128 << 20  # bytes of fp32 logits below which the usual way is left alone
PIECE = 32 << 20  # bytes of fp32 logits worked on at once


def install(params, say):
    original, above, told = F.cross_entropy, params.get("above", ABOVE), []

    @functools.wraps(original)
    def cross_entropy(
        input,
        target,
        weight=None,
        size_average=None,
        ignore_index=-100,
        reduce=None,
        reduction="mean",
        label_smoothing=0.0,
    ):
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
            and input.numel() * 4 >= above
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
            return _CrossEntropy.apply(input, target, ignore_index, reduction == "mean", original)
        return original(
            input, target, weight, size_average, ignore_index, reduce, reduction, label_smoothing
        )

    compiled.install(torch)
    # A compiled program must be able to trace it, or its graph would end here; it then finds the
    # original, because somebody compiles.
    F.cross_entropy = cross_entropy


class _CrossEntropy(torch.autograd.Function):
    """usual: what it stands for; asked for when somebody differentiates the gradient again."""

    @staticmethod
    def forward(ctx, logits, target, ignored, mean, usual):
        ctx.usual, ctx.ignored, ctx.mean = usual, ignored, mean
        ctx.dtype = torch.float32 if torch.is_autocast_enabled() else logits.dtype
        counted = target != ignored
        safe = target.masked_fill(~counted, 0)
        total = torch.zeros(
            (), dtype=torch.promote_types(ctx.dtype, torch.float32), device=logits.device
        )
        for rows in _pieces(logits):
            chosen = (
                _log_softmax(logits[rows], ctx.dtype).gather(1, safe[rows].unsqueeze(1)).squeeze(1)
            )
            total -= chosen.masked_fill(~counted[rows], 0).to(total.dtype).sum()
        ctx.save_for_backward(logits, target)
        return (total / counted.sum() if mean else total).to(ctx.dtype)

    @staticmethod
    def backward(ctx, grad):
        logits, target = ctx.saved_tensors
        if torch.is_grad_enabled():
            loss = ctx.usual(
                logits.to(ctx.dtype),
                target,
                ignore_index=ctx.ignored,
                reduction="mean" if ctx.mean else "sum",
            )
            return torch.autograd.grad(loss, logits, grad, create_graph=True) + (None,) * 4
        counted = target != ctx.ignored
        share = -grad / counted.sum() if ctx.mean else -grad
        out = torch.empty_like(logits)
        for rows in _pieces(logits):
            log = _log_softmax(logits[rows], ctx.dtype)
            index = target[rows].masked_fill(~counted[rows], 0).unsqueeze(1)
            of_log = torch.zeros_like(log).scatter_(
                1, index, (share * counted[rows]).to(log.dtype).unsqueeze(1)
            )
            out[rows] = torch._log_softmax_backward_data(of_log, log, 1, log.dtype)
        return out, None, None, None, None


def _log_softmax(logits, dtype):
    return torch._log_softmax(logits.to(dtype), 1, False)


def _pieces(logits):
    step = max(1, PIECE // (4 * logits.shape[1]))
    return [slice(i, i + step) for i in range(0, len(logits), step)]
