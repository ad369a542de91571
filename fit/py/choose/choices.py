"""The ways in which a module's call can be made smaller, with what each needs and costs.

1. the module returns its loss: pieces whose backward pass follows at once (nothing is computed
twice); 2. some parts are checkpointed, the fattest first, as many as needed; 3. the batch in
pieces, as many of them recomputed as needed; 4. parts checkpointed and the batch in pieces; 5. the
whole call recomputed: of use where several calls wait for one backward pass; 6. what is saved waits
in host memory: exact for every module, and slow.
"""

import dataclasses
from typing import Any, Collection, Iterator, List, Optional, Sequence, Tuple

from ..batch.inputs import Inputs
from ..measure.cost import Cost
from ..measure.spaces import Moment
from ..remedies import accumulate, microbatch
from ..remedies.checkpointing import Part

# bytes that a loss over the whole batch makes for each element of the outputs beside the one
# gradient that
WORK_FOR_LOSS = 8
# was measured: log-probabilities and another gradient, fp32
WORK_IN_HALF = 12  # and a copy in fp32 where the outputs are in half precision
# times its seconds that a choice is worth which adds in another order, as accumulation by hand does
ROUNDING = 1.05
# the same where pieces draw other random numbers
COARSE = 1.6
# share of a step that each piece costs at the least: eight models on a card took 1.02 to 1.21 times
# as long in two pieces, half of them more than 1.06
A_PIECE = 0.04
# the same where each piece draws random numbers for the whole batch
DRAWING = 0.04
# bytes a second to host memory or back, at the best; what was measured counts where it is slower
TRAVEL = 8e9
# share of a work space that must be free besides: it has to lie in one piece
SCATTERED = 0.1
# times the bytes of a graph's nodes that a checkpointed piece keeps: an object beside each node for
# what it saved
HOLDERS = 2.0
MOST_ORDERED = 32  # parts up to which it is worth looking for the order that saves most
MOST_AWAY = 0.95  # share of what is saved that leaves where everything large does
AWAY = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, MOST_AWAY)  # shares that are thought of


@dataclasses.dataclass(eq=False)
class Choice:
    """One way to fit."""

    words: str  # what the user is told
    needs: float  # bytes at the worst moment of the call and its backward pass
    stays: float  # bytes that wait between the two
    twice: float = 0.0  # share of the forward pass that is run twice
    seconds: float = 0.0  # of a step
    checkpoint: Sequence[Part] = ()
    share: Optional[microbatch.Share] = None  # how the batch is split, if it is
    pieces: int = 1  # micro-batches
    whole: bool = False  # the whole call is checkpointed
    offload: float = 0.0  # bytes that wait in host memory
    all_away: bool = False  # and whatever more there is
    results: float = 0.0  # bytes of results beside the loss that may come late
    late: bool = False  # they are left out of what is needed: nobody reads them
    keep: Optional[float] = None  # bytes that stay at the most, however long a batch is
    kind: str = ""  # choices of one kind differ in how far they go only
    coarse: bool = False  # its pieces draw other random numbers

    @property
    def bitwise(self) -> bool:
        """Kernels see the same shapes, so that results are equal to the bit."""
        return self.share is None

    @property
    def price(self) -> float:
        """What choices are compared by."""
        return self.seconds * (1 if self.bitwise else COARSE if self.coarse else ROUNDING)

    def with_late(self, late: bool) -> "Choice":
        """The same where results beside the loss are left out, or put together."""
        if late == self.late or not self.results:
            return self
        more = -self.results if late else self.results
        needs, stays = self.needs + more, self.stays + more
        return dataclasses.replace(self, needs=needs, stays=stays, late=late)

    def remedies(self) -> List[str]:
        """Ids of the remedies that this is made of."""
        return [
            id
            for id, on in (
                ("micro_batch", self.share),
                ("checkpointing", self.checkpoint or self.whole),
                ("activation_offload", self.offload),
            )
            if on
        ]


def as_it_is() -> Choice:
    """Nothing is done, and nothing is known of what that needs."""
    return Choice("as it is", 0, 0)


def _choice(
    words: str,
    needs: float,
    stays: float,
    twice: float,
    cost: Cost,
    rows: int,
    checkpoint: Sequence[Part] = (),
    **more: Any,
) -> Choice:
    """A Choice with its seconds."""
    choice = Choice(words, needs, stays, twice, checkpoint=checkpoint, **more)
    choice.seconds = _seconds(cost, rows, choice.pieces) * (
        1 + cost.forward * twice
    ) + choice.offload * max(2 / TRAVEL, cost.travel)
    return choice


