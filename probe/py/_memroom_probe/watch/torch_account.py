"""What a process's device memory is made of: weights, gradients and optimizer state, counted on the
live objects.

Optimizers are known from their steps, parameters outside them (frozen ones) from torch's hook on
their registration. Only weak references are kept. Counting walks all parameters, so it is done
after the second step and then seldom, and where steps are so short that it cannot be afforded, when
the program ends.
"""

import weakref
from typing import Any, Dict, List, Set

from .. import farewell, guard, link, process
from . import holders, models, steps

_torch: Any = None
_optimizers: Dict[int, "weakref.ref[Any]"] = {}  # id -> weak reference
_parameters: List["weakref.ref[Any]"] = []  # weak references, in order of registration
_purge_at = 4096
_told = False
_TENSOR_NS, _FIRST_NS = (
    8000,
    400000,
)  # what counting takes at first, for each parameter with its gradient and state, and in all
_cost = 0  # what it took the last time


def install(torch: Any) -> None:
    global _torch
    _torch = torch
    register = getattr(
        torch.nn.modules.module, "register_module_parameter_registration_hook", None
    )  # since 2.0
    if register is not None:
        register(_registered)
        torch.nn.modules.module.register_module_module_registration_hook(_part_registered)
    steps.at(2, _after_step)
    steps.at(1, process.regroup)
    farewell.before(_before_end)
    steps.command("account", lambda asked: "%d devices" % tell())


def seen(optimizer: Any) -> None:
    """Notes an optimizer that has stepped."""
    if id(optimizer) not in _optimizers:
        key = id(optimizer)
        _optimizers[key] = weakref.ref(optimizer, lambda _: _optimizers.pop(key, None))


@guard.hook("part registered")
def _part_registered(module: Any, name: str, part: Any) -> None:
    holders.made(module)


@guard.hook("parameter registered")
def _registered(module: Any, name: str, parameter: Any) -> None:
    global _purge_at
    if parameter is None:
        return
    models.registered()
    _parameters.append(weakref.ref(parameter))
    if len(_parameters) > _purge_at:
        _parameters[:] = [r for r in _parameters if r() is not None]
        _purge_at = max(4096, 2 * len(_parameters))


def _after_step(step: int) -> None:
    """Tells the account at steps 2, 20, 200, 2000, then every 2000, or when it can be afforded:
    what changes it changes early.
    """
    global _cost
    cost = _cost or _FIRST_NS + _TENSOR_NS * len(_parameters)
    if not guard.affordable(cost):
        steps.at(step + 10, _after_step)
        return
    began = guard.used()
    tell()
    _cost = guard.used() - began
    steps.at(
        (20 if step < 20 else 200 if step < 200 else 2000) if step < 2000 else step + 2000,
        _after_step,
    )


def _before_end() -> None:
    """The account of a program whose steps were too short or too few to count in."""
    if not _told and steps.step > 0:
        tell()


def tell() -> int:
    """Counts and tells, one message a device; gives their number."""
    global _told
    from . import of_torch

    _told = True
    counts: Dict[int, List[int]] = {}  # device -> [weights, gradients, optimizer]
    storages: Set[Any] = set()
    for parameter in live_parameters():
        _add(counts, storages, parameter, 0)
        _add(counts, storages, getattr(parameter, "grad", None), 1)
    for optimizer in _live_optimizers():
        for state in list(optimizer.state.values()):
            for value in state.values() if isinstance(state, dict) else ():
                _add(counts, storages, value, 2)
    ready = of_torch.cuda_ready()
    for device, (weights, gradients, state) in sorted(counts.items()):
        fields = {
            "step": steps.step,
            "device": device,
            "weights": weights,
            "gradients": gradients,
            "optimizer": state,
        }
        if device >= 0 and ready:
            (
                _,
                fields["allocated"],
                fields["reserved"],
                fields["peak_allocated"],
                fields["inactive_split"],
            ) = of_torch.reading(device)[:5]
            fields["free"], fields["total"] = _torch.cuda.mem_get_info(device)
            fields["limit"] = _limit(device, fields["total"])
        link.send("account", fields)
    return len(counts)


def _limit(device: int, total: int) -> int:
    """Reserved bytes that a memory fraction allows, 0 if there is none or this torch cannot say."""
    fraction = getattr(_torch.cuda, "get_per_process_memory_fraction", None)  # since 2.8
    share = fraction(device) if fraction is not None else 1.0
    return int(share * total) if share < 1.0 else 0


def _live_optimizers() -> List[Any]:
    return [
        optimizer
        for optimizer in (r() for r in list(_optimizers.values()))
        if optimizer is not None
    ]


def live_parameters() -> List[Any]:
    found = [p for p in (r() for r in _parameters) if p is not None]
    for optimizer in _live_optimizers():
        for group in optimizer.param_groups:
            found.extend(group["params"])
    return found


def live_tensors() -> List[Any]:
    """Parameters and what optimizers keep for them."""
    found = live_parameters()
    for optimizer in _live_optimizers():
        for state in list(optimizer.state.values()):
            if isinstance(state, dict):
                found.extend(v for v in state.values() if isinstance(v, _torch.Tensor))
    return [t for t in found if t.device.type in ("cuda", "cpu") and t.layout is _torch.strided]


def _add(counts: Dict[int, List[int]], storages: Set[Any], tensor: Any, column: int) -> None:
    """Adds a tensor's storage once, however many tensors share it."""
    if not isinstance(tensor, _torch.Tensor) or tensor.device.type not in ("cuda", "cpu"):
        return
    try:
        storage = (
            tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()
        )
        key, size = (tensor.device, storage.data_ptr()), storage.nbytes()
    except Exception:  # sparse, meta, functional and other tensors without a storage
        return
    if size == 0 or key in storages:
        return
    storages.add(key)
    device = tensor.device.index if tensor.device.type == "cuda" else -1
    counts.setdefault(device, [0, 0, 0])[column] += size
