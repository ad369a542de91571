"""Micro-batching inside a call: the outermost module sees the batch in pieces, the loop sees one
call.

Two ways, each exact up to the order of sums: - *recompute*: every piece runs under checkpointing,
so one piece's activations live at a time; works for any loss the loop computes from the outputs.
The last pieces may be kept, as far as memory allows: they are what backward needs first. -
*accumulate*: where the module returns the loss itself, each piece's backward pass runs right after
its forward pass and its gradients wait, scaled, for the loop's backward(): no recomputation, as in
accumulation written by hand.
"""

import dataclasses
import functools
import weakref
from typing import Any, Callable, Dict, Optional, Set, Tuple

import torch

from ... import oom
from ..batch import draws, losses, tryout
from ..batch.inputs import Cannot, even, readings
from ..batch.joined import Joined
from ..batch.losses import weighted
from ..batch.outputs import LOSS, ROWS, SAME
from ..calls import generators, lent, tree
from ..calls.modules import name_of, one_line, worth_it
from . import accumulate, checkpointing


@dataclasses.dataclass(frozen=True)
class Share:
    """How a module's batches are split."""

    rows: int  # samples of a micro-batch
    keep: int = 0  # micro-batches whose activations are kept rather than computed again
    elements: Optional[int] = None  # of one sample when this was decided: longer ones go fewer

    def now(self, inputs: Any) -> Tuple[int, int]:
        """(rows of a piece, pieces to keep) for this call."""
        size = inputs.elements_per_row()
        if not self.elements or not size or size == self.elements:
            return self.rows, self.keep
        rows = max(1, int(self.rows * self.elements / size))
        kept_rows = int(self.keep * self.rows * self.elements / size)
        return rows, kept_rows // rows


