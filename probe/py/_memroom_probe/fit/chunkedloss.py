"""Cross entropy over many classes without its copies: the rows are worked through in pieces.

The usual way keeps the log-probabilities of every row and makes two gradients of their size; this one keeps a number a
row and makes one gradient. Values differ by rounding only.
"""
import functools

import torch
import torch.nn.functional as F

ABOVE = 128 << 20  # bytes of fp32 logits below which the usual way is left alone
PIECE = 32 << 20  # bytes of fp32 logits worked on at once


def install(params, say):
    original, above, told = F.cross_entropy, params.get("above", ABOVE), []

    @functools.wraps(original)
    def cross_entropy(input, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean", label_smoothing=0.0):
        if (weight is None and size_average is None and reduce is None and label_smoothing == 0.0 and reduction in ("mean", "sum")
                and input.dim() == 2 and target.dim() == 1 and not target.is_floating_point() and input.is_floating_point()
                and input.numel() * 4 >= above and torch.is_grad_enabled()):
            if not told:
                told.append(True)
                say("applied", "cross entropy over %d classes in pieces" % input.shape[1], id="chunked_loss", equivalence="exact")
            return _CrossEntropy.apply(input, target, ignore_index, reduction == "mean")
        return original(input, target, weight, size_average, ignore_index, reduce, reduction, label_smoothing)

    F.cross_entropy = cross_entropy


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, target, ignored, mean):
        counted = target != ignored
        safe = target.masked_fill(~counted, 0)
        norms = torch.empty(len(target), dtype=torch.float32, device=logits.device)
        total = torch.zeros((), dtype=torch.float32, device=logits.device)
        for rows in _pieces(logits):
            part = logits[rows].float()
            norms[rows] = part.logsumexp(1)
            losses = norms[rows] - part.gather(1, safe[rows].unsqueeze(1)).squeeze(1)
            total += losses.masked_fill(~counted[rows], 0).sum()
        share = 1 / counted.sum() if mean else torch.ones((), device=logits.device)
        ctx.save_for_backward(logits, safe, counted, norms, share)
        return (total * share).to(torch.float32 if torch.is_autocast_enabled() else logits.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        logits, safe, counted, norms, share = ctx.saved_tensors
        out = torch.empty_like(logits)
        factor = (grad * share).float()
        for rows in _pieces(logits):
            part = (logits[rows].float() - norms[rows].unsqueeze(1)).exp_()
            index = safe[rows].unsqueeze(1)
            part.scatter_add_(1, index, torch.full_like(index, -1, dtype=part.dtype))
            out[rows] = part.mul_((factor * counted[rows]).unsqueeze(1))
        return out, None, None, None


def _pieces(logits):
    step = max(1, PIECE // (4 * logits.shape[1]))
    return [slice(i, i + step) for i in range(0, len(logits), step)]
