"""Optimizer steps without temporary copies of all parameters: by fused kernels, or slice by
slice.
"""

import collections.abc
import functools
import weakref
from typing import Any, Callable, Dict, List, Tuple

import torch

SLICE = 256 << 20  # bytes of parameters that an optimizer's step works on at once


def sliced_optimizer(params: Any, say: Any) -> Any:
    """A step over all parameters at once makes temporary copies of them all. It is run on slices of
    the parameters instead: the same kernels on the same numbers, with the copies of one slice at a
    time. Only torch's own optimizers, which treat each parameter by itself.
    """
    from torch.optim.optimizer import (
        register_optimizer_step_post_hook,
        register_optimizer_step_pre_hook,
    )

    most = params.get("bytes", SLICE)
    whole: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
    told: List[bool] = []

    def before(optimizer: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        if type(optimizer).__name__ not in BY_PARAMETER or type(optimizer).__module__.split(".")[
            :2
        ] != ["torch", "optim"]:
            return
        groups = [part for group in optimizer.param_groups for part in _slices(group, most)]
        if len(groups) > len(optimizer.param_groups):
            whole[optimizer] = optimizer.param_groups
            optimizer.param_groups = groups
            if not told:
                told.append(True)
                say(
                    "applied",
                    "%s: optimizer step in %d slices" % (type(optimizer).__name__, len(groups)),
                    id="optimizer_fused",
                    equivalence="exact",
                )

    def after(optimizer: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        if optimizer in whole:
            optimizer.param_groups = whole.pop(optimizer)

    return [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]


# torch's optimizers that treat each parameter by itself
BY_PARAMETER = {
    "Adam",
    "AdamW",
    "SGD",
    "RMSprop",
    "Adagrad",
    "Adamax",
    "NAdam",
    "RAdam",
    "Adadelta",
    "ASGD",
    "Rprop",
    "SparseAdam",
}


def _slices(group: Any, most: Any) -> Any:
    """A group of parameters as groups with the same settings."""
    if (
        group.get("fused")
        or group.get("foreach") is False
        or sum(p.numel() * p.element_size() for p in group["params"]) <= most
    ):
        return [group]
    parts: List[List[Any]] = [[]]
    size = 0
    for p in group["params"]:
        size += p.numel() * p.element_size()
        if size > most and parts[-1]:
            parts.append([])
            size = p.numel() * p.element_size()
        parts[-1].append(p)
    return [dict(group, params=part) for part in parts]


def fused_optimizer(params: Any, say: Any) -> Any:
    """The fused kernels need no temporary copy of the parameters. Optimizers that say how they want
    it are left alone.
    """
    if params.get("slices"):
        return sliced_optimizer(params, say)
    told: List[Any] = []
    for name in ("Adam", "AdamW", "SGD"):
        kind = getattr(torch.optim, name)
        original = kind.__init__

        @functools.wraps(original)
        def __init__(
            self: Any,
            parameters: Any,
            *args: Any,
            original: Callable[..., Any] = original,
            name: str = name,
            **kwargs: Any,
        ) -> None:
            parameters = _held(parameters)
            if not {"fused", "foreach", "differentiable", "capturable"} & set(kwargs) and _on_cuda(
                parameters
            ):
                kwargs["fused"] = True
                if not told:
                    told.append(True)
                    say(
                        "applied",
                        name + " with fused kernels",
                        id="optimizer_fused",
                        equivalence="exact",
                    )
            original(self, parameters, *args, **kwargs)

        kind.__init__ = __init__


def _held(parameters: Any) -> Any:
    """What an optimizer is given, so that it can be read twice: `model.parameters()` is empty after
    it was looked at.
    """
    parameters = (
        list(parameters) if isinstance(parameters, collections.abc.Iterator) else parameters
    )
    for group in parameters:
        if isinstance(group, dict) and isinstance(group.get("params"), collections.abc.Iterator):
            group["params"] = list(group["params"])  # in the caller's dict, as torch does
    return parameters


def _on_cuda(parameters: Any) -> Any:
    flat = [p for g in parameters for p in (g["params"] if isinstance(g, dict) else [g])]
    return bool(flat) and all(
        isinstance(p, torch.Tensor) and p.is_cuda and p.is_floating_point() for p in flat
    )
