"""What autograd saves in a program that calls no modules: networks written as functions of plain
tensors, Gaussian processes, factorised matrices, simulations.

There is no call to cut and nothing to run twice, but what is saved can wait in host memory, as that
of a module can. As soon as a module is trained, this stops: then the others know better.
"""

from typing import Any, Callable, Dict, Optional

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ..calls import aside, outermost, refers
from ..memory import room
from .activation_offload import Away

# Code that these transform or compile bears no hooks of ours.
TRANSFORMED = r"torch\.func\b|functorch|\bvmap\(|torch\.compile|CUDAGraph|cuda\.graph\("


class WithoutModules:
    """budget(limit): bytes to plan with; to_come(): of optimizer state."""

    def __init__(
        self,
        say: Callable[..., None],
        limit: Optional[int],
        budget: Callable[[int], float],
        to_come: Callable[[], float],
    ) -> None:
        self.say, self.limit, self.budget, self.to_come = say, limit, budget, to_come
        self._away = _Kept(torch.nn.Module(), ())
        self._around: Any = None
        self._stopped = False
        self._most: Optional[float] = None  # bytes of a step that are sent; None: not known
        # Hooks of a thread: programs train on the one that imports torch.
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)
        if refers.script_says(TRANSFORMED):
            self._stopped = True
            return
        self._hooks.__enter__()
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        self._listener = register_optimizer_step_pre_hook(self._step)
        outermost.when_forgotten(self.stop)

    def stop(self) -> None:
        """A module is trained."""
        if self._stopped:
            return
        self._stopped = True
        self._listener.remove()
        top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
        if top is not None and (top(True) or (None,))[0] == self._pack:
            self._hooks.__exit__(None, None, None)  # else somebody else's are in front of it

    def _pack(self, tensor: torch.Tensor) -> Any:
        if self._around is None and not self._stopped:
            self._begin(tensor)
        return tensor.detach() if self._stopped else self._away.pack(tensor)

    def _unpack(self, packed: Any) -> torch.Tensor:
        return packed if isinstance(packed, torch.Tensor) else self._away.back(packed)

    def _begin(self, tensor: torch.Tensor) -> None:
        around = room.of(tensor.device, self.limit)
        if not around.is_card:
            return
        if refers.script_says(TRANSFORMED):  # it may be another one than at the begin
            self.stop()
            return
        self._around = around
        around.start_peak()

    def _step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer begins: the passes are over. After the first ones what there is room for
        stays on the card.
        """
        sent = self._away.sent
        if self._around is None or not sent and self._most is None:
            return
        if self._most is None:
            spare = self.budget(self._around.limit) - self._around.peak() - self.to_come()
            self._most = max(0, sent - max(0, spare))
            if self._most:
                self.say(
                    "applied",
                    "no module is called: %d %% of what is saved waits in host memory"
                    % (100 * self._most / sent),
                    id="activation_offload",
                    equivalence="exact",
                    limit=self._around.limit,
                )
        self._away.next_step(self._most)


class _Kept(Away):
    """What others hold anyway is known when it is wanted back: it is not sent again."""

    def __init__(self, module: torch.nn.Module, given: Any) -> None:
        super().__init__(module, given)
        self.held: Dict[
            int, StorageWeakRef
        ] = {}  # name of a storage -> a weak reference, so that the name stays its own

    def pack(self, tensor: torch.Tensor) -> Any:
        if aside.has_memory(tensor):
            storage = StorageWeakRef(tensor.untyped_storage())
            if storage.cdata in self.held:
                return tensor.detach()
        return super().pack(tensor)

    def back(self, packed: Any) -> torch.Tensor:
        storage = getattr(getattr(packed, "sent", packed), "storage", None)
        if storage is not None and not storage.expired():
            self.held[storage.cdata] = storage
        return packed.back()

    def next_step(self, quota: float) -> None:
        self.quota, self.sent = quota, 0
        self.held = {name: s for name, s in self.held.items() if not s.expired()}
