"""Loops that learn to learn: what a backward pass saves to be differentiated again."""

from typing import Callable, Iterable, List, Optional, Set

import torch

from ..remedies.derivatives import Derivatives
from .case import Case
from .means import Means
from .search import AGAIN


class Derived:
    """Sends it to host memory where it has no room. waiting: gives the cases of the calls that wait
    for a backward pass.
    """

    def __init__(self, means: Means, waiting: Callable[[], Iterable[Case]]) -> None:
        self._means, self._waiting = means, waiting
        self._told: Set[str] = set()  # names of modules of which it has been said
        self._send: Optional[bool] = None  # whether it is sent away; None: not known yet
        self._derivatives = (
            Derivatives(self._differentiated) if "activation_offload" in means.allowed else None
        )

    def _differentiated(self) -> List[torch.nn.Module]:
        """The modules whose calls wait, where what their backward pass saves is to be sent away."""
        if self._send is False:
            return []
        modules = [case.module() for case in dict.fromkeys(self._waiting())]
        there = [m for m in modules if m is not None]
        if not there:
            return []
        return there if self._means.around(there[0]).is_card else []

    def settle(self, spare: float) -> None:
        """After the first step in which a backward pass was differentiated again. spare: bytes that
        the choices leave.
        """
        sent = self._derivatives.take_sent() if self._derivatives else 0
        if not sent or self._send is not None:
            return
        self._send = sent > spare
        if self._send:
            self._means.say(
                "applied",
                "what backward passes save to be differentiated again waits in host memory",
                id="activation_offload",
                equivalence="exact",
            )

    def tell(self, case: Case) -> None:
        """Where a loop that learns to learn does not fit, this is why."""
        if self._derivatives or case.amplifies != AGAIN or case.name in self._told:
            return
        self._told.add(case.name)
        self._means.say(
            "note",
            "%s: %s: what their backward pass computes is kept for that, and on a CPU no remedy "
            "makes that part smaller" % (case.name, AGAIN),
            id="checkpointing",
        )
