"""The first call of a module: it is tried and measured on a few rows, and a choice is made for the
first step. So is the first call with a larger batch.
"""

import contextlib
import dataclasses
import functools
import weakref
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from ..batch.inputs import Cannot, Inputs, any_inputs
from ..calls import again, generators, outermost, sideways
from ..calls.modules import name_of, one_line
from ..measure import cost as measure
from ..measure import rounding, spaces
from ..memory import room
from ..memory.floor import Teller
from ..remedies import activation_budget, recurrent, sparse_gradients
from ..remedies.microbatch import MicroBatch, Plan
from . import choices, traits
from .case import Case, case_of
from .cases import Cases
from .choices import Choice
from .means import BELOW, Means, make_room
from .search import (
    AGAIN,
    equal_for_first_step,
    frugal,
    least,
    runs_twice,
    spacious,
    with_others,
)
from .telling import tell_beginning
from .unmeasured import Unmeasured

# Times its seconds that a call in pieces may take until it has run out with fewer. Where nothing is
# predicted to fit, the last bytes cost 50 times as much as half of the batch by hand.
DEAR = 8.0
SMALL = 0.1  # share of another call's bytes, and of the room, that one may take as it is at first


@dataclasses.dataclass
class _Call:
    """The call that is looked at, and where it runs."""

    module: torch.nn.Module
    call: Callable[..., Any]
    args: Tuple[Any, ...]
    kwargs: Dict[str, Any]
    around: Any  # the room of its device


@dataclasses.dataclass
class _Measured:
    """What a trial of a few rows has shown."""

    inputs: Any
    plan: Optional[Plan]  # how the batch is split, where it can be
    cost: measure.Cost
    held: float  # bytes that were there


