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
from . import steps, torch_memory, torch_oom

MAX_STEPS = 64
MAX_GROUPS = 12
MAX_FRAMES, NEAR_FRAMES = 12, 4

Frames = Tuple[Tuple[str, str, int], ...]  # file, function, line; the innermost first


class Window:
    """The window in which stacks are recorded."""

    __slots__ = ("_cuda", "_first", "_half", "_last", "_loop", "_memory", "_torch")

    def __init__(
        self, torch: Any, cuda: torch_memory.Cuda, memory: torch_oom.OutOfMemory, loop: steps.Loop
    ) -> None:
        self._torch, self._cuda, self._memory, self._loop = torch, cuda, memory, loop
        self._first = self._last = 0  # steps of the window; 0: none is open
        # (device, frames) -> bytes in the middle of the window
        self._half: Dict[Tuple[int, Frames], int] = {}

    def install(self) -> None:
        self._loop.command("record_stacks", self._begin)

    def _begin(self, asked: Dict[str, Any]) -> str:
        if self._last:
            return "a window is open until step %d" % self._last
        if not self._cuda.ready():
            raise RuntimeError("CUDA is not in use: allocator stacks exist only there")
        if not hasattr(self._torch._C, "_cuda_isHistoryEnabled"):
            raise RuntimeError(
                "this torch cannot say whether its recorder is on: stacks need torch 2.1"
            )
        if self._memory.recording():
            raise RuntimeError(
                "the program records allocator history itself: its recorder is left alone"
            )
        length = max(2, min(int(asked.get("steps") or 12), MAX_STEPS))
        self._torch.cuda.memory._record_memory_history(
            enabled="state", context="state", stacks="python"
        )
        self._half.clear()
        self._first, self._last = self._loop.step, self._loop.step + length
        self._loop.at(self._loop.step + length // 2, self._halfway, wake=True)
        self._loop.at(self._last, self._ends, wake=True)
        return "recording for %d steps" % length

    def _halfway(self, step: int) -> None:
        self._half.update({key: total for key, (total, _) in self._live().items()})

    def _ends(self, step: int) -> None:
        length, self._last = step - self._first, 0
        try:
            self._tell(step, length, self._live())
        finally:
            self._torch.cuda.memory._record_memory_history(enabled=None)

    def _live(self) -> Dict[Tuple[int, Frames], List[int]]:
        """(device, frames) -> [bytes, blocks] of the live blocks that have a stack."""
        found: Dict[Tuple[int, Frames], List[int]] = {}
        for segment in self._torch.cuda.memory._snapshot()["segments"]:
            for block in segment["blocks"]:
                frames = block.get("frames") or (block.get("history") or [{}])[0].get("frames")
                if block["state"] != "active_allocated" or not frames:
                    continue
                key = (segment["device"], _shortened(frames))
                group = found.setdefault(key, [0, 0])
                group[0] += block.get("requested_size", block["size"])
                group[1] += 1
        return found

    def _tell(self, step: int, length: int, live: Dict[Tuple[int, Frames], List[int]]) -> None:
        by_device: Dict[int, List[Tuple[int, int, int, Frames]]] = {}
        for (device, frames), (total, count) in live.items():
            growth = total - self._half.get((device, frames), 0)
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
