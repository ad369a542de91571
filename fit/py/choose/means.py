"""What may be used: the remedies that are allowed, the room to plan with, host memory for what can
wait there.
"""

import gc
import math
import weakref
from typing import Any, Callable, Collection, List, Optional

import torch

from ..memory import room
from ..memory.promises import promises
from ..remedies import optimizer_offload
from .choices import TRAVEL, Choice

Say = Callable[..., None]

ROOM_TO_GROW = 0.96  # share of the budget where batches differ, for one that is larger by less
BELOW = 0.97  # times what has failed that is tried at the most


class Means:
    """allowed: ids of remedies; limit: bytes, if the caller knows a lower wall; failed: the whole
    batch is known not to fit; later: it ran out when steps had been done already; factor: share of
    the room to plan with, lowered after a plan that was too bold. Whoever chooses is handed the
    same Means, because optimizer state that one of them sends away makes room for all.
    """

    def __init__(
        self,
        say: Say,
        allowed: Collection[str],
        limit: Optional[int] = None,
        failed: bool = False,
        factor: float = 1.0,
        later: bool = False,
    ) -> None:
        self.say, self.allowed, self.limit = say, allowed, limit
        self.failed, self.factor, self.later = failed, factor, later
        self.state = (
            optimizer_offload.StateAway(say, self._state_does_not_fit)
            if "optimizer_offload" in allowed
            else None
        )
        self._uncut: weakref.WeakSet[Any] = weakref.WeakSet()
        self.outside = 0.0  # bytes that are saved between calls and were not there when watched

    # --- remedies

    def may_cut(self, module: torch.nn.Module) -> bool:
        """Whether its batch may be split, as far as is known."""
        return "micro_batch" in self.allowed and module not in self._uncut

    def cannot_cut(self, module: torch.nn.Module) -> None:
        """It showed in a run that its batch cannot be split."""
        self._uncut.add(module)

    # --- room

    def around(self, module: torch.nn.Module) -> Any:
        """The room of the device that a module is on."""
        return room.of(next(module.parameters()).device, self.limit)

    def budget(self, limit: float) -> float:
        """Bytes to plan with: some are left for fragmentation and for what nobody has foreseen."""
        return self.factor * (
            limit - max((1 - room.SAFETY) * limit, min(room.SCATTERED, limit / 10))
        )

    def free(self, around: Any, held: float) -> float:
        """Bytes for the calls themselves, beside what is held and optimizer state to come."""
        return self.budget(around.limit) - held - self.state_to_come()

    def below(self, now: float, wall: float, limit: float) -> float:
        """What a choice may be predicted to need so that a request does not fail again that failed
        with wall bytes, while choices were predicted to need so many.
        """
        return now - (max(wall, limit) - self.budget(limit))

    # --- host memory

    def may_offload(self, around: Any) -> bool:
        return self.most_away(around) > 0

    def most_away(self, around: Any) -> float:
        """Bytes that may wait on the host: a share of what is free there and not promised to
        others, because they want some of it too, and pinned memory cannot be swapped out.
        """
        if "activation_offload" not in self.allowed or not around.is_card:
            return 0
        answer: float = room.HOST_SHARE * max(0, room.host_free() - promises.of_others())
        return answer

    # --- optimizer state

    def state_to_come(self) -> float:
        """Bytes of optimizer state that will be there while activations are."""
        return 0 if self.state is not None and self.state.active else room.state_to_come()

    def send_state_away(self, around: Any) -> bool:
        """Optimizer state waits on the host from now on, where that may be; returns whether it has
        just been sent there.
        """
        if self.state is None or self.state.active or not around.is_card:
            return False
        self.state.send_now()
        return True

    def is_equal_without_state(
        self, candidates: List[List[Choice]], free: float, matters: object
    ) -> bool:
        """Whether what is equal to the bit fits only with optimizer state in host memory, where
        that matters: in a training that amplifies rounding, or where pieces differ by more than
        rounding; and is no slower than what fits now, by the price of rounding. candidates: of each
        call that is looked at.
        """
        if not matters or self.state is None or self.state.active:
            return False
        away = room.state() + self.state_to_come()
        least_equal = sum(min(c.needs for c in some if c.bitwise) for some in candidates)
        if not free < least_equal <= free + away:
            return False
        equal = sum(
            min(c.seconds for c in some if c.bitwise and c.needs <= free + away)
            for some in candidates
        )
        now = sum(
            min([c.price for c in some if c.needs <= free], default=math.inf) for some in candidates
        )
        return not now or equal + 2 * away / TRAVEL <= now

    def travels(self) -> float:
        """Seconds of a step in which optimizer state comes and goes."""
        away = self.state is not None and self.state.active
        return 2 * (room.state() + room.state_to_come()) / TRAVEL if away else 0.0

    def _state_does_not_fit(self, optimizer: Any) -> bool:
        """Whether the state that an optimizer is about to make has no room beside what is held now,
        with as much as its largest gradient to work with. Gradients of sparse tables are known only
        when they are there.
        """
        coming = room.state_of(optimizer)
        gradients = [
            p.grad
            for group in optimizer.param_groups
            for p in group["params"]
            if p.grad is not None and p.is_cuda
        ]
        if not coming or not gradients:
            return False
        around = room.of(gradients[0].device, self.limit)
        work = 2 * max(room.gradient_size(g) for g in gradients)
        answer: bool = around.held() + coming + work > around.limit
        return answer


def make_room() -> None:
    """After something ran out and was caught: what its frames held is let go."""
    gc.collect()
    torch.cuda.empty_cache()
