"""How long a row takes on a card, and how long a piece takes however few rows it has.

A few rows keep a card waiting for the next kernel to be launched: they take as long as more rows
would, so a line through two small sizes says little about the whole batch. The first run of a size
is slow besides, because libraries choose their algorithms. So passes over a few rows are run once
more by themselves, and the forward pass also over as many rows as there is room for.
"""

import dataclasses
import time
from typing import Any, Callable, Optional, Tuple

import torch

from ..batch.inputs import is_tensor
from ..calls import tree
from .run import differentiate, put_back

SLOW = 0.5  # seconds of a run from which on one has to do
TIMES = 5  # the fastest of so many runs counts, as far as SLOW seconds reach
KEPT = 0.5  # share of the peak of both passes that a forward pass alone may reach


@dataclasses.dataclass
class Speed:
    """Seconds of both passes."""

    row: float  # for each row, where there are many
    floor: float  # of a piece, at the least
    forward: float  # share of the forward pass


def of(
    module: torch.nn.Module,
    call: Callable[..., Any],
    inputs: Any,
    few: int,
    line: Tuple[float, float],
    room: Any,
    way: Callable[..., None],
) -> Optional[Speed]:
    """The Speed of a call; None where it cannot be had. line: (fixed, for each row) bytes of the
    peak; way: how gradients are taken.
    """
    if not room.is_card:
        return None
    rows = _rows_with_room(inputs.rows, few, line, room)
    try:
        with put_back(module):
            floor = _fastest(room, lambda: _both(module, call, inputs, few, way))
            ahead = _fastest(room, lambda: _ahead(call, inputs, few))
            many = _fastest(room, lambda: _ahead(call, inputs, rows))
    except Exception:  # out of memory too: what a line tells has to do
        return None
    return Speed(floor / ahead * many / rows, floor, min(max(ahead / floor, 0.2), 0.5))


def _rows_with_room(rows: int, few: int, line: Tuple[float, float], room: Any) -> int:
    """The whole batch, or the half of it, and so on, as far as the forward pass fits."""
    while rows > 2 * few and room.held() + line[0] + KEPT * line[1] * rows > room.limit:
        rows //= 2
    return rows


def _fastest(room: Any, run: Callable[[], None]) -> float:
    def seconds() -> float:
        room.wait()
        begin = time.perf_counter()
        run()
        room.wait()
        return time.perf_counter() - begin

    first = seconds()  # algorithms are chosen, memory is asked for
    if first > SLOW:
        return first
    # Others on the machine only ever add time. A piece that seems to take long makes recomputing
    # look cheap, and that stays for all steps.
    runs = [seconds()]
    while len(runs) < TIMES and sum(runs) < SLOW:
        runs.append(seconds())
    return min(runs)


def _both(
    module: torch.nn.Module,
    call: Callable[..., Any],
    inputs: Any,
    rows: int,
    way: Callable[..., None],
) -> None:
    args, kwargs = inputs.pick(list(range(rows)))
    with torch.enable_grad():
        results = [t for t in tree.flatten(call(*args, **kwargs))[0] if is_tensor(t)]
    differentiate(module, results, way)


def _ahead(call: Callable[..., Any], inputs: Any, rows: int) -> None:
    args, kwargs = inputs.pick(list(range(rows)))
    cached = torch.is_autocast_cache_enabled()
    # Autocast keeps copies of weights, and those made here would have no gradients.
    torch.set_autocast_cache_enabled(False)
    try:
        with torch.no_grad():
            call(*args, **kwargs)
    finally:
        torch.set_autocast_cache_enabled(cached)
