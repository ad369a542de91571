"""Optimizer state waits in host memory between steps."""

import torch

from ..memory import room


def optimizer_state(params, say):
    """State is moved to the host after each step and back before the next: it is not there while
    activations are.
    """
    from torch.optim.optimizer import (
        register_optimizer_step_post_hook,
        register_optimizer_step_pre_hook,
    )

    told: list = []

    def bring(optimizer, args, kwargs):
        _move(
            optimizer, lambda p, t: t.to(p.device, non_blocking=True) if t.device != p.device else t
        )

    def send(optimizer, args, kwargs):
        _move(optimizer, _to_host)
        if not told:
            told.append(True)
            say(
                "applied",
                "%s: optimizer state offloaded to host memory between steps"
                % type(optimizer).__name__,
                id="optimizer_offload",
                equivalence="exact",
            )

    return [register_optimizer_step_pre_hook(bring), register_optimizer_step_post_hook(send)]


def optimizer_state_at_once(say):
    """The same, in the middle of a run: what is there goes now."""
    for optimizer in room.optimizers():
        _move(optimizer, _to_host)
    return optimizer_state({}, say)


def _to_host(parameter, tensor):
    if tensor.device.type != "cuda":
        return tensor
    there = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return there.copy_(tensor, non_blocking=True)


def _move(optimizer, where):
    for p, state in optimizer.state.items():
        for key, value in list(state.items()):
            if isinstance(value, torch.Tensor) and value.numel() * value.element_size() >= 4096:
                state[key] = where(p, value)