class Look:
    """untried: modules must not be run on parts of their batches; compiler: compiled programs are
    made smaller where they are compiled.
    """

    def __init__(
        self,
        means: Means,
        cases: Cases,
        micro: MicroBatch,
        teller: Teller,
        unmeasured: Unmeasured,
        untried: bool = False,
        compiler: bool = False,
    ) -> None:
        self._means, self._cases, self._micro, self._teller = means, cases, micro, teller
        self._unmeasured, self._untried, self._compiler = unmeasured, untried, compiler
        self._sparse = sparse_gradients.SparseGradients(means.say)
        # Pieces of a module's recurrent layers.
        self._recurrent: weakref.WeakKeyDictionary[torch.nn.Module, int] = (
            weakref.WeakKeyDictionary()
        )

    def case(
        self,
        module: torch.nn.Module,
        call: Callable[..., Any],
        args: Tuple[Any, ...],
        kwargs: Dict[str, Any],
    ) -> Case:
        """The Case of the call, with a choice for the first step. A fault of ours costs the remedy,
        not the training.
        """
        self._teller.trying = True
        states = contextlib.ExitStack()
        try:
            trial = functools.partial(self._look, module, call, args, kwargs)
            states.enter_context(generators.kept(module))
            if traits.is_on_card(module) and (
                traits.has_convolutions(module) or traits.amplifies() == AGAIN
            ):
                answer: Case = sideways.run(trial)
                return answer
            return trial()
        except torch.cuda.OutOfMemoryError:
            raise
        except Cannot as reason:
            self._decline("micro_batch", module, str(reason))
            return case_of(module, choices.as_it_is())
        except Exception as why:
            self._decline("micro_batch", module, "%s: %s" % (type(why).__name__, one_line(why)))
            return case_of(module, choices.as_it_is())
        finally:
            states.close()
            self._teller.trying = False

    def before_compiling(self, module: torch.nn.Module) -> None:
        """A model that is evaluated before it is trained is compiled then: its regions must be
        there, or it would be compiled once more for them.
        """
        trained = any(p.requires_grad for p in module.parameters())
        if trained and not outermost.sharded(module) and self._is_up_to_the_compiler(module):
            self._unmeasured.regions(module)

    def _decline(self, id: str, module: torch.nn.Module, reason: str) -> None:
        self._means.say("declined", "%s: %s" % (name_of(module), reason), id=id)

    def _look(
        self,
        module: torch.nn.Module,
        call: Callable[..., Any],
        args: Tuple[Any, ...],
        kwargs: Dict[str, Any],
    ) -> Case:
        it = _Call(module, call, args, kwargs, self._means.around(module))
        self._sparse.watch(room.optimizers())
        self._teller.look(next(module.parameters()).device)
        case = self._without_trial(module, it.around)
        if case is not None:
            return case
        seen, reason = self._measure(it)
        if seen is None:
            make_room()
            return self._unmeasured.case(module, it.around, reason)
        if not seen.cost.repeats and "checkpointing" in self._means.allowed:
            self._decline("checkpointing", module, measure.OTHERWISE)
        candidates, dear = self._without_dear(it, self._candidates(it, seen))
        free = self._means.free(it.around, seen.held)
        candidates = traits.if_graphs_stay(candidates, free)
        needs = min(c.needs for c in candidates)
        if needs > free:
            free = self._free_without_state(it, seen, free)
        lacks = needs > free and not recurrent.drops(module)
        if (lacks or self._means.factor < 1) and self._cut_recurrent(module, it.around):
            return self._look(module, call, args, kwargs)
        amplifies = traits.amplifies() or traits.picks(module, call, seen.inputs)
        matters = amplifies or any(c.coarse for c in candidates)
        if self._means.is_equal_without_state([candidates], free, matters):
            free = self._free_without_state(it, seen, free)
        case = self._choose(it, seen, candidates, free, amplifies)
        case.dear = dear
        tell_beginning(self._means.say, case, seen.held, seen.cost, it.around.limit)
        return case

    def _without_trial(self, module: torch.nn.Module, around: Any) -> Optional[Case]:
        """The Case of a module that must not be run on a part of its batch; None for others."""
        by = outermost.sharded(module)
        if by:
            return self._unmeasured.sharded(module, around, by)
        if self._is_up_to_the_compiler(module):
            return self._unmeasured.compiled(module, around)
        if self._untried:
            return self._unmeasured.case(
                module, around, "an attempt failed that tried it on a part of the batch"
            )
        return None

    def _is_up_to_the_compiler(self, module: torch.nn.Module) -> bool:
        """A trial on other sizes would compile the module for each of them. Where the compiler
        keeps less by itself, its calls stay as they are; pieces come after two attempts with that.
        """
        asked = self._compiler and self._means.factor > 0.5
        return asked and activation_budget.is_compiled(module)

    # --- what it costs

    def _measure(self, it: _Call) -> Tuple[Optional[_Measured], str]:
        """What the call costs, or None and why that cannot be known. Exceptions are not kept: their
        frames may hold what ran out.
        """
        plan = None
        try:
            inputs: Any = any_inputs(it.args, it.kwargs)
            found = self._plan(it)
            if found is not None:
                plan, inputs = found
            inputs.refuse_indices()
        except Cannot as why:
            return None, str(why)
        held = it.around.held()
        try:
            return _Measured(inputs, plan, self._cost(it, inputs), held), ""
        except Cannot as why:
            reason = str(why)
        cost, inputs = self._cost_of_several(it, inputs)
        return (None if cost is None else _Measured(inputs, None, cost, held)), reason

    def _plan(self, it: _Call) -> Optional[Tuple[Plan, Any]]:
        """How the batch is split, and the call's Inputs; None where it is not."""
        if not self._means.may_cut(it.module):
            return None
        try:
            answer: Optional[Tuple[Plan, Any]] = self._micro.plan(
                it.module, it.call, it.args, it.kwargs
            )
            return answer
        except Cannot as reason:
            self._decline("micro_batch", it.module, str(reason))
        except torch.cuda.OutOfMemoryError:
            self._decline(
                "micro_batch", it.module, "not even a few samples of the batch could be tried"
            )
            make_room()
        return None

    def _cost(self, it: _Call, inputs: Any) -> measure.Cost:
        answer: measure.Cost = measure.cost(
            it.module,
            it.call,
            inputs,
            it.around,
            "checkpointing" in self._means.allowed and not traits.is_compilers_own(it.module),
            self._means.may_offload(it.around),
            functools.partial(_work_space, it, inputs),
        )
        return answer

    def _cost_of_several(self, it: _Call, inputs: Any) -> Tuple[Optional[measure.Cost], Any]:
        """(cost, inputs) of a call whose arguments hold several rows for each one of the batch, or
        (None, inputs): a few rows did not run, or did not fit beside all of the others.
        """
        several = inputs.with_several() if isinstance(inputs, Inputs) else None
        if several is None:
            return None, inputs
        make_room()
        try:
            return self._cost(it, several), several
        except Cannot:
            return None, inputs

    # --- what could be done

    def _candidates(self, it: _Call, seen: _Measured) -> List[Choice]:
        """Every choice that may be taken for the call; the first is to change nothing."""
        means, module = self._means, it.module
        offload = means.may_offload(it.around)
        candidates = list(choices.all_of(seen.inputs, seen.plan, seen.cost, offload))
        for choice in candidates:
            if not choice.bitwise and seen.plan is not None:
                choice.coarse = seen.plan.equivalence != "exact"
        most = means.most_away(it.around)
        candidates = [c for c in candidates if c.offload <= most]
        if (
            "checkpointing" not in means.allowed
            or traits.is_compilers_own(module)
            or again.fit_for_recompute(module)
            or not seen.cost.repeats
        ):
            candidates = [c for c in candidates if not c.whole]
        if any(again.drops_by_itself(m) for m in module.modules()):
            # A second run puts back the card's generator, and a recurrent layer whose masks cuDNN
            # draws begins anew with others by that.
            candidates = [c for c in candidates if not runs_twice(c)]
        return candidates

    def _free_without_state(self, it: _Call, seen: _Measured, free: float) -> float:
        """Bytes for the call once optimizer state has been sent away, where that may be; else those
        that are free now.
        """
        if not self._means.send_state_away(it.around):
            return free
        seen.held = it.around.held()
        return self._means.free(it.around, seen.held)

    def _cut_recurrent(self, module: torch.nn.Module, around: Any) -> bool:
        """Recurrent layers inside work in pieces from now on, in more than before; False where
        there are none, or none more to be had.
        """
        more = {0: 4, 4: 16}.get(self._recurrent.get(module, 0))
        found = recurrent.layers(module) if "micro_batch" in self._means.allowed else []
        twice = not around.is_card
        if twice and "checkpointing" not in self._means.allowed:
            found = []
        if more is None or not found:
            return False
        self._recurrent[module] = more
        other_masks = recurrent.cut(module, more, twice)
        self._micro.forget(module)
        self._means.say(
            "applied",
            "%s: its recurrent layer%s in %d pieces of the batch"
            % (
                name_of(module),
                " %s works" % found[0][0] if len(found) == 1 else "s work",
                more,
            ),
            id="micro_batch",
            equivalence="expected" if other_masks else "exact",
            pieces=more,
        )
        return True

    # --- what is done at first

    def _choose(
        self, it: _Call, seen: _Measured, candidates: List[Choice], free: float, amplifies: str
    ) -> Case:
        """The Case, with room for libraries' work spaces where that does not cost much more."""
        moments = spaces.of(it.module, it.call, it.args, it.kwargs, it.around)
        roomy = list(choices.with_spaces(candidates, moments, seen.inputs.rows))
        cramped = max([m.space for m in moments], default=0)
        plain, candidates = candidates, spacious(candidates, roomy, free, amplifies)
        choice = self._for_first_step(it.module, candidates, free, amplifies)
        case = case_of(it.module, choice, candidates, seen.inputs, seen.plan)
        case.beside = choices.extra(seen.cost, seen.inputs.rows)
        case.outputs = seen.cost.output_row * seen.inputs.rows
        case.has_loss = seen.cost.has_loss
        case.amplifies, case.half = amplifies, traits.is_half(it.module)
        case.optional = cramped if candidates is plain else 0
        case.wants_spaces = cramped > 0
        self._measure_rounding(case, it, seen.inputs)
        return case

    def _without_dear(
        self, it: _Call, candidates: List[Choice]
    ) -> Tuple[List[Choice], List[Choice]]:
        """What may be chosen, and the many pieces that are left for when that has run out."""
        if self._means.factor < 1 or not it.around.is_card:
            return candidates, []
        most = DEAR * candidates[0].seconds
        dear = [c for c in candidates if c.pieces > 1 and c.seconds > most]
        return [c for c in candidates if c not in dear], dear

    def _for_first_step(
        self, module: torch.nn.Module, candidates: List[Choice], free: float, amplifies: str = ""
    ) -> Choice:
        """A step that is only watched must be safe rather than fast. After an attempt of ours that
        ran out it is run with the least. Where a training amplifies rounding, what is equal to the
        bit may leave less room. A call that takes next to nothing beside another one is not what
        ran out.
        """
        means, whole = self._means, candidates[0].needs
        known = self._cases.trained.values()
        others = [case.candidates[0].needs for case in known if case.candidates]
        if means.factor == 1 and whole <= SMALL * min(free, max(others, default=0)):
            return candidates[0]
        if means.failed:  # what takes as much as the whole batch would fail again
            candidates = [c for c in candidates if c.needs < BELOW * whole] or candidates
        candidates = [c for c in candidates if c.needs <= free] or candidates
        if means.factor < 1:
            return least(candidates, with_others)
        equal = equal_for_first_step(candidates, free, amplifies)
        if equal is not None:
            return equal
        most = min(free, whole) if means.failed else free
        return frugal(candidates, most, free, spacious=traits.has_convolutions(module))

    def _measure_rounding(self, case: Case, it: _Call, inputs: Any) -> None:
        """By how much it matters, for what is told where something is not equal to the bit."""
        module, call = it.module, it.call
        if not case.amplifies or any(p._backward_hooks for p in module.parameters()):
            return
        if case.plan is not None:
            case.rounding = rounding.words(rounding.of_pieces(module, call, inputs))
        libraries_choose = traits.has_convolutions(module) and torch.backends.cudnn.enabled
        if libraries_choose and traits.is_on_card(module):
            self._teller.rounding = rounding.words(rounding.of_algorithms(module, call, inputs))


def _work_space(it: _Call, inputs: Any, rows: int) -> int:
    """Bytes of the largest work space that so many rows want."""
    args, kwargs = inputs.pick(list(range(rows)))
    return spaces.largest(it.module, it.call, args, kwargs, it.around)
