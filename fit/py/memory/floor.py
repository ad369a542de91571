"""The least that training needs, whatever is done about activations: weights, gradients, optimizer
state.

Told when memory runs out and when the first training call is looked at, so that a job that can
never fit ends with the figure instead of with another try.
"""

import dataclasses
import sys
import types
from typing import Any, Callable, Optional

import torch

from ... import made
from . import room

# Why results may be rounded otherwise although every remedy is equal to the bit.
DID_WITHOUT = "a library did without the work space that it wanted and took another algorithm"


@dataclasses.dataclass(frozen=True)
class Floor:
    """Bytes that stay on a device while an optimizer steps."""

    weights: int
    gradients: int
    state: int

    @property
    def bytes(self) -> int:
        return self.weights + self.gradients + self.state

    def words(self) -> Any:
        parts = [
            ("weights", self.weights),
            ("gradients", self.gradients),
            ("optimizer state", self.state),
        ]
        return ", ".join("%s %s" % (name, room.words(count)) for name, count in parts if count)


def of(device: Any, moving: Any = None) -> Any:
    """The Floor of what this process trains on the device. moving: a module on its way there."""
    parameters = {
        id(p): p
        for m in made.modules.live()
        for p in _own(m)
        if p is not None and p.device == device
    }
    if moving is not None:
        parameters.update((id(p), p) for p in list(moving.parameters()) + list(moving.buffers()))
    trains = bool(room.optimizers()) or any(
        p.grad is not None for p in parameters.values() if p.is_leaf
    )
    learnt = (
        [p for p in parameters.values() if isinstance(p, torch.nn.Parameter) and p.requires_grad]
        if trains
        else []
    )
    if any(getattr(p, "_post_accumulate_grad_hooks", None) for p in learnt):
        learnt = []  # a loop that steps inside of the backward pass never holds all gradients
    return Floor(
        sum(room.size_of(p) for p in parameters.values()),
        sum(room.size_of(p) for p in learnt),
        room.state() + room.state_to_come(),
    )


def _own(module: torch.nn.Module) -> Any:
    """The parameters and buffers that a module itself holds; none where it is still being made."""
    return [p for kind in ("_parameters", "_buffers") for p in vars(module).get(kind, {}).values()]


class Teller:
    """Says once that nothing can help, where that is so. waits: whether the state of an optimizer
    can wait elsewhere, of which a part at a time is needed.
    """

    def __init__(
        self, say: Callable[..., Any], limit: Any = None, waits: Any = lambda optimizer: False
    ) -> None:
        self.say, self.limit, self.told, self.waits = say, limit, False, waits
        self.rounding = ""  # by how much that matters, in words, where it is known
        self.trying = False  # what runs out now does so in a trial of ours
        self._missed = 0  # bytes of the largest request that failed outside of one
        self._wall = 0  # bytes that were there with a failed request, since somebody asked
        self._went_on = False

    def went_on(self) -> None:
        """Training goes on. If something had run out, somebody did without it."""
        if self._missed and not self._went_on:
            self._went_on = True
            self.say(
                "note",
                "a request for %s failed and training went on. Where a library did without that "
                "work space, it took another algorithm: results are then equal up to rounding"
                % room.words(self._missed),
                id="micro_batch",
                amplifies=DID_WITHOUT + self.rounding,
            )

    def forget_missed(self) -> None:
        """What ran out was caught by us."""
        self._missed = self._wall = 0

    def take_wall(self) -> Any:
        """Bytes that would have been needed where a request failed and training went on; 0: none
        has failed since this was asked last.
        """
        wall, self._wall = self._wall, 0
        return wall

    def look(self, device: Any, moving: Any = None) -> None:
        if self.told:
            return
        floor, limit = of(device, moving), room.of(device, self.limit).limit
        if all(self.waits(optimizer) for optimizer in room.optimizers()):
            floor = dataclasses.replace(floor, state=0)
        if floor.bytes > limit:
            self.told = True
            self.say(
                "note",
                (
                    "cannot fit: needs at least %s, %s are there: %s stay whatever is done "
                    "about activations"
                )
                % (room.words(floor.bytes), room.words(limit), floor.words()),
                id="cannot_fit",
                needs=floor.bytes,
                limit=limit,
            )

    def when_out(self) -> None:
        """Looks when the card's allocator gives up. Attaching would start CUDA, so it waits until
        somebody else does.
        """
        attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
        if attach is not None and torch.version.cuda:
            torch.cuda._lazy_call(lambda: attach(self._ran_out))

    def _ran_out(self, device: Any, requested: Any, total: Any, free: Any) -> None:
        try:
            if not self.trying:
                self._missed = max(self._missed, requested)
                self._wall = max(self._wall, torch.cuda.memory_allocated(device) + requested)
            self.look(torch.device("cuda", device), _on_its_way())
        except Exception:  # the exception that is about to be raised must be the program's own
            pass


def _on_its_way() -> Any:
    """The module whose parameters are being moved in this very moment, or None."""
    found = None
    frame: Optional[types.FrameType] = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "_apply" and isinstance(
            frame.f_locals.get("self"), torch.nn.Module
        ):
            found = frame.f_locals["self"]
        frame = frame.f_back
    return found
