"""Optimizer state waits in host memory between steps."""

import weakref
from typing import Any, Callable, Dict, List, Tuple

import torch

from ..calls import outermost
from ..memory import room
from .optimizer_step import BY_PARAMETER

PART = 64 << 20  # bytes of parameters whose state is on the card at once


def optimizer_state(params: Dict[str, Any], say: Callable[..., Any]) -> Any:
    """State is moved to the host after each step and back before the next: it is not there while
    activations are.
    """
    return StateAway(say).send_now()


class StateAway:
    """State of optimizers, which waits on the host from send_now() on. Optimizers that treat each
    parameter by itself step part by part, so that the state of one part is on the card at a time.
    wanted: asked before a step, as long as state is not sent away: whether it has to be.
    """

    def __init__(self, say: Any, wanted: Any = None) -> None:
        from torch.optim.optimizer import (
            register_optimizer_step_post_hook,
            register_optimizer_step_pre_hook,
        )

        self.say, self.wanted, self.active, self._told = say, wanted, False, False
        # optimizer -> its groups, those of the part that steps first, and those that follow
        self._steps: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._loads: weakref.WeakSet[Any] = (
            weakref.WeakSet()
        )  # optimizers whose loads are listened to
        self.hooks = [
            register_optimizer_step_pre_hook(self._before),
            register_optimizer_step_post_hook(self._after),
        ]
        outermost.when_forgotten(self.stop)

    def stop(self) -> None:
        """Optimizers keep their state from now on as they would by themselves."""
        for hook in self.hooks:
            hook.remove()

    def send_now(self) -> Any:
        """What is there goes now, and from now on after each step."""
        self.active = True
        for optimizer in room.optimizers():
            _move(optimizer, optimizer.state, _to_host)
        return self.hooks

    def _before(self, optimizer: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        if not self.active and self.wanted is not None and self.wanted(optimizer):
            self.send_now()
        if not self.active:
            return
        if optimizer not in self._loads:
            self._loads.add(optimizer)
            # What a checkpoint brings lies on the card until the next step otherwise.
            optimizer.register_load_state_dict_post_hook(_send_loaded)
        first, *rest = _parts(optimizer, args, kwargs)
        self._steps[optimizer] = optimizer.param_groups, first, rest
        optimizer.param_groups = first
        _move(optimizer, _parameters(first), _to_card)

    def _after(self, optimizer: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        if optimizer not in self._steps:
            return
        groups, first, rest = self._steps.pop(optimizer)
        # somebody else who had put other groups in their place may have put them back by now
        groups = groups if optimizer.param_groups is first else optimizer.param_groups
        _move(optimizer, _parameters(first), _to_host)
        try:
            for part in rest:
                optimizer.param_groups = part
                _move(optimizer, _parameters(part), _to_card)
                type(optimizer).step.__wrapped__(optimizer)
                _move(optimizer, _parameters(part), _to_host)
        finally:
            optimizer.param_groups = groups
        if not self._told:
            self._told = True
            self.say(
                "applied",
                "%s: optimizer state offloaded to host memory between steps"
                % type(optimizer).__name__,
                id="optimizer_offload",
                equivalence="exact",
            )


def steps_apart(optimizer: Any) -> Any:
    """Whether an optimizer can step part by part: it is one of torch's own that treat each
    parameter by itself.
    """
    kind = type(optimizer)
    return (
        kind.__name__ in BY_PARAMETER
        and kind.__module__.split(".")[:2] == ["torch", "optim"]
        and hasattr(kind.step, "__wrapped__")
    )


def _parts(optimizer: Any, args: Any, kwargs: Any) -> Any:
    """The groups of an optimizer as lists of groups that step one after the other. args: the
    optimizer itself, and a closure, which must be run once; None where somebody passes on that
    there is none.
    """
    closed = any(a is not None for a in (*args[1:], *kwargs.values()))
    parts: List[List[Any]] = [[]]
    size = 0
    for group in optimizer.param_groups if steps_apart(optimizer) and not closed else []:
        for p in group["params"]:
            if size and size + room.size_of(p) > PART:
                parts.append([])
                size = 0
            if not parts[-1] or parts[-1][-1][0] is not group:
                parts[-1].append((group, []))
            parts[-1][-1][1].append(p)
            size += room.size_of(p)
    if len(parts) < 2:
        return [optimizer.param_groups]
    return [[dict(group, params=params) for group, params in part] for part in parts]


def _send_loaded(optimizer: Any) -> None:
    _move(optimizer, optimizer.state, _to_host)


def _parameters(groups: Any) -> Any:
    return [p for group in groups for p in group["params"]]


def _to_card(parameter: torch.Tensor, tensor: torch.Tensor) -> Any:
    if tensor.device == parameter.device:
        return tensor
    return tensor.to(parameter.device, non_blocking=True)


def _to_host(parameter: torch.Tensor, tensor: torch.Tensor) -> Any:
    if tensor.device.type != "cuda":
        return tensor
    there = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return there.copy_(tensor, non_blocking=True)


def _move(optimizer: Any, parameters: Any, where: Any) -> None:
    for p in list(parameters):
        state = optimizer.state.get(p, {})
        for key, value in list(state.items()):
            if isinstance(value, torch.Tensor) and value.numel() * value.element_size() >= 4096:
                state[key] = where(p, value)
