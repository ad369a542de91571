"""Runs a training call with what was chosen for it, and again with less where it runs out."""

import contextlib
import dataclasses
from typing import Any, Callable, ContextManager, Dict, List, Optional, Tuple

import torch

from ..batch.inputs import is_tensor
from ..calls import again, tree
from ..measure.run import Before
from ..memory import room
from ..memory.floor import Teller
from ..remedies import activation_budget, activation_offload, checkpointing
from ..remedies.microbatch import MicroBatch
from . import traits
from .case import Case
from .cases import Cases, gradients_of
from .choices import Choice
from .means import Means, make_room
from .settle import Settling

WATCHED = 3  # calls with a choice that can be made again if they run out
COPIED = 64 << 20  # bytes of a module's buffers that are copied for that
LESS = 0.8  # times what ran out that is tried then at the most


class Running:
    """Where a call is made again with less, the step is watched by settling."""

    def __init__(
        self, means: Means, cases: Cases, micro: MicroBatch, teller: Teller, settling: Settling
    ) -> None:
        self._means, self._cases, self._micro = means, cases, micro
        self._teller, self._settling = teller, settling

    def run(
        self,
        module: torch.nn.Module,
        call: Callable[..., Any],
        args: Tuple[Any, ...],
        kwargs: Dict[str, Any],
        case: Case,
    ) -> Any:
        """The call's result. Raises Cannot where pieces turn out not to be possible."""
        choice = case.choice
        if choice.share is not None:
            case.cut = True
            return self._micro.run(module, call, args, kwargs)
        if choice.whole:
            return checkpointing.checkpointed(call, (args, kwargs), [module])
        if choice.offload or choice.keep is not None:
            most = float("inf") if choice.all_away else choice.offload
            away = activation_offload.Away(module, (args, kwargs), most)
            away.keep = away.keep if choice.keep is None else choice.keep
            with away:
                result = call(*args, **kwargs)
            away.gave(result)
            case.sent = away.sent
            if case.growing is not None:
                case.growing.saw(away.sent + away.stayed)
                choice.keep = case.growing.keep()
            return result
        return call(*args, **kwargs)

    def run_guarded(
        self,
        module: torch.nn.Module,
        call: Callable[..., Any],
        args: Tuple[Any, ...],
        kwargs: Dict[str, Any],
        case: Case,
        larger: bool,
    ) -> Any:
        """The first calls with a choice, and those with a batch that is larger than any before, may
        run out. In a forward pass nothing is lost by that: the call is made again with less. Other
        ranks wait for collective calls, and are not made to wait for a second one.
        """
        case.proven += 1
        if not larger and case.proven > WATCHED or not self._may_run_again(module, case):
            return self.run(module, call, args, kwargs, case)
        before, given = Before(module, COPIED), _versions(args, kwargs)
        while True:
            try:
                with _learning(module, before):
                    return self.run(module, call, args, kwargs, case)
            except torch.cuda.OutOfMemoryError as why:
                ran_out = why.with_traceback(None)  # its frames hold what is in the way
                self._teller.forget_missed()
            if _versions(args, kwargs) != given or not before.can_be_put_back():
                raise ran_out
            before.put_back()
            make_room()
            if not self._take_less(module, case):
                raise ran_out
            before = Before(module, COPIED)

    def _may_run_again(self, module: torch.nn.Module, case: Case) -> bool:
        if room.is_one_of_several_ranks():
            return False
        known = bool(case.candidates or case.unmeasured)
        around = self._means.around(module)
        if not known or not around.is_card or activation_budget.is_compiled(module):
            return False
        return not any(again.sees_calls(m) for m in module.modules())

    def _take_less(self, module: torch.nn.Module, case: Case) -> bool:
        """Chooses what needs clearly less than what ran out. Returns whether anything does."""
        around = self._means.around(module)
        if room.state() and self._means.send_state_away(around):
            return True
        found = _smaller(case) if case.candidates else _all_away(case)
        if found is None:
            return False
        self._cases.use({case: found})
        self._settling.step.observe(around, gradients_of([case]))
        self._means.say(
            "note",
            "%s: memory ran out in its forward pass; it ran again with: %s"
            % (case.name, found.words),
            id=(found.remedies() or ["micro_batch"])[0],
        )
        return True


def _smaller(case: Case) -> Optional[Choice]:
    """What has run out is not taken again, nor what needs nearly as much, unless steps were done
    with it before.
    """
    needs, most = case.choice.needs, LESS * case.choice.needs

    def clearly(choices: List[Choice]) -> List[Choice]:
        ran = case.ran
        return [c for c in choices if c.needs <= (needs - 1 if c in ran else most)]

    smaller = clearly(case.candidates[1:]) or clearly(case.dear)
    if not smaller:
        return None
    case.candidates = [case.candidates[0], *smaller]
    matters = case.amplifies or any(c.coarse for c in smaller)
    equal = [c for c in smaller if c.bitwise] if matters else []
    return min(equal or smaller, key=lambda c: c.price)


def _all_away(case: Case) -> Optional[Choice]:
    """For a call of which nothing is known beforehand: all that is saved in host memory, where some
    of it stays; else None.
    """
    choice = case.choice
    if not (choice.offload or choice.keep) or choice.all_away or not case.settled:
        return None
    return dataclasses.replace(choice, offload=choice.offload or case.sent, all_away=True)


def _versions(args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> List[int]:
    """Of the tensors that a call is given: whether it has changed one in place."""
    leaves = [t for t in tree.flatten((args, kwargs))[0] if is_tensor(t)]
    return [t._version for t in leaves if not t.is_inference()]


def _learning(module: torch.nn.Module, before: Before) -> ContextManager[Any]:
    """Which parameters a call changes, as that of a momentum encoder does, must be known to put
    them back. Compiled parts are not run for that: they would be compiled otherwise.
    """
    if any(traits.is_compilers_own(m) for m in module.modules()):
        return contextlib.nullcontext()
    answer: ContextManager[Any] = before.learning()
    return answer
