"""Chooses how much of which remedy each module needs to fit, and applies it.

What a row costs is measured on a few rows (measure), what there is for it is read (room), what
could be done is listed (choices). The first step is run frugally, because a loop may call several
modules, or one several times, before its one backward pass, and nobody knows before it has been
seen. Then the cheapest choices that fit together are taken, with what the first step really needed:
at once, rather than creeping up on it over several attempts.
"""

import collections.abc
import contextlib
import dataclasses
import functools
import gc
import time
import weakref
from typing import Any, Dict, Optional, Tuple

import torch

from ..batch.inputs import Cannot, Inputs, any_inputs, is_tensor
from ..calls import again, autocast, outermost, refers, sideways, tree
from ..calls.modules import name_of, one_line, worth_it
from ..measure import cost as measure
from ..measure import rounding, spaces
from ..measure.parts import by_sight
from ..measure.run import Before
from ..memory import floor, room
from ..remedies import (
    activation_budget,
    activation_offload,
    checkpointing,
    derivatives,
    microbatch,
    optimizer_offload,
    recurrent,
    sparse_gradients,
    without_modules,
)
from . import choices
from .case import Case, Growing, Size, case_of
from .forecast import UNSEEN, Forecast
from .pace import Pace
from .search import (
    AGAIN,
    cheaper,
    cheapest_if_equal,
    equal_for_first_step,
    frugal,
    half_way,
    least,
    roomier,
    runs_twice,
    spacious,
    together,
    with_others,
)
from .step import Step

MOST_KINDS = 6  # of steps in one loop
LARGER = 1.05  # times the batch a choice was made for, from which it is made anew
ROOM_TO_GROW = 0.96  # share of the budget where batches differ, for one that is larger by less
BELOW = 0.97  # times what has failed that is tried at the most
# Share of the limit from which on the way from the first, frugal step to what fits is gone in two
# steps: the further a choice is from what was seen, the more may what is predicted be wrong.
FAR = 0.1
# Share of the limit that is left besides where the allocator finds no room for a request in step
# after step and gives back what it kept, or where nobody has seen how it does; and times its
# seconds that this may cost.
LOOSER, WORTH_LOOSER = 0.04, 1.1
LOOKS = 24  # steps in which that is looked for
FASTER = 0.98  # times its seconds in which steps must be done to keep what was tried for them
SMALL = 0.1  # share of another call's bytes, and of the room, that one may take as it is at first
WATCHED = 3  # calls with a choice that can be made again if they run out
COPIED = 64 << 20  # bytes of a module's buffers that are copied for that
LESS = 0.8  # times what ran out that is tried then at the most
LOOSENINGS = 2  # how often what a first choice left over may be used

# Why a rounding error can become a large one. %s: the function that picks.
PICKED = "the model picks among its own results (%s), and a rounding error can change what it picks"

# Why pieces differ by more than full precision rounds.
HALF = "sums over pieces are rounded in half precision"

# A backward pass that leaves its graph.
RETAINS = r"retain_graph\s*=\s*True"

# What makes micro-batches smaller where we do not.
SMALLER = {
    "FSDP": "a smaller batch with gradient accumulation, as --gradient_accumulation_steps",
    "ZeRO": "train_micro_batch_size_per_gpu and gradient_accumulation_steps in DeepSpeed's "
    "configuration, with the model's gradient checkpointing",
}


