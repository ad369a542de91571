"""Chooses how much of which remedy each module needs to fit, and applies it.

What a row costs is measured on a few rows (look), what there is for it is read (means), what could
be done is listed (choices). The first step is run frugally, because a loop may call several
modules, or one several times, before its one backward pass, and nobody knows before it has been
seen. Then the cheapest choices that fit together are taken (settle), with what the first step
really needed: at once, rather than creeping up on it over several attempts.
"""

from typing import TYPE_CHECKING, Any, Callable, Collection, Dict, Optional, Tuple

import torch

from ..batch.inputs import Cannot, any_inputs
from ..calls.modules import worth_it
from ..memory.floor import Teller
from ..memory.room import is_one_of_several_ranks
from ..remedies import microbatch
from . import choices, sizes, telling, traits
from .between import Between
from .case import Case, Size, case_of
from .cases import Cases, gradients_of
from .derived import Derived
from .evaluation import Evaluation
from .look import Look
from .means import Means, Say
from .running import Running
from .search import least
from .settle import Settling
from .unmeasured import Unmeasured

if TYPE_CHECKING:  # it is loaded where it was asked for
    from ..measure.worst import Worst

LARGER = 1.05  # times the batch a choice was made for, from which it is made anew


class Governor:
    """The handler of outermost calls. allowed, limit, failed, factor, later: as of Means; teller:
    says when not even weights, gradients and optimizer state fit; untried: modules must not be run
    on parts of their batches; worst: knows the longest batch, where that was asked for; budget:
    compiled programs are made smaller where they are compiled.
    """

    def __init__(
        self,
        say: Say,
        allowed: Collection[str],
        limit: Optional[int] = None,
        failed: bool = False,
        factor: float = 1.0,
        teller: Optional[Teller] = None,
        untried: bool = False,
        worst: Optional["Worst"] = None,
        budget: bool = False,
        later: bool = False,
    ) -> None:
        self._worst, self._teller = worst, teller or Teller(say, limit)
        teller = self._teller
        means = self.means = Means(say, allowed, limit, failed, factor, later)
        cases = self.cases = Cases()
        micro = self._micro = microbatch.MicroBatch(
            say, lambda module, inputs, plan: cases.trained[module].choice.share
        )
        self._unmeasured = Unmeasured(means)
        self._derived = Derived(means, lambda: [m.case for m in self.settling.step.marks])
        self.settling = Settling(means, cases, teller, self._unmeasured, self._derived, worst)
        self.look = Look(means, cases, micro, teller, self._unmeasured, untried, compiler=budget)
        self.running = Running(means, cases, micro, teller, self.settling)
        self._evaluation = Evaluation(means, cases, micro, teller)
        self._between = Between(means)

    def __call__(
        self,
        module: torch.nn.Module,
        call: Callable[..., Any],
        args: Tuple[Any, ...],
        kwargs: Dict[str, Any],
    ) -> Any:
        if not worth_it(module):
            return call(*args, **kwargs)
        if not torch.is_grad_enabled():
            self.look.before_compiling(module)
            return self._evaluation.run(module, call, args, kwargs)
        frozen = not any(p.requires_grad for p in module.parameters())
        if frozen and not traits.is_differentiated(args, kwargs):
            return call(*args, **kwargs)
        with self._between.around_module():
            return self._training(module, call, args, kwargs, frozen)

    def _training(
        self,
        module: torch.nn.Module,
        call: Callable[..., Any],
        args: Tuple[Any, ...],
        kwargs: Dict[str, Any],
        frozen: bool,
    ) -> Any:
        self._teller.went_on()
        size = sizes.size_of(args, kwargs)
        case = self._known(module, call, args, kwargs, frozen, size)
        self._derived.tell(case)
        self._between.begins(case, self.means.around(module))
        self._fit_beside_more(module, case)
        self._leave_room_for_as_many(case)
        mark = self.settling.step.begins(case)
        larger = sizes.growth(case.proven_size, size) > 1
        try:
            result = self.running.run_guarded(module, call, args, kwargs, case, larger)
        except Cannot as reason:
            self.settling.step.forget(mark)
            case = self._without_pieces(module, call, args, kwargs, case, reason)
            mark = self.settling.step.begins(case)
            result = self.running.run(module, call, args, kwargs, case)
        mark.choice = case.choice
        case.proven_size = sizes.largest(case.proven_size, size)
        mark.watch(result)
        return result

    def _known(
        self,
        module: torch.nn.Module,
        call: Callable[..., Any],
        args: Tuple[Any, ...],
        kwargs: Dict[str, Any],
        frozen: bool,
        size: Size,
    ) -> Case:
        """The Case of the call, made now where there is none for a batch of this size, or for
        as many trained parameters: layers may be trained from some epoch on only. The step before
        is settled first where it is over.
        """
        case = (self.cases.frozen if frozen else self.cases.trained).get(module)
        settling = self.settling
        settling.varies = settling.varies or case is not None and size != case.size
        if settling.step.is_over():
            self._between.step_is_over(settling.step)
            settling.settle()
        if frozen:
            case = case or self._begin_frozen(module)
            case.size = sizes.largest(case.size, size)
        elif case is None or sizes.growth(case.size, size) > LARGER or case.trains_more():
            case = self._begin(module, call, args, kwargs, size)
        return case

    def _fit_beside_more(self, module: torch.nn.Module, case: Case) -> None:
        """More calls wait for one backward pass than the choices were made for, as in a rollout
        that becomes longer. This one takes what is left, and the step is watched as a first one is.
        """
        settling = self.settling
        if not (case.settled and case.candidates) or not settling.is_more_than_ever(case):
            return
        if is_one_of_several_ranks():
            return  # the choice is one for all of them
        around = self.means.around(module)
        waiting = [m for m in settling.step.marks if m.waits()]
        settling.step.observe(around, gradients_of({case, *(m.case for m in waiting)}))
        for known in (case, *(m.case for m in waiting)):
            known.settled = bool(known.unmeasured)
        free, case.proven = self.means.free(around, around.held()), 0
        if case.choice.needs <= free:
            return
        fitting = [c for c in case.candidates if c.needs <= free]
        equal = [c for c in fitting if c.bitwise] or fitting
        smallest = least(case.candidates, lambda c: c.needs)
        self.cases.use({case: min(equal, key=lambda c: c.price, default=smallest)})

    def _leave_room_for_as_many(self, case: Case) -> None:
        """In a step that is seen for the first time nobody knows how often a module will be called
        before the backward pass: as often again as it was, is the guess. Earlier calls stay as they
        are. Parts may only be left out: a second run must be what the first one was.
        """
        step = self.settling.step
        count, around = step.waiting(case), step.around
        if count < 3 or case.settled or not case.candidates or around is None:
            return

        def needed(c: choices.Choice) -> float:
            return c.needs + count * c.stays

        free = self.means.free(around, around.held())
        if needed(case.choice) <= free:
            return
        parts = list(case.choice.checkpoint)
        alike = [c for c in case.candidates if list(c.checkpoint) in ([], parts)]
        fitting = [c for c in alike if needed(c) <= free]
        equal = [c for c in fitting if c.bitwise]
        self.cases.use({case: least(equal or fitting or alike, needed)})

    def _begin(
        self,
        module: torch.nn.Module,
        call: Callable[..., Any],
        args: Tuple[Any, ...],
        kwargs: Dict[str, Any],
        size: Size,
    ) -> Case:
        case = self._look_at_worst(module, call, args, kwargs) if self._worst else None
        if case is None:
            case = self.look.case(module, call, args, kwargs)
            case.size = size
        case.note_trained(module)
        case.precision = traits.precision(module)
        if module not in self.cases.trained:
            telling.tell_algorithms(self.means.say, module, case.precision)
        self.settling.forget_gone()
        self.cases.begin(module, case)
        self.settling.step.observe(self.means.around(module))
        return case

    def _begin_frozen(self, module: torch.nn.Module) -> Case:
        """A network that is not trained, but whose input is: a picture that is drawn, a prompt that
        is learnt, a generator in front of it. Nothing is tried: it has no gradients to compare.
        """
        around = self.means.around(module)
        case = self._unmeasured.case(module, around, "it is not trained, what it is given is")
        self.cases.begin_frozen(module, case)
        self.settling.step.observe(around)
        return case

    def _look_at_worst(
        self,
        module: torch.nn.Module,
        call: Callable[..., Any],
        args: Tuple[Any, ...],
        kwargs: Dict[str, Any],
    ) -> Optional[Case]:
        """The Case for the longest batch of the data, or None where that is no longer than this
        one, or cannot be run.
        """
        assert self._worst is not None
        case, longest = None, self._worst.lengthened(module, args, kwargs)
        if longest is None:
            longest = args, kwargs
        else:
            case = self.look.case(module, call, *longest)
            case = case if case.candidates else None
        evaluate = self._evaluation.run
        self._worst.evaluate(module, lambda a, k: evaluate(module, call, a, k), *longest)
        if case is not None:
            case.size = sizes.size_of(*longest)
        return case

    def _without_pieces(
        self,
        module: torch.nn.Module,
        call: Callable[..., Any],
        args: Tuple[Any, ...],
        kwargs: Dict[str, Any],
        case: Case,
        reason: Cannot,
    ) -> Case:
        """Pieces turned out not to be possible. A batch of one row says nothing; otherwise the
        choice is made anew without.
        """
        if any_inputs(args, kwargs).rows > 1:
            self._micro.decline(module, reason)
            self.means.cannot_cut(module)
            return self._begin(module, call, args, kwargs, case.size)
        return case_of(module, choices.as_it_is())
