"""What a row of the batch costs: the module runs forward and backward on a few rows, on twice as
many, and on twice as many again where there is room.

Two sizes tell what grows with the batch from what does not (gradients, workspaces, half copies of
weights). With too few rows the peak is where the last gradients are made; with many it is at the
loss, and grows faster: the larger two sizes count. Everything is put back afterwards: random
generators, buffers, gradients.
"""

import contextlib
import dataclasses
import gc
import time
from typing import Any, Callable, List

import torch

from ..batch.inputs import Cannot, is_tensor
from ..calls import tree, weights
from ..remedies import activation_offload
from ..remedies.checkpointing import Part
from . import speed
from .parts import Record, take_apart
from .run import by_grad, differentiate, one, put_back, way_to_gradients

FORWARD = 1 / 3  # share of a step that the forward pass is taken for where that was not timed


@dataclasses.dataclass
class Cost:
    """What a call costs. Bytes unless said otherwise; `row`: for each sample of the batch, `fixed`:
    for a micro-batch of any size.
    """

    saved_fixed: float  # kept from forward to backward
    saved_row: float
    peak_fixed: float  # of forward and backward, gradients included
    peak_row: float
    time_fixed: float  # seconds of both passes
    time_row: float
    output_row: float
    elements_row: float  # elements of the outputs
    half: bool  # outputs are in half precision
    has_loss: bool  # a loss is among them
    grains: List[List[Part]]  # the module taken apart, coarsely and finely; bytes of one sample
    away_fixed: float  # the peak while what is saved waits in host memory
    away_row: float
    travel: float  # seconds of a byte there and back
    graph: float = 0.0  # of the nodes of one piece's graph, of any size; not on a card
    repeats: bool = True  # a second run gives the same results
    recomputable: bool = True  # and the backward pass bears checkpointing
    floor: float = 0.0  # seconds that a micro-batch takes at the least, where that is known
    forward: float = FORWARD  # share of both passes' seconds that the forward pass takes


GRAINS = (1 / 4, 1 / 14)  # of what is saved, the most that one part may save


