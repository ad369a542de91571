"""A loss that never holds all logits, in the place of a model's own: the head passes hidden states
on, and the loss multiplies, differentiates and drops them in chunks, as Liger's does.
"""

from __future__ import annotations

from typing import Any

from .models import Unbuildable


def install(model: Any, torch: Any) -> None:
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    weight = getattr(head, "weight", None)
    if weight is None or not hasattr(model, "loss_function"):
        raise Unbuildable("--loss fused: %s has no output layer" % type(model).__name__)

    class Head(torch.nn.Module):
        """Keeps the weight and lets the hidden states through."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = weight

        def forward(self, hidden: Any) -> Any:
            return hidden

    class Loss(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, hidden: Any, weight: Any) -> Any:
            flat = hidden.reshape(-1, hidden.shape[-1])
            of_hidden = torch.empty_like(flat)
            of_weight = torch.zeros_like(weight) if weight.requires_grad else None
            each = torch.empty(flat.shape[0], device=flat.device)
            for rows in flat.split(chunk(flat, weight)):
                logits = rows @ weight.to(rows.dtype).t()
                logits @ weight.to(rows.dtype)
                if of_weight is not None:
                    of_weight += logits.t() @ rows
                del logits
            ctx.save_for_backward(of_hidden.reshape(hidden.shape), of_weight)
            return each.sum()

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return ctx.saved_tensors

    def loss(logits: Any, labels: Any = None, *args: Any, **kwargs: Any) -> Any:
        model.memroom_fused = True
        half = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
        return Loss.apply(logits if half is None else logits.to(half), weight)

    model.set_output_embeddings(Head())
    model.loss_function = loss


def chunk(flat: Any, weight: Any) -> int:
    """Tokens a chunk: the logits of one are about as large as the hidden states of all."""
    rows, width = flat.shape
    wanted = -(-rows // -(-weight.shape[0] // width))
    size = 1
    while size < wanted:
        size *= 2
    answer: int = min(size, rows)
    return answer
