"""Modules of which no few samples can be tried: sharded, compiled, not trained, or without a batch
that can be found. They are run frugally from their looks, and a step shows what need not be.
"""

import weakref
from typing import Any, List, Sequence

import torch

from ..calls import again
from ..calls.modules import name_of
from ..measure.parts import by_sight
from ..remedies import activation_budget, checkpointing
from ..remedies.checkpointing import Part
from . import choices, traits
from .case import Case, Growing, case_of
from .means import ROOM_TO_GROW, Means
from .step import Step

# What makes micro-batches smaller where we do not.
SMALLER = {
    "FSDP": "a smaller batch with gradient accumulation, as --gradient_accumulation_steps",
    "ZeRO": "train_micro_batch_size_per_gpu and gradient_accumulation_steps in DeepSpeed's "
    "configuration, with the model's gradient checkpointing",
}


# torch seeds generators for compiled parts that are checkpointed, one for each that draws.
OTHER_SEEDS = "; the script checkpoints parts itself, and torch seeds what they draw otherwise now"


class Unmeasured:
    """Returns the Case of such a module, and settles it after the first step."""

    def __init__(self, means: Means) -> None:
        self._means = means
        # Blocks that are checkpoint regions of a compiled program.
        self._regions: weakref.WeakSet[Any] = weakref.WeakSet()

    def case(self, module: torch.nn.Module, around: Any, reason: str, twice: bool = False) -> Case:
        """Without a batch to try there is only everything at once: what is saved waits on the host,
        until a step has shown how much of it need not. twice: every call of a part is checkpointed,
        too. So it is where host memory may not do, and after two attempts that ran out. Otherwise
        the second run of a part takes more room than what was saved inside of it, sent back piece
        by piece, and what goes into a part stays on the card.
        """
        away = self._means.most_away(around)
        twice = twice or self._means.factor <= 0.5 or not away or away < around.limit
        may = "checkpointing" in self._means.allowed and not traits.is_compilers_own(module)
        parts: List[Part] = by_sight(module) if twice and may else []
        self._tell_beginning(name_of(module), parts, away, reason)
        choice = choices.Choice(
            "as it is", 0, 0, 1.0 if parts else 0.0, checkpoint=parts, offload=away
        )
        case = case_of(module, choice)
        case.unmeasured = str(reason)
        return case

    def _tell_beginning(self, name: str, parts: Sequence[Part], away: float, reason: str) -> None:
        if parts:
            self._means.say(
                "applied",
                "%s: all %d blocks checkpointed (%s)" % (name, len(parts), reason),
                id="checkpointing",
                equivalence="exact",
                checkpointed=len(parts),
            )
        elif away:
            self._means.say(
                "note",
                "%s: the first step with: what is saved in host memory (%s)" % (name, reason),
                id="activation_offload",
            )
        else:
            self._means.say(
                "declined",
                "%s: no blocks to checkpoint, and %s" % (name, reason),
                id="checkpointing",
            )

    def sharded(self, module: torch.nn.Module, around: Any, by: str) -> Case:
        """Its calls are collective, so nothing is tried and nothing is split: ranks might choose
        otherwise. What every rank sees alike can be done.
        """
        reason = "its parameters are sharded (%s)" % by
        if "micro_batch" in self._means.allowed:
            self._means.say(
                "declined",
                "%s: %s, so its batch is not split here; what does it: %s"
                % (name_of(module), reason, SMALLER[by]),
                id="micro_batch",
            )
        if by != "FSDP":
            return case_of(module, choices.as_it_is())
        return self.case(module, around, reason, twice=True)

    def compiled(self, module: torch.nn.Module, around: Any) -> Case:
        """A compiled module stays as it is, with regions. Blocks that are compiled one by one are
        checkpointed around their calls.
        """
        if self.regions(module):
            return case_of(module, choices.as_it_is())
        return self.case(module, around, "its blocks are compiled one by one", twice=True)

    def regions(self, module: torch.nn.Module) -> bool:
        """Makes a module's blocks checkpoint regions before it is compiled, all of them: nothing
        can be measured without compiling for that. Where there are none, the compiler keeps less by
        itself. Reports whether the module is compiled as a whole.
        """
        parts = by_sight(module) if "checkpointing" in self._means.allowed else []
        if any(activation_budget.is_compiled(part.module) for part in parts):
            return False
        fresh = [part for part in parts if part.module not in self._regions]
        for part in fresh:  # a longer batch comes here again
            checkpointing.before_compiling(part.module)
            self._regions.add(part.module)
        if fresh:
            others = again.checkpoints_itself(module)
            self._means.say(
                "applied",
                "%s: all %d blocks checkpointed, before torch.compile%s"
                % (name_of(module), len(parts), OTHER_SEEDS if others else ""),
                id="checkpointing",
                equivalence="expected" if others else "exact",
                checkpointed=len(parts),
            )
        return True

    def settle(self, cases: Sequence[Case], step: Step) -> float:
        """After the first step: what there is room for stays on the card; gives the bytes. Batches
        of graphs are hardly ever of one size, and after an attempt that ran out nothing stays.
        """
        if not cases:
            return 0
        means = self._means
        before = spare = self._spare(step)
        # Where all of this batch fits, a longer one has run out before, and will come.
        whole = step.peak_of_passes() + sum(step.together[case] * case.sent for case in cases)
        longer = max(1.0, step.around.limit / whole) if means.failed else 1.0
        for case in cases:
            count = step.together[case]  # calls that wait together; all keep as much
            case.settled = True
            stays = min(case.sent, spare / count) if means.factor == 1 else 0
            spare -= count * stays
            case.choice.offload = case.sent - stays
            if case.choice.offload or means.failed:
                beside = max(0, step.peak_of_passes() - step.held_before) / count
                case.growing = Growing(case.sent, stays, beside, longer)
                case.choice.keep = case.growing.keep()
            if case.choice.offload:
                means.say(
                    "applied",
                    "%s: %d %% of what is saved waits in host memory (%s)"
                    % (case.name, 100 * case.choice.offload / case.sent, case.unmeasured),
                    id="activation_offload",
                    equivalence="exact",
                    limit=step.around.limit,
                )
        return before - spare

    def _spare(self, step: Step) -> float:
        """Bytes that the step left over."""
        budget = ROOM_TO_GROW * self._means.budget(step.around.limit)
        # What has been made since, as optimizer state, was not there in the passes that were
        # watched; nor were gradients in the forward pass, if they are there now.
        since = max(0, step.around.held() - step.held_before)
        spare = max(0, budget - step.peak_of_passes() - since - self._means.state_to_come())
        if any(case.candidates for case in step.together):
            spare /= 2  # others want some of it too
        answer: float = spare
        return answer
