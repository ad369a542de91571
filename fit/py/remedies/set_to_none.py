"""zero_grad sets gradients to None: they take no memory until the next backward pass."""

import functools
from typing import Any, Callable, Dict

import torch


def set_to_none(params: Dict[Any, Any], say: Callable[..., Any]) -> None:
    for owner in (torch.optim.Optimizer, torch.nn.Module):
        original = owner.zero_grad

        @functools.wraps(original)
        def zero_grad(
            self: Any, set_to_none: bool = True, original: Callable[..., Any] = original
        ) -> Any:
            return original(self, set_to_none=True)

        owner.zero_grad = zero_grad
    say("applied", "zero_grad sets gradients to None", id="set_to_none", equivalence="exact")
