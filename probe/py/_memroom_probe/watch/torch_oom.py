"""The moment the CUDA allocator gives up: how much was asked for, what it held, where in the
program, and a snapshot.

torch calls its observers outside the allocator's lock, before it raises. The program may catch the
exception and go on, so what is told here is an event, not the end; the end is told by farewell.
Also the limit on device bytes (--gpu-mem).
"""

import os
from typing import Any

from .. import guard, link, oom
from . import steps, torch_memory

MAX_TOLD = 50  # a program that catches and retries can do so for ever
MAX_SNAPSHOTS = 3


class OutOfMemory:
    """The times at which the allocator gave up."""

    __slots__ = ("_cuda", "_loop", "_missed", "_snapshots", "_told", "_torch")

    def __init__(self, torch: Any, cuda: torch_memory.Cuda, loop: steps.Loop) -> None:
        self._torch, self._cuda, self._loop = torch, cuda, loop
        self._told = self._snapshots = 0
        self._missed = 0  # bytes of the largest request that failed

    def install(self) -> None:
        self._loop.command("snapshot", lambda asked: ("", self.dump("asked")))
        queue = getattr(self._torch.cuda, "_lazy_call", None)
        if queue is None:
            return
        if hasattr(
            self._torch._C, "_cuda_attach_out_of_memory_observer"
        ):  # since 2.0; attaching initialises CUDA, so it waits for that
            queue(self._attach)
        limit = os.environ.get("MEMROOM_GPU_MEM", "")
        if limit.isdigit():
            from . import torch_limit

            torch_limit.Limit(self._torch, self._cuda, self._loop, int(limit)).install()

    @guard.hook("attach observer", heavy=True, needed=True)
    def _attach(self) -> None:
        self._torch._C._cuda_attach_out_of_memory_observer(self._observe)

    @guard.hook("out of memory", heavy=True, needed=True)
    def _observe(self, device: int, requested: int, device_total: int, device_free: int) -> None:
        self._told += 1
        if self._told > MAX_TOLD:
            return
        self._note_if_it_goes_on(requested)
        _, allocated, reserved, _, split = self._cuda.reading(device)[:5]
        self._loop.flush()
        fields = {
            "step": self._loop.step,
            "device": device,
            "requested": requested,
            "total": device_total,
            "free": device_free,
            "allocated": allocated,
            "reserved": reserved,
            "inactive_split": split,
            "phase": self._loop.phase,
        }
        if self._allowed(device) < 1:
            # device_total is already what the program may take in some versions of torch.
            whole = self._torch.cuda.get_device_properties(device).total_memory
            fields["limit"] = int(whole * self._allowed(device))
        fields["snapshot"], fields["lines"] = self.dump("oom"), self.recording()
        fields["frames"] = oom.current_frames()
        link.send("oom", fields)

    def _note_if_it_goes_on(self, requested: int) -> None:
        """A step that ends after this shows that somebody did without. Remedies tell that
        themselves, with what they know of it.
        """
        first, self._missed = not self._missed, max(self._missed, requested)
        if first and not os.environ.get("MEMROOM_APPLY"):
            self._loop.at(self._loop.step + 1, self._went_on)

    def _went_on(self, step: int) -> None:
        fields = {
            "kind": "note",
            "id": "gpu_mem",
            "text": "a request for %.2f GiB failed and training went on. Where a library did "
            "without that work space, it took another algorithm: results are then equal up to "
            "rounding" % (self._missed / 2**30),
            "amplifies": "a library did without the work space that it wanted",
        }
        link.send("said", fields)

    def _allowed(self, device: int) -> float:
        """The share of the card that the program lets its allocator take."""
        return getattr(self._torch.cuda, "get_per_process_memory_fraction", lambda _: 1.0)(device)

    def recording(self) -> bool:
        """Returns whether allocator stacks are being recorded, by the user or by us."""
        enabled = getattr(self._torch._C, "_cuda_isHistoryEnabled", None)
        return bool(enabled and enabled())

    def dump(self, why: str) -> str:
        """Writes the allocator's snapshot to the dumps folder and gives its path; "" where there is
        no folder or no room.
        """
        folder = os.environ.get("MEMROOM_DUMPS", "")
        if (
            not folder
            or not self._cuda.ready()
            or (why == "oom" and self._snapshots >= MAX_SNAPSHOTS)
        ):
            return ""
        if why == "oom":
            self._snapshots += 1
        import pickle

        path = os.path.join(folder, "%s-%d-%d.pickle" % (why, os.getpid(), self._loop.step))
        try:
            with open(path + ".part", "wb") as file:
                pickle.dump(self._torch.cuda.memory._snapshot(), file, protocol=4)
            os.replace(path + ".part", path)
            return path
        except OSError:  # a full disk: the rest of the message still goes out
            try:
                os.unlink(path + ".part")
            except OSError:
                pass
            return ""
