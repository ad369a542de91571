"""What PyTorch's allocator of device memory says, read where the program has initialised CUDA."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import steps

if TYPE_CHECKING:
    from torch.optim import Optimizer


class Cuda:
    """The CUDA devices of this process."""

    __slots__ = ("_torch",)

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def ready(self) -> bool:
        """Whether the program has initialised CUDA, in this process and not only in its parent."""
        forked = getattr(self._torch._C, "_cuda_isInBadFork", lambda: False)
        return self._torch.cuda.is_initialized() and not forked()

    def reading(self, device: int) -> steps.Reading:
        """The figures of one device."""
        stats = self._torch._C._cuda_memoryStats(device)
        allocated = stats["allocated_bytes"]["all"]
        return (
            device,
            allocated["current"],
            stats["reserved_bytes"]["all"]["current"],
            allocated["peak"],
            stats["inactive_split_bytes"]["all"]["current"],
            stats["num_alloc_retries"],
            stats["num_ooms"],
        )

    def current(self) -> steps.Reading:
        """The figures of the current device, or zeros without CUDA."""
        return self.reading(self._torch.cuda.current_device()) if self.ready() else steps.NOTHING

    def devices_of(self, optimizer: Optimizer) -> tuple[int, ...]:
        """The CUDA devices an optimizer's parameters are on, or the current one if they are in host
        memory; none without CUDA.
        """
        if not self.ready():
            return ()
        on = {
            p.device.index
            for group in optimizer.param_groups
            for p in group["params"]
            if p.device.type == "cuda"
        }
        return tuple(sorted(on)) or (self._torch.cuda.current_device(),)
