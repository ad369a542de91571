"""zero_grad sets gradients to None: they take no memory until the next backward pass."""

import functools

import torch


def set_to_none(params, say):
    for owner in (torch.optim.Optimizer, torch.nn.Module):
        original = owner.zero_grad

        @functools.wraps(original)
        def zero_grad(self, set_to_none=True, original=original):
            return original(self, set_to_none=True)

        owner.zero_grad = zero_grad
    say("applied", "zero_grad sets gradients to None", id="set_to_none", equivalence="exact")
