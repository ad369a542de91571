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
from . import holders, models, steps, torch_memory

_TENSOR_NS, _FIRST_NS = (
    8000,
    400000,
)  # what counting takes at first, for each parameter with its gradient and state, and in all


class Account:
    """The parameters and optimizers of this process."""

    __slots__ = (
        "_builds",
        "_cost",
        "_cuda",
        "_loop",
        "_optimizers",
        "_parameters",
        "_purge_at",
        "_told",
        "_torch",
    )

    def __init__(
        self, torch: Any, cuda: torch_memory.Cuda, loop: steps.Loop, builds: models.Builds
    ) -> None:
        self._torch, self._cuda, self._loop, self._builds = torch, cuda, loop, builds
        self._optimizers: Dict[int, weakref.ref[Any]] = {}  # by id
        self._parameters: List[weakref.ref[Any]] = []  # in order of registration
        self._purge_at = 4096
        self._told = False
        self._cost = 0  # what counting took the last time

    def install(self) -> None:
        torch = self._torch
        register = getattr(
            torch.nn.modules.module, "register_module_parameter_registration_hook", None
        )  # since 2.0
        if register is not None:
            register(self._registered)
            torch.nn.modules.module.register_module_module_registration_hook(_part_registered)
        self._loop.at(2, self._after_step)
        self._loop.at(1, process.regroup)
        farewell.before(self._before_end)
        self._loop.command("account", lambda asked: "%d devices" % self.tell())

    def seen(self, optimizer: Any) -> None:
        """Notes an optimizer that has stepped."""
        if id(optimizer) not in self._optimizers:
            key = id(optimizer)
            self._optimizers[key] = weakref.ref(
                optimizer, lambda _: self._optimizers.pop(key, None)
            )

    @guard.hook("parameter registered")
    def _registered(self, module: Any, name: str, parameter: Any) -> None:
        if parameter is None:
            return
        self._builds.registered()
        self._parameters.append(weakref.ref(parameter))
        if len(self._parameters) > self._purge_at:
            self._parameters[:] = [r for r in self._parameters if r() is not None]
            self._purge_at = max(4096, 2 * len(self._parameters))

    def _after_step(self, step: int) -> None:
        """Tells the account at steps 2, 20, 200, 2000, then every 2000, or when it can be afforded:
        what changes it changes early.
        """
        cost = self._cost or _FIRST_NS + _TENSOR_NS * len(self._parameters)
        if not guard.affordable(cost):
            self._loop.at(step + 10, self._after_step)
            return
        began = guard.used()
        self.tell()
        self._cost = guard.used() - began
        self._loop.at(
            (20 if step < 20 else 200 if step < 200 else 2000) if step < 2000 else step + 2000,
            self._after_step,
        )

    def _before_end(self) -> None:
        """The account of a program whose steps were too short or too few to count in."""
        if not self._told and self._loop.step > 0:
            self.tell()

    def tell(self) -> int:
        """Reports the counts, one message a device; returns their number."""
        self._told = True
        counts: Dict[int, List[int]] = {}  # device -> [weights, gradients, optimizer]
        storages: Set[Any] = set()
        for parameter in self.live_parameters():
            self._add(counts, storages, parameter, 0)
            self._add(counts, storages, getattr(parameter, "grad", None), 1)
        for optimizer in self._live_optimizers():
            for state in list(optimizer.state.values()):
                for value in state.values() if isinstance(state, dict) else ():
                    self._add(counts, storages, value, 2)
        ready = self._cuda.ready()
        for device, (weights, gradients, state) in sorted(counts.items()):
            fields = {
                "step": self._loop.step,
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
                ) = self._cuda.reading(device)[:5]
                fields["free"], fields["total"] = self._torch.cuda.mem_get_info(device)
                fields["limit"] = self._limit(device, fields["total"])
            link.send("account", fields)
        return len(counts)

    def _limit(self, device: int, total: int) -> int:
        """Reserved bytes that a memory fraction allows, 0 if there is none or this torch cannot
        say.
        """
        fraction = getattr(self._torch.cuda, "get_per_process_memory_fraction", None)  # since 2.8
        share = fraction(device) if fraction is not None else 1.0
        return int(share * total) if share < 1.0 else 0

    def _live_optimizers(self) -> List[Any]:
        return [
            optimizer
            for optimizer in (r() for r in list(self._optimizers.values()))
            if optimizer is not None
        ]

    def live_parameters(self) -> List[Any]:
        found = [p for p in (r() for r in self._parameters) if p is not None]
        for optimizer in self._live_optimizers():
            for group in optimizer.param_groups:
                found.extend(group["params"])
        return found

    def live_tensors(self) -> List[Any]:
        """Parameters and what optimizers keep for them."""
        found = self.live_parameters()
        for optimizer in self._live_optimizers():
            for state in list(optimizer.state.values()):
                if isinstance(state, dict):
                    found.extend(v for v in state.values() if isinstance(v, self._torch.Tensor))
        return [
            t for t in found if t.device.type in ("cuda", "cpu") and t.layout is self._torch.strided
        ]

    def _add(
        self, counts: Dict[int, List[int]], storages: Set[Any], tensor: Any, column: int
    ) -> None:
        """Adds a tensor's storage once, however many tensors share it."""
        if not isinstance(tensor, self._torch.Tensor) or tensor.device.type not in ("cuda", "cpu"):
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


@guard.hook("part registered")
def _part_registered(module: Any, name: str, part: Any) -> None:
    holders.made(module)
