"""Which lines of code allocated what stays: allocator stacks, recorded for a bounded window when
the monitor asks.

Only blocks allocated inside the window have stacks. Those alive in its middle and those alive at
its end are added up by stack; what grew between the two is what stays. A recorder that the user
switched on is left alone, and the window is refused: two recorders cannot be told apart. Without
CUDA there is nothing to record, and the heap's count by type, with the names of the variables that
hold what grows, takes its place (see heap).
"""

from typing import Any, Dict, List, Tuple

from .. import link
from . import steps

MAX_STEPS = 64
MAX_GROUPS = 12
MAX_FRAMES, NEAR_FRAMES = 12, 4

Frames = Tuple[Tuple[str, str, int], ...]  # file, function, line; the innermost first

_torch: Any = None
_first = _last = 0  # steps of the window; 0: none is open
_half: Dict[Tuple[int, Frames], int] = {}  # (device, frames) -> bytes in the middle of the window


def install(torch: Any) -> None:
    global _torch
    _torch = torch
    from . import heap

    steps.command("record_stacks", _begin)
    steps.command("heap", heap.tell)
    heap.install(torch)


def _begin(asked: Dict[str, Any]) -> str:
    global _first, _last
    from . import of_torch, torch_oom

    if _last:
        return "a window is open until step %d" % _last
    if not of_torch.cuda_ready():
        raise RuntimeError("CUDA is not in use: allocator stacks exist only there")
    if not hasattr(_torch._C, "_cuda_isHistoryEnabled"):
        raise RuntimeError(
            "this torch cannot say whether its recorder is on: stacks need torch 2.1"
        )
    if torch_oom.recording():
        raise RuntimeError(
            "the program records allocator history itself: its recorder is left alone"
        )
    length = max(2, min(int(asked.get("steps") or 12), MAX_STEPS))
    _torch.cuda.memory._record_memory_history(enabled="state", context="state", stacks="python")
    _half.clear()
    _first, _last = steps.step, steps.step + length
    steps.at(steps.step + length // 2, _halfway, wake=True)
    steps.at(_last, _ends, wake=True)
    return "recording for %d steps" % length


def _halfway(step: int) -> None:
    _half.update({key: total for key, (total, _) in _live().items()})


def _ends(step: int) -> None:
    global _last
    length, _last = step - _first, 0
    try:
        _tell(step, length, _live())
    finally:
        _torch.cuda.memory._record_memory_history(enabled=None)


def _live() -> Dict[Tuple[int, Frames], List[int]]:
    """(device, frames) -> [bytes, blocks] of the live blocks that have a stack."""
    found: Dict[Tuple[int, Frames], List[int]] = {}
    for segment in _torch.cuda.memory._snapshot()["segments"]:
        for block in segment["blocks"]:
            frames = block.get("frames") or (block.get("history") or [{}])[0].get("frames")
            if block["state"] != "active_allocated" or not frames:
                continue
            key = (segment["device"], _shortened(frames))
            group = found.setdefault(key, [0, 0])
            group[0] += block.get("requested_size", block["size"])
            group[1] += 1
    return found


def _shortened(frames: List[Dict[str, Any]]) -> Frames:
    """The innermost frames and, of those further out, the program's own: its loop is what the user
    looks for, and a deep model has forty frames of torch in between. What is in the middle of very
    many is left out.
    """
    told = [
        (f["filename"], f["name"], f["line"])
        for f in frames
        if "_memroom_probe" not in f["filename"]
    ]
    own = [frame for frame in told[NEAR_FRAMES:] if "-packages" not in frame[0]]
    return tuple(
        told[:NEAR_FRAMES]
        + own[: MAX_FRAMES - NEAR_FRAMES - 1]
        + own[MAX_FRAMES - NEAR_FRAMES - 1 :][-1:]
    )


def _tell(step: int, length: int, live: Dict[Tuple[int, Frames], List[int]]) -> None:
    by_device: Dict[int, List[Tuple[int, int, int, Frames]]] = {}
    for (device, frames), (total, count) in live.items():
        growth = total - _half.get((device, frames), 0)
        if growth > 0:
            by_device.setdefault(device, []).append((growth, total, count, frames))
    for device, groups in by_device.items():
        groups.sort(reverse=True)
        link.send(
            "stacks",
            {
                "steps": length,
                "step": step,
                "device": device,
                "groups": [
                    {
                        "bytes": total,
                        "growth": growth,
                        "count": count,
                        "frames": [
                            {"file": file, "name": name, "line": line}
                            for file, name, line in frames
                        ],
                    }
                    for growth, total, count, frames in groups[:MAX_GROUPS]
                ],
            },
        )