def cost(
    module: torch.nn.Module,
    call: Callable[..., Any],
    inputs: Any,
    room: Any,
    apart: bool = True,
    away: bool = False,
    space: Any = lambda rows: 0,
) -> Any:
    """Measures on an eighth of the batch, at least one row and two rows, and on at most a quarter.
    apart: look for parts to checkpoint; away: see what is needed while all that is saved waits on
    the host; space: bytes of the largest work space for so many rows. It does not grow as rows do,
    and a library does without it, so it is not part of what is needed.
    """
    few = max(2 if inputs.rows >= 4 else 1, inputs.rows // 16)  # one row alone upsets BatchNorm
    many = min(2 * few, inputs.rows)
    if many == few:
        raise Cannot("the batch has one row")
    try:
        first, second = _twice(module, call, inputs, few, many, room)
    except torch.cuda.OutOfMemoryError:
        first = None
    if first is None:
        gc.collect()  # frames of what ran out hold its tensors, some of them in cycles
        few, many = 1, 2
        first, second = _twice_or_never(module, call, inputs, room)
    larger = _larger(module, call, inputs, many, second, room)
    if larger is not None:
        few, first, many, second = many, second, 2 * many, larger
    elsewhere = away and _away(module, call, inputs, few, many, room, second, space)
    for rows, seen in ((few, first), (many, second)):
        seen.peak = max(seen.peak - space(rows), seen.least)
    lines = [
        _line(few, getattr(first, what), many, getattr(second, what))
        for what in ("saved", "peak", "seconds")
    ]
    size, elements, half, has_loss = second.outputs
    lines[1] = _at_least(lines[1], lines[0][1] + (size + second.late) / many, many, second.peak)
    beside, travel = elsewhere or (lines[1], 0.0)
    grains = (
        _grains(module, _growing(first.records, few, second.records, many), second.saved, many)
        if apart and second.repeats
        else []
    )
    saved, peaks, seconds = lines
    known = speed.of(module, call, inputs, few, peaks, room, second.way)
    if known is not None:
        seconds = 0.0, known.row
    return Cost(
        saved_fixed=saved[0],
        saved_row=saved[1],
        peak_fixed=peaks[0],
        peak_row=peaks[1],
        time_fixed=seconds[0],
        time_row=seconds[1],
        output_row=size / many,
        elements_row=elements / many,
        half=half,
        has_loss=has_loss,
        grains=grains,
        away_fixed=beside[0],
        away_row=beside[1],
        travel=travel,
        graph=_line(few, first.graph, many, second.graph)[0],
        repeats=second.repeats,
        recomputable=second.repeats and not second.once and not weights.changed(module),
        floor=known.floor if known is not None else 0.0,
        forward=known.forward if known is not None else FORWARD,
    )


def _twice(
    module: torch.nn.Module, call: Callable[..., Any], inputs: Any, few: Any, many: int, room: Any
) -> Any:
    try:
        with put_back(module) as state:
            with state.parameters.learn():
                way, before = way_to_gradients(module, call, inputs, few, room)
            # What a second run would find as it was; everything else must show itself now.
            state.again()
            first, second = (
                one(module, call, inputs, few, room, way),
                one(module, call, inputs, many, room, way),
            )
            first.repeats = second.repeats = before.same_results(first)
            second.way = way
            return first, second
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as why:
        raise Cannot(
            "the module does not run on a part of the batch: %s" % type(why).__name__
        ) from None


def _larger(
    module: torch.nn.Module, call: Callable[..., Any], inputs: Any, rows: int, seen: Any, room: Any
) -> Any:
    """What a run of twice as many rows shows, or None where the batch or the room is too small for
    that.
    """
    if inputs.rows < 4 * rows or room.held() + 2.5 * seen.peak > room.limit:
        return None
    try:
        with put_back(module):
            larger = one(module, call, inputs, 2 * rows, room, seen.way)
    except Exception:  # what is known of fewer rows has to do
        return None
    larger.repeats, larger.way = seen.repeats, seen.way
    return larger


def _growing(first: Any, few: Any, second: Any, many: int) -> Any:
    """Records of the larger run without what is there for any number of rows, such as half copies
    of weights.
    """
    found = {}
    for key, record in second.items():
        found[key] = grown = Record(record.order)
        grown.once, grown.twice, grown.largest = record.once, record.twice, record.largest
        for what in ("saved", "given"):
            b = getattr(record, what)
            setattr(
                grown,
                what,
                max(0, b - getattr(first[key], what)) * many // (many - few) if key in first else b,
            )
    return found


def _away(
    module: torch.nn.Module,
    call: Callable[..., Any],
    inputs: Any,
    few: Any,
    many: int,
    room: Any,
    seen: Any,
    space: Any,
) -> Any:
    """The line of the peak with all that is saved in host memory, and the seconds that a byte takes
    there and back; None where that does not work. seen: of as many rows, what they save.
    """

    def run(rows: int, where: Any = None) -> Any:
        args, kwargs = inputs.pick(list(range(rows)))
        before = room.held()
        room.start_peak()
        room.wait()
        begin = time.perf_counter()
        away = activation_offload.Away(module, (args, kwargs), above=0)
        with torch.enable_grad(), where or away:
            results = [t for t in tree.flatten(call(*args, **kwargs))[0] if is_tensor(t)]
        differentiate(module, results, by_grad)
        room.wait()
        peak = room.peak() - before
        return max(peak - space(rows), peak / 4), time.perf_counter() - begin

    try:
        with put_back(module):
            most = run(many)[0]
            # What comes last is there once more when it comes back, with its gradient. Few rows
            # hide that behind gradients of weights.
            least = (seen.outputs[0] + 2 * seen.late) / many
            line = _at_least(_line(few, run(few)[0], many, most), least, many, most)
            extra = (
                run(many)[1] - run(many, contextlib.nullcontext())[1]
            )  # pinned memory has been made by now
            return line, max(extra, 0.0) / max(seen.saved, 1)
    except Exception:  # whatever it is, the choice is made without
        return None


def _twice_or_never(
    module: torch.nn.Module, call: Callable[..., Any], inputs: Any, room: Any
) -> Any:
    try:
        return _twice(module, call, inputs, 1, 2, room)
    except torch.cuda.OutOfMemoryError:
        raise Cannot("not even 2 samples of %d fit" % inputs.rows) from None


def check_recompute(
    module: torch.nn.Module, call: Callable[..., Any], inputs: Any, room: Any
) -> None:
    """Raises Cannot where a backward pass would not bear checkpointing."""
    rows = 1 if inputs.rows < 4 else 2
    first, second = _twice(module, call, inputs, rows, rows, room)
    if second.once:
        raise Cannot(
            "it cannot be run twice: a list of its own grows, or its backward pass reads a "
            "saved tensor twice"
        )
    if not second.repeats:
        raise Cannot(OTHERWISE)


OTHERWISE = (
    "a second run gives other results: it draws random numbers that cannot be put back, or "
    "changes what it computes with"
)


def _grains(module: Any, records: Any, saved: Any, rows: Any) -> Any:
    """The module taken apart, coarsely and finely, with bytes for one row."""
    found: List[Any] = []
    for share in GRAINS:
        parts = take_apart(module, records, share * saved)
        if parts and [p.name for p in parts] not in [[p.name for p in known] for known in found]:
            found.append(parts)
    for parts in found:
        for part in parts:
            part.saved, part.given = part.saved / rows, part.given / rows
            part.largest = part.largest / rows
    return found


def _line(few: Any, a: Any, many: int, b: Any) -> Any:
    """(fixed, per row) of the straight line through two measurements."""
    slope = max(0.0, (b - a) / (many - few))
    return max(0.0, a - slope * few), slope


def _at_least(line: str, slope: Any, many: int, peak: Any) -> Any:
    """A peak grows with every row by what the row leaves for the backward pass. Two measurements of
    a few rows may hide that behind a library's workspace, which is not larger for more rows, or
    behind gradients of weights, which come at another moment.
    """
    if line[1] >= slope:
        return line
    return max(0.0, peak - slope * many), slope
