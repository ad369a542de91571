"""The scratch of CUDA reductions.

A reduction that is split over thread blocks keeps partial results and a counter a column in device
memory. Whether it is split follows from the input's shape and strides and from the card's size, by
the launch rules of ATen's Reduce.cuh; they are worked out here for the reduced tensor alone.
Checked against recordings of every reduction in bench/rehearse/ops.
"""

from typing import Any, List, Sequence, Tuple


def last_power(n: int) -> int:
    return 1 << (n.bit_length() - 1) if n > 0 else 1


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def _folded(shape: Sequence[int], strides: Sequence[int], dims: Any) -> List[List[Tuple[int, int]]]:
    """The iterator's dimensions: reduced ones first, each group by ascending stride, neighbours
    that form one run joined. Gives [(size, stride)] of the reduced and of the kept ones, strides in
    elements.
    """
    groups: Tuple[List[Tuple[int, int]], List[Tuple[int, int]]] = ([], [])
    for d in range(len(shape)):
        if shape[d] != 1:
            groups[0 if d in dims else 1].append((shape[d], strides[d]))
    folded = []
    for group in groups:
        group.sort(key=lambda d: (d[1], d[0]))
        joined: List[Any] = []
        for size, stride in group:
            if joined and joined[-1][0] * joined[-1][1] == stride:
                joined[-1] = (joined[-1][0] * size, joined[-1][1])
            else:
                joined.append((size, stride))
        folded.append(joined)
    return folded


def scratch(
    shape: Sequence[int],
    strides: Sequence[int],
    dims: Any,
    accumulator: int = 4,
    sms: int = 132,
    threads_per_sm: int = 2048,
    widest: int = 4,
) -> Tuple[int, int]:
    """Bytes of partial results and of counters that reducing `dims` takes besides its result; (0,
    0) for an undivided one.

    `accumulator` is the size of one partial result, `widest` how many values a thread loads at
    once.
    """
    inputs = outputs = 1
    for d, n in enumerate(shape):
        if d in dims:
            inputs *= n
        else:
            outputs *= n
    if inputs * outputs == 0:
        return 0, 0
    reduced, kept = _folded(shape, strides, dims)
    width_of = 1  # values of one load that belong to different outputs
    along_input = not kept or (bool(reduced) and reduced[0][1] < kept[0][1])
    if not reduced and kept:
        along_input = False
    first, second = (inputs, outputs) if along_input else (outputs, inputs)
    fastest = reduced[0][1] if along_input and reduced else kept[0][1] if kept else 1
    if fastest == 1:
        if along_input and first > 128 and len(reduced) + len(kept) == 1:
            first //= widest
        elif not along_input:
            width_of = 4
            others = [kept[0][0]] + [s for _, s in reduced] + [s for _, s in kept[1:]]
            while any(n % width_of for n in others):
                width_of //= 2
            first //= width_of
    most = 512 // width_of
    power0 = last_power(first) if first < most else most
    power1 = last_power(second) if second < most else most
    width = min(power0, 32)
    height = min(power1, most // width)
    width = min(power0, most // height)
    step_in = width if along_input else 1
    step_out = 1 if along_input else width
    per_thread = ceil_div(inputs, step_in)
    split_warps = per_thread >= min(height * 16, 256)
    if split_warps:
        step_in *= height
    else:
        step_out *= height
    per_thread = ceil_div(inputs, step_in)
    grid = ceil_div(outputs // width_of, step_out)
    target = sms * (threads_per_sm // (width * height))
    if not split_warps or per_thread < 256 or grid > target:
        return 0, 0
    blocks = max(min(ceil_div(target, grid), ceil_div(per_thread, 16)), ceil_div(per_thread, 256))
    if blocks <= 1:
        return 0, 0
    partial = accumulator * outputs * blocks
    if not along_input:
        partial *= width * width_of
    return partial, 4 * grid
