"""Small remedies: gradients set to None, the cache emptied at high water, fused optimizers,
thriftier data loaders.
"""

import collections.abc
import functools
import weakref

import torch


def set_to_none(params, say):
    for owner in (torch.optim.Optimizer, torch.nn.Module):
        original = owner.zero_grad

        @functools.wraps(original)
        def zero_grad(self, set_to_none=True, original=original):
            return original(self, set_to_none=True)

        owner.zero_grad = zero_grad
    say("applied", "zero_grad sets gradients to None", id="set_to_none", equivalence="exact")


def empty_cache(params, say):
    """After a step, when the allocator holds much that nobody uses and the wall is near."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    def look(optimizer, args, kwargs):
        if not torch.cuda.is_initialized():
            return
        free, total = torch.cuda.mem_get_info()
        reserved, allocated = torch.cuda.memory_reserved(), torch.cuda.memory_allocated()
        if reserved - allocated > 0.2 * (reserved + free) and free < 0.1 * (reserved + free):
            torch.cuda.empty_cache()

    register_optimizer_step_post_hook(look)
    say(
        "applied",
        "the cache is emptied after a step when it is what is in the way",
        id="empty_cache",
        equivalence="exact",
    )


SLICE = 256 << 20  # bytes of parameters that an optimizer's step works on at once


def sliced_optimizer(params, say):
    """A step over all parameters at once makes temporary copies of them all. It is run on slices of
    the parameters instead: the same kernels on the same numbers, with the copies of one slice at a
    time. Only torch's own optimizers, which treat each parameter by itself.
    """
    from torch.optim.optimizer import (
        register_optimizer_step_post_hook,
        register_optimizer_step_pre_hook,
    )

    most, whole, told = params.get("bytes", SLICE), weakref.WeakKeyDictionary(), []

    def before(optimizer, args, kwargs):
        if type(optimizer).__name__ not in _BY_PARAMETER or type(optimizer).__module__.split(".")[
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
                    "%s: its step in %d slices" % (type(optimizer).__name__, len(groups)),
                    id="optimizer_fused",
                    equivalence="exact",
                )

    def after(optimizer, args, kwargs):
        if optimizer in whole:
            optimizer.param_groups = whole.pop(optimizer)

    return [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]


_BY_PARAMETER = {
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
}


def _slices(group, most):
    """A group of parameters as groups with the same settings."""
    if (
        group.get("fused")
        or group.get("foreach") is False
        or sum(p.numel() * p.element_size() for p in group["params"]) <= most
    ):
        return [group]
    parts, size = [[]], 0
    for p in group["params"]:
        size += p.numel() * p.element_size()
        if size > most and parts[-1]:
            parts.append([])
            size = p.numel() * p.element_size()
        parts[-1].append(p)
    return [dict(group, params=part) for part in parts]


def fused_optimizer(params, say):
    """The fused kernels need no temporary copy of the parameters. Optimizers that say how they want
    it are left alone.
    """
    if params.get("slices"):
        return sliced_optimizer(params, say)
    told = []
    for name in ("Adam", "AdamW", "SGD"):
        kind = getattr(torch.optim, name)
        original = kind.__init__

        @functools.wraps(original)
        def __init__(self, parameters, *args, original=original, name=name, **kwargs):
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


def _held(parameters):
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


def _on_cuda(parameters):
    flat = [p for g in parameters for p in (g["params"] if isinstance(g, dict) else [g])]
    return bool(flat) and all(
        isinstance(p, torch.Tensor) and p.is_cuda and p.is_floating_point() for p in flat
    )


def data_loader(changes, id, words, equivalence):
    """A remedy that changes how DataLoaders are made. changes(kwargs) edits the arguments and says
    whether it did.
    """

    def install(params, say):
        from torch.utils.data import DataLoader

        original, told = DataLoader.__init__, []

        @functools.wraps(original)
        def __init__(self, dataset, *args, **kwargs):
            if changes(kwargs, params) and not told:
                told.append(True)
                say(
                    "applied",
                    words % params if "%" in words else words,
                    id=id,
                    equivalence=equivalence,
                )
            original(self, dataset, *args, **kwargs)

        DataLoader.__init__ = __init__

    return install


def fewer_workers(kwargs, params):
    most = int(params.get("workers", 0))
    if kwargs.get("num_workers", 0) <= most:
        return False
    kwargs["num_workers"] = most
    if most == 0:
        for name in ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout"):
            kwargs.pop(name, None)
    elif kwargs.get("prefetch_factor"):
        kwargs["prefetch_factor"] = min(2, kwargs["prefetch_factor"])
    return True


def no_pinning(kwargs, params):
    return bool(kwargs.pop("pin_memory", False))