class Governor:
    """The handler of outermost calls. allowed: ids of remedies; limit: bytes, if the caller knows a
    lower wall; failed: the whole batch is known not to fit; factor: share of the room to plan with,
    lowered after a plan that was too bold; teller: says when not even weights, gradients and
    optimizer state fit; untried: modules must not be run on parts of their batches; worst: knows
    the longest batch, where that was asked for; budget: compiled programs are made smaller where
    they are compiled.
    """

    def __init__(
        self,
        say,
        allowed,
        limit=None,
        failed=False,
        factor=1.0,
        teller=None,
        untried=False,
        worst=None,
        budget=False,
    ):
        self.untried, self.worst, self.budget = untried, worst, budget
        self.say, self.allowed, self.limit, self.failed, self.factor = (
            say,
            allowed,
            limit,
            failed,
            factor,
        )
        # What is known of each module, where it is trained, and where only what it is given is.
        self._cases: weakref.WeakKeyDictionary[torch.nn.Module, Case] = weakref.WeakKeyDictionary()
        self._frozen: weakref.WeakKeyDictionary[torch.nn.Module, Case] = weakref.WeakKeyDictionary()
        self.teller = teller or floor.Teller(say, limit)
        self.checkpointing = checkpointing.Checkpointing()
        self.micro = microbatch.MicroBatch(
            say, lambda module, inputs, plan: self._cases[module].choice.share
        )
        self._regions = (
            weakref.WeakSet()
        )  # blocks that are checkpoint regions of a compiled program
        self._recurrent = weakref.WeakKeyDictionary()  # module -> pieces of its recurrent layers
        self._uncut = weakref.WeakSet()  # modules that showed in a run that they cannot be cut
        self._small = (
            weakref.WeakKeyDictionary()
        )  # module -> rows of an evaluation's pieces, where its batch was too large
        self._small_pieces = microbatch.MicroBatch(
            say, lambda module, inputs, plan: microbatch.Share(self._small[module])
        )
        self._step = Step()
        self._forecasts: dict = {}  # which calls wait together -> Forecast
        self._seen: set = set()  # the sets of calls that were seen waiting together
        self._rooms: dict = {}  # such a set -> (cases with counts, bytes they may be predicted for)
        self._varies = False
        self._pace = Pace()  # of the steps with the choices of now
        self._looks = 0  # how many of them were looked at
        # (choices, seconds of a step) while others are tried for speed
        self._before: Optional[Tuple[Dict[Case, choices.Choice], float]] = None
        self._loosened = 0  # how often what was left over has been used
        self._state = (
            optimizer_offload.StateAway(say, self._state_does_not_fit)
            if "optimizer_offload" in allowed
            else None
        )
        self._sparse = sparse_gradients.SparseGradients(say)
        self._derived: set = set()  # names of modules of which that has been said
        # What backward passes save to be differentiated again is sent away: None: not known yet.
        self._send_derived = None
        self._derivatives = (
            derivatives.Derivatives(self._differentiated)
            if "activation_offload" in allowed
            else None
        )
        self._without_modules = (
            without_modules.WithoutModules(say, limit, self._budget, self._state_to_come)
            if "activation_offload" in allowed
            else None
        )

    def __call__(self, module, call, args, kwargs):
        if not worth_it(module):
            return call(*args, **kwargs)
        if not torch.is_grad_enabled():
            return self._evaluation(module, call, args, kwargs)
        frozen = not any(p.requires_grad for p in module.parameters())
        if frozen and not _is_differentiated(args, kwargs):
            return call(*args, **kwargs)
        return self._training(module, call, args, kwargs, frozen)

    def _training(self, module, call, args, kwargs, frozen):
        self.teller.went_on()
        if self._without_modules is not None:
            self._without_modules.stop()
            self._without_modules = None
        case = (self._frozen if frozen else self._cases).get(module)
        size = _size(args, kwargs)
        self._varies = self._varies or case is not None and size != case.size
        if self._step.is_over():
            self._settle()
        if frozen and case is None:
            case = self._begin_frozen(module)
        elif not frozen and (case is None or _growth(case.size, size) > LARGER):
            case = self._begin(module, call, args, kwargs, size)
        assert case is not None
        case.size = _largest(case.size, size) if frozen else case.size
        self._tell_of_second_derivatives(case)
        self._leave_room_for_as_many(case)
        mark = self._step.begins(case)
        larger = _growth(case.proven_size, size) > 1
        try:
            result = self._run_guarded(module, call, args, kwargs, case, larger)
        except Cannot as reason:
            self._step.forget(mark)
            case = self._without_pieces(module, call, args, kwargs, case, reason)
            mark = self._step.begins(case)
            result = self._run(module, call, args, kwargs, case)
        mark.choice = case.choice
        case.proven_size = _largest(case.proven_size, size)
        mark.watch(result)
        return result

    def _run_guarded(self, module, call, args, kwargs, case, larger):
        """The first calls with a choice, and those with a batch that is larger than any before, may
        run out. In a forward pass nothing is lost by that: the call is made again with less. Other
        ranks wait for collective calls, and are not made to wait for a second one.
        """
        case.proven += 1
        if not larger and case.proven > WATCHED or not self._may_run_again(module, case):
            return self._run(module, call, args, kwargs, case)
        before, given = Before(module, COPIED), _versions(args, kwargs)
        while True:
            try:
                with _learning(module, before):
                    return self._run(module, call, args, kwargs, case)
            except torch.cuda.OutOfMemoryError as why:
                ran_out = why.with_traceback(None)  # its frames hold what is in the way
                self.teller.forget_missed()
            if _versions(args, kwargs) != given or not before.can_be_put_back():
                raise ran_out
            before.put_back()
            _make_room()
            if not self._take_less(module, case):
                raise ran_out
            before = Before(module, COPIED)

    def _may_run_again(self, module, case):
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return False
        known = bool(case.candidates or case.unmeasured)
        around = room.of(next(module.parameters()).device, self.limit)
        if not known or not around.is_card or activation_budget.is_compiled(module):
            return False
        return not any(again.sees_calls(m) for m in module.modules())

    def _take_less(self, module, case):
        """A choice that needs clearly less than the one that ran out; says whether there is one."""
        around = room.of(next(module.parameters()).device, self.limit)
        if room.state() and self._send_state_away(around):
            return True
        found = self._smaller(case) if case.candidates else _all_away(case)
        if found is None:
            return False
        self._use({case: found})
        self._step.observe(around, self._gradients({case: 1}))
        self.say(
            "note",
            "%s: memory ran out in its forward pass; it ran again with: %s"
            % (case.name, found.words),
            id=(found.remedies() or ["micro_batch"])[0],
        )
        return True

    def _smaller(self, case):
        """What has run out is not taken again, nor what needs nearly as much, unless steps were
        done with it before.
        """
        needs, most = case.choice.needs, LESS * case.choice.needs
        smaller = [
            c
            for c in case.candidates[1:]
            if c.needs <= most or c.needs < needs and any(c is ran for ran in case.ran)
        ]
        if not smaller:
            return None
        case.candidates = [case.candidates[0], *smaller]
        matters = case.amplifies or any(c.coarse for c in smaller)
        equal = [c for c in smaller if c.bitwise] if matters else []
        return min(equal or smaller, key=lambda c: c.price)

    def _differentiated(self):
        """The modules whose calls wait, where what their backward pass saves is to be sent away."""
        if self._send_derived is False:
            return []
        cases = {m.case: None for m in self._step.marks}
        modules = [case.module() for case in cases]
        modules = [m for m in modules if m is not None]
        if not modules:
            return []
        around = room.of(next(modules[0].parameters()).device, self.limit)
        return modules if around.is_card else []

    def _settle_derived(self, spare):
        """After the first step in which a backward pass was differentiated again. spare: bytes that
        the choices leave."""
        sent = self._derivatives.take_sent() if self._derivatives else 0
        if not sent or self._send_derived is not None:
            return
        self._send_derived = sent > spare
        if self._send_derived:
            self.say(
                "applied",
                "what backward passes save to be differentiated again waits in host memory",
                id="activation_offload",
                equivalence="exact",
            )

    def _tell_of_second_derivatives(self, case):
        """Where a loop that learns to learn does not fit, this is why."""
        if self._derivatives or case.amplifies != AGAIN or case.name in self._derived:
            return
        self._derived.add(case.name)
        self.say(
            "note",
            "%s: %s: what their backward pass computes is kept for that, and on a CPU no remedy "
            "makes that part smaller" % (case.name, AGAIN),
            id="checkpointing",
        )

    def _leave_room_for_as_many(self, case):
        """In a step that is seen for the first time nobody knows how often a module will be called
        before the backward pass: as often again as it was, is the guess. Earlier calls stay as they
        are. Parts may only be left out: a second run must be what the first one was.
        """
        count, around = self._step.waiting(case), self._step.around
        if count < 3 or case.settled or not case.candidates or around is None:
            return

        def needed(c):
            return c.needs + count * c.stays

        free = self._budget(around.limit) - around.held() - self._state_to_come()
        if needed(case.choice) <= free:
            return
        parts = list(case.choice.checkpoint)
        alike = [c for c in case.candidates if list(c.checkpoint) in ([], parts)]
        equal = [c for c in alike if c.bitwise and needed(c) <= free]
        self._use({case: least(equal or alike, needed)})

    def _begin(self, module, call, args, kwargs, size):
        case = self._look_at_worst(module, call, args, kwargs) if self.worst else None
        if case is None:
            case = self._look_safely(module, call, args, kwargs)
            case.size = size
        self._forget_gone()
        self._cases[module] = case
        self.checkpointing.use(module, case.choice.checkpoint)
        self._step.observe(room.of(next(module.parameters()).device, self.limit))
        return case

    def _forget_gone(self):
        """What is known of models that are gone: a script may train one after the other."""

        def there(cases):
            return all(case.module() is not None for case in cases)

        self._rooms = {key: known for key, known in self._rooms.items() if there(key)}
        self._seen = {key for key in self._seen if there(key)}
        self._forecasts = {
            key: known for key, known in self._forecasts.items() if there(c for c, _ in key)
        }

    def _begin_frozen(self, module):
        """A network that is not trained, but whose input is: a picture that is drawn, a prompt that
        is learnt, a generator in front of it. Nothing is tried: it has no gradients to compare.
        """
        around = room.of(next(module.parameters()).device, self.limit)
        case = self._unmeasured(module, around, "it is not trained, what it is given is")
        self._frozen[module] = case
        if module not in self._cases:
            self.checkpointing.use(module, case.choice.checkpoint)
        self._step.observe(around)
        return case

    def _run(self, module, call, args, kwargs, case):
        choice = case.choice
        if choice.share is not None:
            case.cut = True
            return self.micro.run(module, call, args, kwargs)
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

    def _evaluation(self, module, call, args, kwargs):
        """A call without gradients leaves nothing behind when it runs out, so it can be tried again
        in smaller pieces.
        """
        case = self._cases.get(module)
        if case is not None and case.choice.share is not None and module not in self._small:
            try:
                return self.micro.run(module, call, args, kwargs)
            except Cannot:
                return call(*args, **kwargs)
        while True:
            try:
                return (
                    self._in_small_pieces(module, call, args, kwargs)
                    if module in self._small
                    else call(*args, **kwargs)
                )
            except torch.cuda.OutOfMemoryError as why:
                ran_out = why.with_traceback(None)  # its frames hold what is in the way
                self.teller.forget_missed()
            if not self._fewer(module, args, kwargs):
                raise ran_out
            _make_room()

    def _in_small_pieces(self, module, call, args, kwargs):
        try:
            return self._small_pieces.run(module, call, args, kwargs)
        except Cannot as reason:
            self._small_pieces.decline(module, reason)
            self._uncut.add(module)
            return call(*args, **kwargs)

    def _fewer(self, module, args, kwargs):
        """Halves the rows that an evaluation takes at once, and says whether that was possible."""
        try:
            rows = self._small.get(module) or any_inputs(args, kwargs).rows
        except Cannot:
            return False
        if rows < 2 or module in self._uncut or "micro_batch" not in self.allowed:
            return False
        self._small[module] = rows // 2
        return True

    def _without_pieces(self, module, call, args, kwargs, case, reason):
        """Pieces turned out not to be possible. A batch of one row says nothing; otherwise the
        choice is made anew without.
        """
        if any_inputs(args, kwargs).rows > 1:
            self.micro.decline(module, reason)
            self._uncut.add(module)
            return self._begin(module, call, args, kwargs, case.size)
        return case_of(module, choices.as_it_is())

    # --- the first call of a module

    def _look_at_worst(self, module, call, args, kwargs):
        """The Case for the longest batch of the data, or None where that is no longer than this
        one, or cannot be run.
        """
        longest = self.worst.lengthened(module, args, kwargs)
        if longest is None:
            longest, case = (args, kwargs), None
        else:
            case = self._look_safely(module, call, *longest)
            case = case if case.candidates else None
        self.worst.evaluate(module, lambda a, k: self._evaluation(module, call, a, k), *longest)
        if case is not None:
            case.size = _size(*longest)
        return case

    def _look_safely(self, module, call, args, kwargs):
        """A fault of ours costs the remedy, not the training."""
        self.teller.trying = True
        try:
            trial = functools.partial(self._look, module, call, args, kwargs)
            apart = _is_on_card(module) and (_has_convolutions(module) or _amplifies() == AGAIN)
            return sideways.run(trial) if apart else trial()
        except torch.cuda.OutOfMemoryError:
            raise
        except Cannot as reason:
            self.say("declined", "%s: %s" % (name_of(module), reason), id="micro_batch")
            return case_of(module, choices.as_it_is())
        except Exception as why:
            self.say(
                "declined",
                "%s: %s: %s" % (name_of(module), type(why).__name__, one_line(why)),
                id="micro_batch",
            )
            return case_of(module, choices.as_it_is())
        finally:
            self.teller.trying = False

    def _look(self, module, call, args, kwargs):
        """Measures the call and gives its Case, with a choice for the first step."""
        around = room.of(next(module.parameters()).device, self.limit)
        self._sparse.watch(room.optimizers())
        self.teller.look(next(module.parameters()).device)
        if outermost.sharded(module):
            return self._sharded(module, around, outermost.sharded(module))
        if self._is_up_to_the_compiler(module):
            return self._compiled(module, around)
        if self.untried:
            return self._unmeasured(
                module, around, "an attempt failed that tried it on a part of the batch"
            )
        inputs: Any = None
        plan = cost = None
        held, reason = around.held(), ""
        try:
            inputs = any_inputs(args, kwargs)
            plan = self._plan(module, call, args, kwargs)
            if plan is not None:
                plan, inputs = plan
            inputs.refuse_indices()
        except Cannot as why:
            inputs, reason = None, str(why)
        if inputs is not None:
            try:
                held = around.held()
                cost = self._cost(module, call, inputs, around)
            except Cannot as why:
                reason = str(why)  # its frames may hold what ran out
        if cost is None and inputs is not None:
            plan, (cost, inputs) = None, self._cost_of_several(module, call, inputs, around)
        if cost is None:
            _make_room()
            return self._unmeasured(module, around, reason)
        if not cost.repeats and "checkpointing" in self.allowed:
            self.say(
                "declined",
                "%s: %s" % (name_of(module), measure.OTHERWISE),
                id="checkpointing",
            )
        candidates = list(choices.all_of(inputs, plan, cost, self._may_offload(around)))
        for choice in candidates:
            choice.coarse = not choice.bitwise and _is_coarse(module, plan)
        most = self._most_away(around)
        candidates = [c for c in candidates if c.offload <= most]
        if (
            "checkpointing" not in self.allowed
            or type(module).__name__ == "OptimizedModule"
            or again.fit_for_recompute(module)
            or not cost.repeats
        ):
            candidates = [c for c in candidates if not c.whole]
        if any(again.drops_by_itself(m) for m in module.modules()):
            # A second run puts back the card's generator, and a recurrent layer whose masks cuDNN
            # draws begins anew with others by that.
            candidates = [c for c in candidates if not runs_twice(c)]
        free = self._budget(around.limit) - held - self._state_to_come()
        candidates = _if_graphs_stay(candidates, free)
        if min(c.needs for c in candidates) > free and self._send_state_away(around):
            held = around.held()
            free = self._budget(around.limit) - held
        lacks = min(c.needs for c in candidates) > free and not recurrent.drops(module)
        if (lacks or self.factor < 1) and self._cut_recurrent(module, around):
            return self._look(module, call, args, kwargs)
        amplifies = _amplifies() or self._picks(module, call, inputs)
        matters = amplifies or any(c.coarse for c in candidates)
        lacks = self._is_equal_without_state([candidates], free, matters)
        if lacks and self._send_state_away(around):
            held = around.held()
            free = self._budget(around.limit) - held
        moments = spaces.of(module, call, args, kwargs, around)
        roomy = list(choices.with_spaces(candidates, moments, inputs.rows))
        cramped = max([m.space for m in moments], default=0)
        plain, candidates = candidates, spacious(candidates, roomy, free, amplifies)
        choice = self._for_first_step(module, candidates, free, amplifies)
        case = case_of(module, choice, candidates, inputs, plan)
        case.beside = choices.extra(cost, inputs.rows)
        case.outputs, case.has_loss = cost.output_row * inputs.rows, cost.has_loss
        case.amplifies, case.half = amplifies, _is_half(module)
        case.optional = cramped if candidates is plain else 0
        case.wants_spaces = cramped > 0
        self._measure_rounding(case, module, call, inputs)
        self._tell_beginning(case, held, cost, around.limit)
        return case

    def _cost(self, module, call, inputs, around):
        return measure.cost(
            module,
            call,
            inputs,
            around,
            "checkpointing" in self.allowed and type(module).__name__ != "OptimizedModule",
            self._may_offload(around),
            functools.partial(_work_space, module, call, inputs, around),
        )

    def _cost_of_several(self, module, call, inputs, around):
        """(cost, inputs) of a call whose arguments hold several rows for each one of the batch, or
        (None, inputs): a few rows did not run, or did not fit beside all of the others.
        """
        several = inputs.with_several() if isinstance(inputs, Inputs) else None
        if several is None:
            return None, inputs
        _make_room()
        try:
            return self._cost(module, call, several, around), several
        except Cannot:
            return None, inputs

    def _cut_recurrent(self, module, around):
        """Recurrent layers inside work in pieces from now on, in more than before; False where
        there are none, or none more to be had.
        """
        more = {0: 4, 4: 16}.get(self._recurrent.get(module, 0))
        found = recurrent.layers(module) if "micro_batch" in self.allowed else []
        twice = not around.is_card
        if twice and "checkpointing" not in self.allowed:
            found = []
        if more is None or not found:
            return False
        self._recurrent[module] = more
        other_masks = recurrent.cut(module, more, twice)
        self.micro.forget(module)
        self.say(
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

    def _picks(self, module, call, inputs):
        """Why rounding is amplified by what the module picks, or nothing. A compiled module is not
        run for it.
        """
        if activation_budget.is_compiled(module):
            return ""
        name = rounding.picks(module, call, inputs)
        return PICKED % name if name else ""

    def _measure_rounding(self, case, module, call, inputs):
        """By how much it matters, for what is told where something is not equal to the bit."""
        if not case.amplifies or any(p._backward_hooks for p in module.parameters()):
            return
        if case.plan is not None:
            case.rounding = rounding.words(rounding.of_pieces(module, call, inputs))
        if _has_convolutions(module) and torch.backends.cudnn.enabled and _is_on_card(module):
            self.teller.rounding = rounding.words(rounding.of_algorithms(module, call, inputs))

    def _sharded(self, module, around, by):
        """Its calls are collective, so nothing is tried and nothing is split: ranks might choose
        otherwise. What every rank sees alike can be done.
        """
        reason = "its parameters are sharded (%s)" % by
        if "micro_batch" in self.allowed:
            self.say(
                "declined",
                "%s: %s, so its batch is not split here; what does it: %s"
                % (name_of(module), reason, SMALLER[by]),
                id="micro_batch",
            )
        if by != "FSDP":
            return case_of(module, choices.as_it_is())
        return self._unmeasured(module, around, reason, again=True)

    def _is_up_to_the_compiler(self, module):
        """A trial on other sizes would compile the module for each of them. Where the compiler
        keeps less by itself, its calls stay as they are; pieces come after two attempts with that.
        """
        return self.budget and self.factor > 0.5 and activation_budget.is_compiled(module)

    def _compiled(self, module, around):
        """Its blocks become checkpoint regions before it is compiled, all of them: nothing can be
        measured without compiling for that. Where there are none, the compiler keeps less by
        itself.
        """
        parts = by_sight(module) if "checkpointing" in self.allowed else []
        if any(activation_budget.is_compiled(part.module) for part in parts):
            return self._unmeasured(
                module, around, "its blocks are compiled one by one", again=True
            )
        fresh = [part for part in parts if part.module not in self._regions]
        for part in fresh:  # a longer batch comes here again
            checkpointing.before_compiling(part.module)
            self._regions.add(part.module)
        if fresh:
            self.say(
                "applied",
                "%s: all %d blocks checkpointed, before torch.compile"
                % (name_of(module), len(parts)),
                id="checkpointing",
                equivalence="exact",
                checkpointed=len(parts),
            )
        return case_of(module, choices.as_it_is())

    def _for_first_step(self, module, candidates, free, amplifies=""):
        """A step that is only watched must be safe rather than fast. After an attempt of ours that
        ran out it is run with the least. Where a training amplifies rounding, what is equal to the
        bit may leave less room. A call that takes next to nothing beside another one is not what
        ran out.
        """
        whole = candidates[0].needs
        others = [case.candidates[0].needs for case in self._cases.values() if case.candidates]
        if self.factor == 1 and whole <= SMALL * min(free, max(others, default=0)):
            return candidates[0]
        if self.failed:  # what takes as much as the whole batch would fail again
            candidates = [c for c in candidates if c.needs < BELOW * whole] or candidates
        candidates = [c for c in candidates if c.needs <= free] or candidates
        if self.factor < 1:
            return least(candidates, with_others)
        equal = equal_for_first_step(candidates, free, amplifies)
        if equal is not None:
            return equal
        most = min(free, whole) if self.failed else free
        return frugal(candidates, most, free, spacious=_has_convolutions(module))

    def _is_equal_without_state(self, candidates, free, matters):
        """Whether what is equal to the bit fits only with optimizer state in host memory, where
        that matters: in a training that amplifies rounding, or where pieces differ by more than
        rounding. candidates: of each call that is looked at.
        """
        if not matters or self._state is None or self._state.active:
            return False
        least_equal = sum(min(c.needs for c in some if c.bitwise) for some in candidates)
        return free < least_equal <= free + room.state() + self._state_to_come()

    def _send_state_away(self, around):
        """Optimizer state waits on the host from now on, where that may be; says whether it has
        just been sent there.
        """
        if self._state is None or self._state.active or not around.is_card:
            return False
        self._state.send_now()
        return True

    def _state_does_not_fit(self, optimizer):
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
        return around.held() + coming + work > around.limit

    def _state_to_come(self):
        """Bytes of optimizer state that will be there while activations are."""
        return 0 if self._state is not None and self._state.active else room.state_to_come()

    def _may_offload(self, around):
        return self._most_away(around) > 0

    def _most_away(self, around):
        """Bytes that may wait on the host: a share of what is free there, because others want some
        of it too, and pinned memory cannot be swapped out.
        """
        if "activation_offload" not in self.allowed or not around.is_card:
            return 0
        return room.HOST_SHARE * room.host_free()

    def _budget(self, limit):
        return self.factor * (
            limit - max((1 - room.SAFETY) * limit, min(room.SCATTERED, limit / 10))
        )

    def _plan(self, module, call, args, kwargs):
        if "micro_batch" not in self.allowed or module in self._uncut:
            return None
        try:
            return self.micro.plan(module, call, args, kwargs)
        except Cannot as reason:
            self.say("declined", "%s: %s" % (name_of(module), reason), id="micro_batch")
        except torch.cuda.OutOfMemoryError:
            self.say(
                "declined",
                "%s: not even a few samples of the batch could be tried" % name_of(module),
                id="micro_batch",
            )
            _make_room()
        return None

    def _tell_beginning(self, case, held, cost, limit):
        """held: bytes that are there now. What is said here is final, so nothing is claimed that
        could be otherwise: no workspaces, no work of a loss outside, no optimizer state, which can
        wait elsewhere; only what lies there beside one row.
        """
        module = case.module()
        self._tell_if_nothing_fits(case, held, limit)
        gradients = sum(
            p.numel() * p.element_size()
            for p in module.parameters()
            if p.requires_grad and p.grad is None
        )
        self._tell_if_no_step_fits(module, held, gradients, limit)
        needs = int(held - room.state() + gradients + cost.output_row * case.rows)
        beside = "" if _is_on_card(module) else "Python with its libraries, data, "
        if needs > limit:
            self.say(
                "note",
                (
                    "cannot fit: needs at least %s, %s are there: so much do %sweights, gradients "
                    "and the results of %s take"
                )
                % (room.words(needs), room.words(limit), beside, case.name),
                id="cannot_fit",
                needs=needs,
                limit=limit,
            )
        for id in case.choice.remedies() or ["micro_batch"]:
            self.say("note", "%s: the first step with: %s" % (case.name, case.choice.words), id=id)

    def _tell_if_no_step_fits(self, module, held, gradients, limit):
        """On a CPU what an optimizer keeps can wait nowhere else: its first step needs all of it
        beside weights and gradients, however small the batch is cut.
        """
        state, work = room.first_step()
        needs = held + gradients + state + work
        if _is_on_card(module) or needs <= limit:
            return
        self.say(
            "note",
            "cannot fit: the optimizer's first step needs at least %s, %s are there: Python with "
            "its libraries, data and weights %s, gradients %s, optimizer state %s, and %s to "
            "compute with" % tuple(map(room.words, (needs, limit, held, gradients, state, work))),
            id="cannot_fit",
            needs=needs,
            limit=limit,
        )

    def _tell_if_nothing_fits(self, case, held, limit):
        """On a CPU peaks are those of the process, so another attempt would find the same."""
        needs = int(held + min(c.needs for c in case.candidates))
        if _is_on_card(case.module()) or needs <= limit:
            return
        self.say(
            "note",
            "cannot fit: even the smallest way to run %s needs about %s, of which Python, its "
            "libraries and data take %s; %s are there"
            % (case.name, *map(room.words, (needs, held, limit))),
            id="cannot_fit",
            needs=needs,
            limit=limit,
        )

    def _unmeasured(self, module, around, reason, again=False):
        """Without a batch to try there is only everything at once: what is saved waits on the host,
        until a step has shown how much of it need not. again: every call of a part is checkpointed,
        too. So it is where host memory may not do, and after two attempts that ran out. Otherwise
        the second run of a part takes more room than what was saved inside of it, sent back piece
        by piece, and what goes into a part stays on the card.
        """
        name = name_of(module)
        away = self._most_away(around)
        again = again or self.factor <= 0.5 or not away or away < around.limit
        parts = (
            by_sight(module)
            if again
            and "checkpointing" in self.allowed
            and type(module).__name__ != "OptimizedModule"
            else []
        )
        if parts:
            self.say(
                "applied",
                "%s: all %d blocks checkpointed (%s)" % (name, len(parts), reason),
                id="checkpointing",
                equivalence="exact",
                checkpointed=len(parts),
            )
        elif away:
            self.say(
                "note",
                "%s: the first step with: what is saved in host memory (%s)" % (name, reason),
                id="activation_offload",
            )
        else:
            self.say(
                "declined",
                "%s: no blocks to checkpoint, and %s" % (name, reason),
                id="checkpointing",
            )
        choice = choices.Choice(
            "as it is", 0, 0, 1.0 if parts else 0.0, checkpoint=parts, offload=away
        )
        case = case_of(module, choice)
        case.unmeasured = str(reason)
        return case

    def _settle_unmeasured(self, cases, step):
        """After the first step: what there is room for stays on the card; gives the bytes. Batches
        of graphs are hardly ever of one size, and after an attempt that ran out nothing stays.
        """
        if not cases:
            return 0
        budget = ROOM_TO_GROW * self._budget(step.around.limit)
        # What has been made since, as optimizer state, was not there in the passes that were
        # watched; nor were gradients in the forward pass, if they are there now.
        since = max(0, step.around.held() - step.held_before)
        spare = max(0, budget - step.peak_of_passes() - since - self._state_to_come())
        if any(case.candidates for case in step.together):
            spare /= 2  # others want some of it too
        before = spare
        # Where all of this batch fits, a longer one has run out before, and will come.
        whole = step.peak_of_passes() + sum(step.together[case] * case.sent for case in cases)
        longer = max(1.0, step.around.limit / whole) if self.failed else 1.0
        for case in cases:
            count = step.together[case]  # calls that wait together; all keep as much
            case.settled = True
            stays = min(case.sent, spare / count) if self.factor == 1 else 0
            spare -= count * stays
            case.choice.offload = case.sent - stays
            if case.choice.offload or self.failed:
                beside = max(0, step.peak_of_passes() - step.held_before) / count
                case.growing = Growing(case.sent, stays, beside, longer)
                case.choice.keep = case.growing.keep()
            if case.choice.offload:
                self.say(
                    "applied",
                    "%s: %d %% of what is saved waits in host memory (%s)"
                    % (case.name, 100 * case.choice.offload / case.sent, case.unmeasured),
                    id="activation_offload",
                    equivalence="exact",
                    limit=step.around.limit,
                )
        return before - spare

    # --- after a step that was watched

    def _settle(self):
        """Takes the cheapest choices that fit together. Once that is done it only ever tightens, so
        that it cannot swing.
        """
        step, self._step = self._step, Step()
        stays, new = 0.0, self._may_be_followed_by_others(step)
        if new:
            self._step.observe(step.around, self._gradients(step.together))
        elif step.around is not None and step.around.is_card:
            stays = self._settle_unmeasured(
                [case for case in step.together if case.unmeasured and not case.settled], step
            )
        cases = {
            case: count
            for case, count in step.together.items()
            if case.candidates and case.module() is not None
        }
        if not cases:
            return
        if step.around is None:
            self._make_room_for_library(cases)
            return
        for mark in step.marks:
            if not any(mark.choice is ran for ran in mark.case.ran):
                mark.case.ran.append(mark.choice)
        first = not all(case.settled for case in cases)
        if first:
            # imports that the first calls set off may leave cycles with frames in them, and the
            # frames hold tensors
            gc.collect()
        forecast = self._read(cases, step)
        # Results that the loop holds are there while the next call runs. Where that has the loss
        # inside, they count; where the loss comes later, they are gone by then.
        results = 0 if any(case.has_loss for case in cases) else step.results_alive()
        budget = self._budget(step.around.limit) * (ROOM_TO_GROW if self._varies else 1)

        # A loop that sets gradients to zero after its forward pass has those of the step before in
        # it. The first step has none to show that.
        old = self._gradients(cases) if not step.gradients else 0

        def beside():
            """Bytes that are there whatever is chosen."""
            return self._held(cases, step.around, results) + stays + old

        hidden = any(case.optional for case in cases)

        def room_left():
            return forecast.room_for(budget - beside(), hidden)

        free, now = room_left(), together(cases, lambda c: c.choice)
        wall = self.teller.take_wall()
        slack = (
            0 if self._varies else (1 - room.SAFETY) / 2 * step.around.limit
        )  # the next batch may be a little longer
        self._rooms[frozenset(cases)] = cases, free
        if new and not wall and now <= free + slack:
            return
        if not first and not wall and now <= free + slack:
            self._loosen(cases, step, forecast, budget - beside(), beside())
            return
        always = beside() + forecast.missed()
        far = first and step.around.is_card and len(forecast.seen) == 1
        far = far and free - now > FAR * step.around.limit
        if self.failed:
            free = min(free, BELOW * together(cases, lambda c: c.candidates[0]))
        taken = cheapest_if_equal(cases, free)
        lacks = together(cases, taken.get) > free or self._is_equal_without_state(
            [case.candidates for case in cases if case.amplifies],
            free,
            any(case.amplifies for case in cases),
        )
        if lacks and self._send_state_away(step.around):
            free = room_left()
            always, taken = beside() + forecast.missed(), cheapest_if_equal(cases, free)
        taken = self._fitting_elsewhere(cases, taken, free, now)
        ran = free < now <= together(cases, taken.get)  # nothing fits for sure, and this did
        ran = ran and any(case.choice.remedies() for case in cases)
        if ran or self._ran_equal(cases, taken, step):
            taken = {case: case.choice for case in cases}
        if wall:
            taken = roomier(cases, taken, min(free, self._below(now, wall, step.around.limit)))
        if not first and all(case.choice is choice for case, choice in taken.items()):
            return
        self._settle_derived(free - together(cases, taken.get))
        middle = half_way(cases, taken) if far else None
        self._use(middle or taken)
        if first:
            self._step.observe(step.around, self._gradients(cases))
        if middle:
            return  # the next step is watched too
        total = always + together(cases, lambda c: c.choice)
        for case in cases:
            self._tell(case, int(total), step.around.limit)
            case.settled = True
        if first and self.worst:
            self.worst.save([case.module() for case in cases])

    def _may_be_followed_by_others(self, step):
        """Whether these calls are seen waiting together for the first time in a loop with several
        optimizers. A network that is trained by one of them may be called with others for the next
        one, and needs less room alone: nothing is loosened before the loop has come round.
        """
        together = frozenset(step.together)
        if step.around is None or together in self._seen or len(self._seen) >= MOST_KINDS:
            return False
        self._seen.add(together)
        return _has_several_optimizers()

    def _fitting_elsewhere(self, cases, taken, free, now):
        """Choices with which the other steps fit too that were seen with some of these calls; at
        the least those of now, with which they did.
        """

        for share in (0.75, 0.5, 0.25):
            if _fits(taken, self._rooms) or free <= now:
                return taken
            taken = cheapest_if_equal(cases, now + share * (free - now))
        return taken if _fits(taken, self._rooms) else {case: case.choice for case in cases}

    def _ran_equal(self, cases, taken, step):
        """Whether the step that was watched ran through with what is equal to the bit, where that
        matters, and what was chosen now is not, or runs twice what is differentiated again. What
        was seen to fit need not be predicted to: a library takes what memory there is, and does
        with less. Half of the usual reserve is left, because the next step may need more. On a CPU
        running out is the end: the whole reserve is left, and batches must not differ there.
        """
        if not any(case.amplifies or case.half for case in cases):
            return False
        if not step.around.is_card and self._varies:
            return False
        if not all(case.choice.bitwise for case in cases):
            return False
        worse = [
            not choice.bitwise
            or case.amplifies == AGAIN
            and runs_twice(choice)
            and not runs_twice(case.choice)
            for case, choice in taken.items()
        ]
        limit = step.around.limit
        most = (1 + room.SAFETY) / 2 * limit if step.around.is_card else self._budget(limit)
        return any(worse) and step.peak_of_passes() + self._state_to_come() <= most

    def _use(self, taken):
        for case, choice in taken.items():
            if case.choice is not choice:
                case.choice, case.proven = choice, 0
                self.checkpointing.use(case.module(), choice.checkpoint)

    def _loosen(self, cases, step, forecast, room, beside):
        """The first choice leaves room for what nobody has seen yet. After a step with it, what is
        left is used for cheaper choices that are no less exact. room: bytes for the choices;
        beside: bytes that are there whatever is chosen. On a CPU running out is the end, and where
        batches differ the next one may be longer.
        """
        around = step.around
        if self._loosened >= LOOSENINGS or self.factor < 1 or self._varies or self.worst:
            return
        if not around.is_card or not all(case.settled for case in cases):
            return
        if any(case.optional for case in cases):
            return  # how much of a peak was a work space that a library does without is not known
        most = step.predicted() + around.limit - around.kept()
        free = min(forecast.room_for_more(room, alike=False), most)
        more = min(forecast.room_for_more(room), most)
        if self.failed:
            whole = BELOW * together(cases, lambda c: c.candidates[0])
            free, more = min(free, whole), min(more, whole)
        if any(case.wants_spaces for case in cases):
            more = free  # what one step took says little of what others will
        # Of another kind nobody has seen how the allocator lays it out.
        taken = cheaper(cases, free - LOOSER * around.limit, more)
        others = {key: known for key, known in self._rooms.items() if key != frozenset(cases)}
        if taken is None or not _fits(taken, others):
            return
        self._loosened += 1
        self._use(taken)
        self._step.observe(around, self._gradients(cases))
        total = beside + forecast.missed() + together(cases, lambda c: c.choice)
        for case in cases:
            self._tell(case, int(total), around.limit)

    def _make_room_for_library(self, cases):
        """After a step that nobody watched: a request that failed meanwhile shows that a library
        lacked its work space, and an allocator that gives back what it kept in step after step
        has hardly any room to lay tensors out.
        """
        wall = self.teller.take_wall()
        if not (wall or self._looks < LOOKS) or not all(case.settled for case in cases):
            return
        around = room.of(next(next(iter(cases)).module().parameters()).device, self.limit)
        self._looks += 1
        self._pace.note(time.perf_counter(), around.flushes())
        now, taken = together(cases, lambda c: c.choice), {case: case.choice for case in cases}
        better, seconds = taken, self._pace.seconds()
        if wall:
            self._before = None
            better = roomier(cases, taken, self._below(now, wall, around.limit))
        elif self._before is not None:
            better = self._the_faster(taken, seconds, *self._before)
        elif self._pace.is_short() and seconds is not None:
            better = roomier(cases, taken, now - LOOSER * around.limit, WORTH_LOOSER)
            self._before = (taken, seconds) if better is not taken else None
        if better is not taken:
            self._pace = Pace()
            self._use(better)
            for case in cases:
                self._tell(case, 0, around.limit)

    def _the_faster(self, taken, seconds, before, needed):
        """What was tried for speed, or the choices before where it is no faster. seconds: of a step
        with what was tried, once that is known; needed: before.
        """
        if seconds is None:
            return taken
        self._before = None
        if seconds <= FASTER * needed or taken.keys() != before.keys():
            return taken
        self._looks = LOOKS
        return before

    def _below(self, now, wall, limit):
        """What a choice may be predicted to need so that a request does not fail again that failed
        with wall bytes, while choices were predicted to need so many.
        """
        return now - (max(wall, limit) - self._budget(limit))

    def _gradients(self, cases):
        return sum(room.gradients_of(case.module()) for case in cases)

    def _read(self, cases, step):
        """The Forecast for these calls, with what the step that was watched took."""
        forecast = self._forecasts.setdefault(frozenset(cases.items()), Forecast(UNSEEN))
        predicted = real = step.predicted()
        seen = None
        if not step.around.is_card:
            real = max(predicted, step.peak_of_passes() - step.held_before)
        else:
            real = step.peak_of_passes() - step.held_before
            # A library takes a work space where there is room, and does without where there is not.
            real = max(real - max(case.optional for case in cases), min(real, predicted))
            seen = real
            # What a loss is taken to need may be too much. The rest was measured.
            real = max(real, predicted - sum(case.beside for case in cases))
        forecast.read(predicted, real, seen)
        return forecast

    def _held(self, cases, around, results):
        """Bytes that are there whatever is chosen: held now, with optimizer state that is still to
        come. Gradients that are there already are counted with the choices, and so are results,
        which the loop lets go when it has the next ones.
        """
        held = around.held() + self._state_to_come() - results
        return held - self._gradients(cases)

    def _tell(self, case, total, limit):
        choice = case.choice
        fields = {
            "predicted": total,
            "limit": limit,
            "rows": case.rows,
            "pieces": choice.pieces,
            "checkpointed": len(choice.checkpoint),
            "twice": round(choice.twice, 3),
            "slower": round(choice.seconds / (case.candidates[0].seconds or 1) - 1, 3),
            "equivalence": case.plan.equivalence if case.plan and _was_cut(case) else "exact",
        }
        if _rounds(case):
            fields["amplifies"] = case.amplifies + case.rounding
        elif case.half and _was_cut(case):
            fields["amplifies"] = HALF
        words = "%s: %s" % (case.name, choice.words)
        for id in choice.remedies():
            self.say("applied", words, id=id, **fields)
        if not choice.remedies():
            self.say(
                "note", "%s: the whole batch fits as it is" % case.name, id="micro_batch", **fields
            )


def _if_graphs_stay(candidates, free):
    """What a backward pass computes again stays as long as its graph does. Where the script retains
    graphs, that is until the next ones are there, so what runs nothing twice is taken if it fits.
    """
    if not refers.script_says(RETAINS):
        return candidates
    once = [c for c in candidates if not runs_twice(c)]
    return once if any(c.needs <= free for c in once) else candidates


def _versions(args, kwargs):
    """Of the tensors that a call is given: whether it has changed one in place."""
    leaves = [t for t in tree.flatten((args, kwargs))[0] if is_tensor(t)]
    return [t._version for t in leaves if not t.is_inference()]


def _learning(module, before):
    """Which parameters a call changes, as that of a momentum encoder does, must be known to put
    them back. Compiled parts are not run for that: they would be compiled otherwise.
    """
    if any(type(m).__name__ == "OptimizedModule" for m in module.modules()):
        return contextlib.nullcontext()
    return before.learning()


def _all_away(case):
    """For a call of which nothing is known beforehand: all that is saved in host memory, where some
    of it stays; else None.
    """
    choice = case.choice
    if not (choice.offload or choice.keep) or choice.all_away or not case.settled:
        return None
    return dataclasses.replace(choice, offload=choice.offload or case.sent, all_away=True)


def _is_differentiated(args, kwargs):
    """Whether something is learnt through what a call is given."""
    return any(is_tensor(leaf) and leaf.requires_grad for leaf in tree.flatten((args, kwargs))[0])


def _has_convolutions(module):
    """Whether a library may want work spaces for it."""
    return any(isinstance(m, torch.nn.modules.conv._ConvNd) for m in module.modules())


def _work_space(module, call, inputs, around, rows):
    """Bytes of the largest work space that so many rows want."""
    args, kwargs = inputs.pick(list(range(rows)))
    return spaces.largest(module, call, args, kwargs, around)


def _is_coarse(module, plan):
    """Whether pieces differ by more than the rounding of full precision."""
    return plan is not None and plan.equivalence != "exact" or _is_half(module)


def _is_half(module):
    """Whether it computes in half precision now."""
    half = (torch.float16, torch.bfloat16)
    parameters = list(module.parameters())
    return autocast.is_on(parameters[0].device) or any(p.dtype in half for p in parameters)


def _is_on_card(module):
    return next(module.parameters()).is_cuda


# A policy's actions, a decoder's words: drawn from what the model gives. Data that a script makes
# by chance is not meant.
DRAWS = (
    r"\b(?:OneHot)?(?:Categorical(?:StraightThrough)?|Multinomial)\(|\bgumbel_softmax\("
    r"|\b(?:Bernoulli|Binomial)\((?:logits|probs)\s*="
    r"|\b(?:multinomial|bernoulli)\([^\n]*(?:logits|prob|softmax|sigmoid)"
)

# A loss that matches predictions with targets, or picks the hardest samples.
MATCHES = (
    r"\blinear_sum_assignment\(|\bloss\w*(?:\.\w+\([^()\n]*\))*\.(?:topk|sort)\("
    r"|\b(?:topk|sort)\(\s*loss"
)


def _amplifies():
    """Why small differences grow in this training, as far as that can be seen; or nothing. AGAIN is
    read from the script, because it shows itself only in the first backward pass.
    """
    optimizers = room.optimizers()
    if refers.script_says(r"create_graph\s*=\s*True"):
        return AGAIN
    if any(type(o).__name__ == "LBFGS" for o in optimizers):
        return "LBFGS takes its steps from differences of gradients"
    if refers.script_says(DRAWS):
        return "samples are drawn from the model's own results, and a rounding error can change one"
    if refers.script_says(MATCHES):
        return "the loss picks among the model's results, and a rounding error can change a pick"
    return "several optimizers answer each other" if _has_several_optimizers() else ""


def _has_several_optimizers():
    """Whether there are optimizers that share no parameter."""
    apart: list = []
    for optimizer in room.optimizers():
        own = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if all(own.isdisjoint(others) for others in apart):
            apart.append(own)
    return len(apart) > 1


def _fits(chosen, rooms):
    """Whether the steps fit with these choices that were seen with some of the same calls. rooms:
    which calls wait together -> (cases with counts, bytes for them).
    """
    return all(
        together(cases, lambda c: chosen.get(c, c.choice)) <= most
        for cases, most in rooms.values()
        if not chosen.keys().isdisjoint(cases)
    )


def _rounds(case):
    """Whether the result is not equal to the bit in a training where that matters."""
    if case.choice.bitwise and not case.cut:
        return False
    return case.amplifies and case.plan is not None and case.plan.equivalence == "exact"


def _was_cut(case):
    """Whether pieces of the batch are run, or were in the first step: that stays in the weights."""
    return case.cut or case.choice.share is not None


def _make_room():
    """After something ran out and was caught: what its frames held is let go."""
    gc.collect()
    torch.cuda.empty_cache()


def _size(args, kwargs) -> Size:
    """Elements of the call's largest tensor, and of each that it is given by itself or in a dict: a
    choice holds until a batch comes that is larger. The largest one may be a state that never
    grows, beside sequences that do.
    """
    given = [*args, *kwargs.values()]
    given += [v for one in given if isinstance(one, collections.abc.Mapping) for v in one.values()]
    every = [leaf.numel() for leaf in tree.flatten((args, kwargs))[0] if is_tensor(leaf)]
    return (max(every, default=0), *[one.numel() for one in given if is_tensor(one)])


def _growth(before: Size, now: Size) -> float:
    """Times its size that the tensor has which grew most. Calls with other arguments are compared
    by the largest of all.
    """
    if not before:
        return float("inf")
    pairs = list(zip(before, now)) if len(before) == len(now) else [(before[0], now[0])]
    return max((b / a if a else float("inf")) if b else 0.0 for a, b in pairs)


def _largest(before: Size, now: Size) -> Size:
    if len(before) != len(now):
        return now if not before or now[0] > before[0] else before
    return tuple(max(pair) for pair in zip(before, now))