class MicroBatch:
    """Runs outermost calls in pieces. choose(module, inputs, plan) gives the Share, or None for no
    cut. check(module, call, inputs) raises Cannot where a module does not bear checkpointing;
    needed where nobody measures the module.
    """

    def __init__(self, say: Any, choose: Any, check: Any = None) -> None:
        self.say, self.choose, self.check = say, choose, check
        # module -> {signature: Plan, or why there is none}
        self._plans: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        # modules whose backward pass was seen to bear checkpointing
        self._recomputable: weakref.WeakSet[Any] = weakref.WeakSet()
        self._said: Set[Any] = set()

    def __call__(
        self,
        module: torch.nn.Module,
        call: Callable[..., Any],
        args: Tuple[Any, ...],
        kwargs: Dict[str, Any],
    ) -> Any:
        if not worth_it(module):
            return call(*args, **kwargs)
        try:
            return self.run(module, call, args, kwargs, self._tell)
        except Cannot as reason:
            self.decline(module, reason)
            return call(*args, **kwargs)

    def run(
        self,
        module: torch.nn.Module,
        call: Callable[..., Any],
        args: Tuple[Any, ...],
        kwargs: Any,
        tell: Any = None,
    ) -> Any:
        """The call in pieces. Raises Cannot, with everything as before, where that is not possible.
        tell: given where nobody has measured the module: called with it, the plan and the rows of
        the pieces before they are run.
        """
        plan, inputs = self.plan(module, call, args, kwargs)
        share = self.choose(module, inputs, plan)
        rows, keep = share.now(inputs) if share else (inputs.rows, 0)
        sizes = even(inputs.rows, rows)
        if len(sizes) < 2:
            return call(*args, **kwargs)
        if tell:
            self._check_recompute(module, call, plan, inputs)
            tell(module, plan, sizes)
        states = generators.read(module)
        try:
            return self._in_pieces(module, inputs.in_order(call), plan, inputs, sizes, keep)
        except Cannot:  # only a run shows that pieces do not fit together
            generators.put_back(states)
            raise
        except Exception as why:
            if oom.wall(why):
                raise
            generators.put_back(
                states
            )  # the whole batch, run next, shows whether the fault is ours
            raise Cannot(
                "a piece of the batch fails: %s: %s" % (type(why).__name__, one_line(why))
            ) from None

    def plan(
        self,
        module: torch.nn.Module,
        call: Callable[..., Any],
        args: Tuple[Any, ...],
        kwargs: Dict[str, Any],
    ) -> Any:
        """The Plan for this way of calling the module, and the call's Inputs; raises Cannot."""
        kwargs = _without_cache(module, kwargs)
        last = None
        for read in readings(args, kwargs):
            try:
                inputs = read()
                return self._plan_for(module, call, inputs), inputs
            except Cannot as reason:
                last = last or str(
                    reason
                )  # the exception itself would keep this call's frames, and their tensors
        raise Cannot(last)

    def forget(self, module: torch.nn.Module) -> None:
        """Its calls are not what they were: plans are made anew."""
        self._plans.pop(module, None)

    def _plan_for(self, module: torch.nn.Module, call: Callable[..., Any], inputs: Any) -> Any:
        """A plan for this way of calling the module: tried out once in each mode, remembered."""
        known = self._plans.setdefault(module, {})
        key = (inputs.signature(), module.training, torch.is_grad_enabled())
        if key not in known:
            try:
                inputs.refuse_indices()
                known[key] = Plan(tryout.try_out(module, call, inputs))
            except Cannot as reason:
                if inputs.rows < 2:
                    raise  # says nothing about other batches
                known[key] = str(reason)
        if isinstance(known[key], str):
            raise Cannot(known[key])
        return known[key]

    def _in_pieces(
        self,
        module: torch.nn.Module,
        call: Callable[..., Any],
        plan: Any,
        inputs: Any,
        sizes: Any,
        keep: Any,
    ) -> Any:
        parameters = lent.AsCalled([module])
        work = _cut(module, call, plan, inputs, parameters, sizes)
        states = generators.read(module)
        begin = (
            functools.partial(generators.put_back, states) if plan.again else None
        )  # before each piece
        if not (plan.accumulates and torch.is_grad_enabled()):
            return _recompute(work, keep, begin)
        if plan.scale.is_needed_first():
            result = _recompute(work, keep, begin)
            plan.loss_of(result).register_hook(plan.scale.remember)
            return result
        try:
            return accumulate.run(work, begin)
        except accumulate.NotHere as reason:
            plan.accumulates = False
            self.say("note", "%s: recomputes: %s" % (name_of(module), reason), id="micro_batch")
        generators.put_back(states)
        return _recompute(work, keep, begin)

    def _check_recompute(
        self, module: torch.nn.Module, call: Callable[..., Any], plan: Any, inputs: Any
    ) -> None:
        if torch.is_grad_enabled() and not plan.accumulates and module not in self._recomputable:
            self.check(module, call, inputs)
            self._recomputable.add(module)

    def _tell(self, module: torch.nn.Module, plan: Any, sizes: Any) -> None:
        if (id(module), "applied") not in self._said and torch.is_grad_enabled():
            self._said.add((id(module), "applied"))
            self.say(
                "applied",
                "%s: batch of %d split into %d micro-batches"
                % (name_of(module), sum(sizes), len(sizes)),
                id="micro_batch",
                rows=sum(sizes),
                pieces=len(sizes),
                equivalence=plan.equivalence,
            )

    def decline(self, module: torch.nn.Module, reason: Any) -> None:
        if (id(module), str(reason)) not in self._said:
            self._said.add((id(module), str(reason)))
            self.say("declined", "%s: %s" % (name_of(module), reason), id="micro_batch")