def _seconds(cost: Cost, rows: int, pieces: int) -> float:
    """A piece costs something, whatever a measurement of milliseconds says, and takes its least
    time however small it is.
    """
    fixed = max(cost.time_fixed, A_PIECE * cost.time_row * rows)
    return fixed * pieces + max(cost.floor * pieces, cost.time_row * rows)


def extra(cost: Cost, rows: int) -> float:
    """Bytes that a loss outside of the module is taken to need, until that has been seen."""
    return (
        0
        if cost.has_loss
        else (WORK_IN_HALF if cost.half else WORK_FOR_LOSS) * cost.elements_row * rows
    )


def all_of(
    inputs: Inputs, plan: Optional[microbatch.Plan], cost: Cost, offload: bool
) -> Iterator[Choice]:
    """Every choice that is thought of; the first is to change nothing. offload: whether host memory
    may be used.
    """
    rows = inputs.rows
    accumulates = plan is not None and plan.accumulates
    beside, outputs = extra(cost, rows), cost.output_row * rows
    saved = cost.saved_fixed + cost.saved_row * rows
    yield _choice(
        "as it is",
        cost.peak_fixed + cost.peak_row * rows + beside,
        saved + outputs,
        0.0,
        cost,
        rows,
    )
    for parts in cost.grains:
        yield from _some_parts(rows, cost, beside, parts)
    if cost.recomputable:
        yield _choice(
            "activation checkpointing of the whole call",
            cost.peak_fixed + cost.peak_row * rows + outputs + beside,
            outputs,
            1.0,
            cost,
            rows,
            whole=True,
        )
    if plan is not None and (accumulates or cost.recomputable):
        paid, more = _drawing(plan, cost, beside, rows)
        late = accumulates and outputs >= accumulate.LARGE
        yield from _pieces(inputs, accumulates, paid, more, cost.peak_row, cost.saved_row, (), late)
        for parts in cost.grains[:1]:
            saved_row = max(cost.saved_row - _gain(parts), 0)
            peak_row = max(
                cost.peak_row - _gain(parts) + max(p.saved for p in parts), cost.output_row
            )
            yield from _pieces(inputs, accumulates, paid, more, peak_row, saved_row, parts, late)
    if offload:
        yield from _offloaded(rows, cost, beside)


def with_spaces(
    candidates: Sequence[Choice], moments: Sequence[Moment], rows: int
) -> Iterator[Choice]:
    """The same choices, those that are equal to the bit with room for the work spaces that
    libraries want. moments: of measure.spaces; without any, the choices as they are. What lies
    before a convolution is held in both passes, what comes after it is not there yet, or gone.
    """
    for choice in candidates:
        if choice.bitwise and moments:
            stays = candidates[0].stays if choice.whole else choice.stays
            inside = max([part.saved for part in choice.checkpoint], default=0) * rows
            wants = max(stays * m.before + inside + m.bytes + SCATTERED * m.space for m in moments)
            choice = dataclasses.replace(choice, needs=max(choice.needs, wants))
        yield choice


def _drawing(plan: microbatch.Plan, cost: Cost, beside: float, rows: int) -> Tuple[Cost, float]:
    """(cost, bytes beside) for pieces, each of which may draw for the whole batch."""
    if plan.draws is None:
        return cost, beside
    fixed = max(cost.time_fixed, DRAWING * cost.time_row * rows)
    return dataclasses.replace(cost, time_fixed=fixed), beside + plan.draws.row * rows


def _gain(parts: Sequence[Part]) -> float:
    return sum(p.gain for p in parts)


def _some_parts(rows: int, cost: Cost, beside: float, parts: Sequence[Part]) -> Iterator[Choice]:
    """Some of the parts, more and more of them; the share run twice is taken as their share of what
    is saved.
    """
    total = max(cost.saved_row, sum(p.saved for p in parts)) or 1
    seen: List[Any] = []
    for order in _orders(cost, parts):
        for count in range(1, len(order) + 1):
            chosen = set(order[:count])
            if chosen in seen:
                continue
            seen.append(chosen)
            taken = [parts[i] for i in sorted(chosen)]
            at_loss = (cost.peak_row - _gain(taken)) * rows + beside
            needs = cost.peak_fixed + max(at_loss, _at_recompute(cost, parts, chosen) * rows)
            stays = (cost.saved_row - _gain(taken) + cost.output_row) * rows + cost.saved_fixed
            yield _choice(
                "activation checkpointing in %d of %d blocks" % (count, len(order)),
                needs,
                stays,
                sum(p.saved for p in taken) / total,
                cost,
                rows,
                taken,
                kind="blocks of %d" % len(order),
            )


