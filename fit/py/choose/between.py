"""Whether what is saved between the calls of modules is what runs out: a loss that a script
computes itself may need more than the model.
"""

import contextlib
from typing import Any, ContextManager, Optional

from ..memory.room import is_one_of_several_ranks, words
from ..remedies.without_modules import WithoutModules
from .case import Case
from .means import Means
from .step import Step

# Share of the limit up to which a call as it is, beside all that is held, does not explain why a
# training ran out.
EXPLAINS = 0.7


class Between:
    """In the first step all that is saved between calls is sent to host memory where the first call
    does not explain what ran out. After it, it is known whether that may stay on the card.
    """

    def __init__(self, means: Means) -> None:
        self._means = means
        self._hooks: Optional[WithoutModules] = None
        self._asked = self._told = False
        if "activation_offload" in means.allowed:
            self._hooks = WithoutModules(means.say, means.limit, means.budget, means.state_to_come)

    def begins(self, case: Case, around: Any) -> None:
        """The first training call of a module is about to be made."""
        if self._hooks is None or self._asked:
            return
        self._asked = True
        if self._is_unexplained(case, around):
            self._hooks.go_on_beside_modules(around)
        else:
            self._stop()

    def _is_unexplained(self, case: Case, around: Any) -> bool:
        means = self._means
        if not means.failed or not around.is_card or is_one_of_several_ranks():
            return False
        if not case.candidates:
            return False
        needed = case.candidates[0].needs + around.held() + means.state_to_come()
        return means.factor < 1 or needed <= EXPLAINS * around.limit

    def step_is_over(self, step: Step) -> None:
        """It stops where all of it may stay on the card beside what the step took, or must because
        of what the script called. Otherwise as much is sent from now on as has no room, and what
        ran out is known not to be the model's call.
        """
        if self._hooks is None or not self._asked or step.around is None:
            return
        sent, limit = self._hooks.take_sent(), step.around.limit
        lacks = step.peak_of_passes() + sent + self._means.state_to_come()
        lacks -= self._means.budget(limit)
        if self._hooks.stopped or lacks <= 0 and not self._told:
            self._means.outside += sent
            self._stop()
        elif not self._told:
            self._told, self._means.failed = True, False
            self._means.outside = self._hooks.stays(sent, lacks)
            self._means.say(
                "applied",
                "between the calls of modules: %s of what is saved waits in host memory"
                % words(sent - self._means.outside),
                id="activation_offload",
                equivalence="exact",
                limit=limit,
            )

    def around_module(self) -> ContextManager[None]:
        """Around a training call, which is looked after by itself."""
        hooks = self._hooks
        return hooks.around_module() if hooks is not None else contextlib.nullcontext()

    def _stop(self) -> None:
        assert self._hooks is not None
        self._hooks.stop()
        self._hooks = None