def fixed(size: Any = None, pieces: Any = None, keep: Any = 0) -> Any:
    """A choice made beforehand: pieces of size rows, or so many pieces of the largest batch
    seen.
    """
    largest: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def choose(module: torch.nn.Module, inputs: Any, plan: Any) -> Any:
        if size:
            return Share(size, keep)
        largest[module] = max(inputs.rows, largest.get(module, 0))
        return Share(-(-largest[module] // pieces), keep)

    return choose


class Plan:
    """How one way of calling a module is cut: what was found out about each output, and which way
    it is run.
    """

    def __init__(self, findings: Any) -> None:
        self.outputs, self.random = findings.outputs, findings.random
        self.autocast = findings.autocast  # they were found out under it
        self.accumulates = sum(o.kind == LOSS for o in findings.outputs) == 1
        # Draws that do not depend on the rows (whether to skip a layer) are repeated for each
        # piece.
        self.draws = findings.draws
        self.again = findings.same_draws or findings.draws is not None
        self.equivalence = "expected" if findings.random and not self.again else "exact"
        self.rounding = max([o.rounding for o in findings.outputs], default=0.0)
        self.scale = accumulate.Scale()
        self.assembles = False  # large results beside the loss are put together in each call
        self.left_out = 0  # how often they were not
        self.reads = 0  # and were read all the same

    def note_read(self) -> None:
        self.reads += 1

    def loss_of(self, result: Any) -> Any:
        leaves = tree.flatten(result)[0]
        return next(leaf for leaf, o in zip(leaves, self.outputs) if o.kind == LOSS)

    def loss_rules(self) -> Any:
        return [c.name for o in self.outputs if o.kind == LOSS for c in o.candidates]

    def shares(
        self, module: torch.nn.Module, call: Callable[..., Any], inputs: Any, pieces: int
    ) -> Any:
        """The factor of each piece's loss, for each output that is a loss: {leaf index:
        [share]}.
        """
        result = {}
        for index, output in enumerate(self.outputs):
            if output.kind != LOSS:
                continue
            if not losses.agree(output.candidates, pieces):
                left = tryout.narrow_down(
                    module, call, inputs, index, output.candidates, self.autocast
                )
                left = losses.decided(left, pieces)
                if not left:
                    raise Cannot(
                        "how the loss %s weighs its samples could not be found out" % output.name
                    )
                output.candidates = left
            result[index] = output.candidates[0].shares_to_use(pieces)
        return result


def _cut(
    module: torch.nn.Module, call: Any, plan: Any, inputs: Any, parameters: Any, sizes: Any
) -> accumulate.Pieces:
    pieces = [inputs.flat(p) for p in inputs.cut(sizes)]
    shares = plan.shares(module, call, inputs, [leaves for leaves, _ in pieces])
    calls = [
        draws.of_piece(call, plan.draws, sum(sizes[:i]), rows, inputs.rows)
        for i, rows in enumerate(sizes)
    ]
    again = functools.partial(_cut, module, call, plan, inputs, parameters)
    return accumulate.Pieces(plan, parameters, sizes, calls, pieces, shares, again)


def _recompute(work: accumulate.Pieces, keep: Any, begin: Any) -> Any:
    builder = Results(work)
    grad = torch.is_grad_enabled()
    for i, (leaves, rebuild) in enumerate(work.pieces):
        if begin:
            begin()
        if grad and i < len(work.pieces) - keep:
            out = checkpointing.checkpointed(work.calls[i], rebuild(leaves), (), work.parameters)
        else:
            args, kwargs = rebuild(leaves)
            out = work.calls[i](*args, **kwargs)
        builder.add(i, work.sizes[i], out)
        del out
    return builder.result()


class Results:
    """Collects the pieces' results into one."""

    def __init__(self, work: accumulate.Pieces) -> None:
        self.plan, self.shares = work.plan, work.shares
        self.slots = [o.joined(sum(work.sizes)) for o in self.plan.outputs]
        self.rebuild: Any = None

    def add(self, piece: Any, rows: int, out: Any) -> None:
        leaves, rebuild = tree.flatten(out)
        if len(leaves) != len(self.slots):
            raise Cannot("micro-batches give results of different structure")
        self.rebuild = self.rebuild or rebuild
        for index, (leaf, output) in enumerate(zip(leaves, self.plan.outputs)):
            if output.kind == ROWS:
                self.slots[index].add(leaf, rows)
            elif output.kind == LOSS:
                term = weighted(leaf, self.shares[index][piece])
                self.slots[index] = term if piece == 0 else self.slots[index] + term
            elif piece == 0 and output.kind == SAME:
                self.slots[index] = leaf

    def result(self) -> Any:
        return self.rebuild([s.result() if isinstance(s, Joined) else s for s in self.slots])


def _without_cache(module: torch.nn.Module, kwargs: Dict[str, Any]) -> Any:
    """A key-value cache made while training is thrown away by everybody; transformers' models can
    leave it out.
    """
    if (
        torch.is_grad_enabled()
        and "use_cache" not in kwargs
        and "past_key_values" not in kwargs
        and _takes(type(module).forward, "use_cache")
    ):
        return dict(kwargs, use_cache=False)
    return kwargs


@functools.lru_cache(maxsize=None)
def _takes(forward: Callable[..., Any], name: str) -> bool:
    import inspect

    try:
        return name in inspect.signature(forward).parameters
    except (TypeError, ValueError):
        return False