def _orders(cost: Cost, parts: Sequence[Part]) -> Iterator[List[int]]:
    """The fattest first; and those first that make the peak smallest: a fat part at the end is run
    again while everything before it is still there, and saves nothing then.
    """
    fattest = sorted(range(len(parts)), key=lambda i: parts[i].gain, reverse=True)
    yield fattest
    if len(parts) > MOST_ORDERED:
        return
    chosen: List[Any] = []
    while len(chosen) < len(parts):

        def peak(i: int) -> float:
            some = {*chosen, i}
            at_loss = cost.peak_row - _gain([parts[j] for j in some])
            return max(at_loss, _at_recompute(cost, parts, some))

        chosen.append(min([i for i in fattest if i not in chosen], key=peak))
    yield chosen


def _at_recompute(cost: Cost, parts: Sequence[Part], chosen: Collection[int]) -> float:
    """Bytes a row while the fattest moment of the recompute lasts: what was saved before the part,
    the part itself and what a backward pass needs beside it: two gradients as large as the largest
    tensor inside, at the least. What is saved outside parts is taken to come before them.
    """
    before = max(0, cost.saved_row - sum(p.saved for p in parts))
    beside = max(0, cost.peak_row - cost.saved_row - 2 * cost.output_row)
    most = 0.0
    for i, part in enumerate(parts):
        if i in chosen:
            most = max(most, before + part.saved + max(beside, 2 * part.largest))
        before += part.given if i in chosen else part.saved
    return most


def _pieces(
    inputs: Inputs,
    accumulates: bool,
    cost: Cost,
    beside: float,
    peak_row: float,
    saved_row: float,
    parts: Sequence[Part],
    late: bool = False,
) -> Iterator[Choice]:
    rows, elements = inputs.rows, inputs.elements_per_row()
    outputs = cost.output_row * rows
    inner = 1.0 if parts else 0.0
    for count in _counts(rows):
        size = -(-rows // count)
        count = -(-rows // size)
        graphs = 0 if accumulates else HOLDERS * (count - 1) * cost.graph  # of pieces that wait
        one = cost.peak_fixed + peak_row * size + outputs + beside + graphs
        words = "batch of %d split into %d micro-batches%s" % (
            rows,
            count,
            ", activation checkpointing in %d blocks" % len(parts) if parts else "",
        )
        if accumulates:
            yield _choice(
                words,
                one,
                outputs + cost.peak_fixed,
                inner,
                cost,
                rows,
                parts,
                share=microbatch.Share(size, 0, elements),
                pieces=count,
                results=outputs if late else 0.0,
                kind="pieces with %d blocks" % len(parts),
            )
            continue
        for keep in range(0, count, max(1, count // 16)):
            stays = outputs + cost.saved_fixed + saved_row * size * keep + graphs
            kept = (
                graphs
                + cost.peak_fixed
                + beside
                + outputs
                + saved_row * size * keep
                + max(0, peak_row - saved_row) * size
            )
            said = words + (
                "; activations are kept for %d of them and recomputed for %d" % (keep, count - keep)
                if keep
                else ""
            )
            share = microbatch.Share(size, keep, elements)
            yield _choice(
                said,
                max(one, kept),
                stays,
                inner + (count - keep) / count,
                cost,
                rows,
                parts,
                share=share,
                pieces=count,
                kind="pieces with %d blocks" % len(parts),
            )


def _counts(rows: int) -> List[int]:
    """Numbers of pieces worth trying: fine at first, then coarser. Hundreds of pieces help
    nobody.
    """
    counts = [
        c for c in (2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256) if c <= rows
    ]
    return sorted(set(counts + [rows])) if 1 < rows <= 256 else counts


def _offloaded(rows: int, cost: Cost, beside: float) -> Iterator[Choice]:
    """A part of what is saved waits on the host, alone or beside parts that are checkpointed. What
    is needed beside all of it was measured: it may be largest when little has been saved yet.
    """
    alone = cost.away_fixed + cost.away_row * rows + beside
    for parts in [()] + cost.grains[:1]:
        saved = max(0, cost.saved_row - _gain(parts)) * rows
        inside = max([p.saved for p in parts], default=0) * rows
        for share in AWAY:
            stays = (1 - share) * saved
            words = "%d %% of the activations offloaded to host memory%s" % (
                100 * share,
                ", activation checkpointing in %d blocks" % len(parts) if parts else "",
            )
            yield _choice(
                words,
                alone + stays + inside,
                stays + cost.saved_fixed + cost.output_row * rows,
                1.0 if parts else 0.0,
                cost,
                rows,
                parts,
                offload=share * saved,
                all_away=share == MOST_AWAY,
                kind="offload with %d blocks" % len(parts),
            )
