"""The moment the CUDA allocator gives up: how much was asked for, what it held, where in the
program, and a snapshot.

torch calls its observers outside the allocator's lock, before it raises. The program may catch the
exception and go on, so what is told here is an event, not the end; the end is told by farewell.
Also the limit on device bytes (--gpu-mem).
"""

import os
from typing import Any

from .. import guard, link, oom
from . import steps

MAX_TOLD = 50  # a program that catches and retries can do so for ever
MAX_SNAPSHOTS = 3

_torch: Any = None
_told = 0
_snapshots = 0
_missed = 0  # bytes of the largest request that failed


def install(torch: Any) -> None:
    global _torch
    _torch = torch
    steps.command("snapshot", lambda asked: ("", dump("asked")))
    queue = getattr(torch.cuda, "_lazy_call", None)
    if queue is None:
        return
    if hasattr(
        torch._C, "_cuda_attach_out_of_memory_observer"
    ):  # since 2.0; attaching initialises CUDA, so it waits for that
        queue(_attach)
    limit = os.environ.get("MEMROOM_GPU_MEM", "")
    if limit.isdigit():
        from . import torch_limit

        torch_limit.install(torch, int(limit))


@guard.hook("attach observer", heavy=True, needed=True)
def _attach() -> None:
    _torch._C._cuda_attach_out_of_memory_observer(_observe)


@guard.hook("out of memory", heavy=True, needed=True)
def _observe(device: int, requested: int, device_total: int, device_free: int) -> None:
    global _told
    _told += 1
    if _told > MAX_TOLD:
        return
    _note_if_it_goes_on(requested)
    from . import of_torch

    _, allocated, reserved, _, split = of_torch.reading(device)[:5]
    steps.flush()
    fields = {
        "step": steps.step,
        "device": device,
        "requested": requested,
        "total": device_total,
        "free": device_free,
        "allocated": allocated,
        "reserved": reserved,
        "inactive_split": split,
        "phase": steps.phase,
    }
    if _allowed(device) < 1:
        # device_total is already what the program may take in some versions of torch.
        whole = _torch.cuda.get_device_properties(device).total_memory
        fields["limit"] = int(whole * _allowed(device))
    fields["snapshot"], fields["lines"] = dump("oom"), recording()
    fields["frames"] = oom.current_frames()
    link.send("oom", fields)


def _note_if_it_goes_on(requested: int) -> None:
    """A step that ends after this shows that somebody did without. Remedies tell that
    themselves, with what they know of it.
    """
    global _missed
    first, _missed = not _missed, max(_missed, requested)
    if first and not os.environ.get("MEMROOM_APPLY"):
        steps.at(steps.step + 1, _went_on)


def _went_on(step: int) -> None:
    fields = {
        "kind": "note",
        "id": "gpu_mem",
        "text": "a request for %.2f GiB failed and training went on. Where a library did without "
        "that work space, it took another algorithm: results are then equal up to rounding"
        % (_missed / 2**30),
        "amplifies": "a library did without the work space that it wanted",
    }
    link.send("said", fields)


def _allowed(device: int) -> float:
    """The share of the card that the program lets its allocator take."""
    return getattr(_torch.cuda, "get_per_process_memory_fraction", lambda _: 1.0)(device)


def recording() -> bool:
    """Says whether allocator stacks are being recorded, by the user or by us."""
    enabled = getattr(_torch._C, "_cuda_isHistoryEnabled", None)
    return bool(enabled and enabled())


def dump(why: str) -> str:
    """Writes the allocator's snapshot to the dumps folder and gives its path; "" where there is no
    folder or no room.
    """
    global _snapshots
    from . import of_torch

    folder = os.environ.get("MEMROOM_DUMPS", "")
    if not folder or not of_torch.cuda_ready() or (why == "oom" and _snapshots >= MAX_SNAPSHOTS):
        return ""
    if why == "oom":
        _snapshots += 1
    import pickle

    path = os.path.join(folder, "%s-%d-%d.pickle" % (why, os.getpid(), steps.step))
    try:
        with open(path + ".part", "wb") as file:
            pickle.dump(_torch.cuda.memory._snapshot(), file, protocol=4)
        os.replace(path + ".part", path)
        return path
    except OSError:  # a full disk: the rest of the message still goes out
        try:
            os.unlink(path + ".part")
        except OSError:
            pass
        return ""
