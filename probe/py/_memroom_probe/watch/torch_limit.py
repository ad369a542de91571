"""--gpu-mem: holds the process to a number of device bytes on each card.

torch limits what its allocator reserves; the context and the libraries' code come on top, with the
first work, and grow during the first steps. So the fraction is (limit - context) / total, set when
CUDA comes up, when the first backward pass begins, and again as the context grows. A study of
`memroom tune` may change the limit meanwhile, by a file. How large the context is, context.py
decides from the readings that are taken here.
"""

import ctypes
import os
from typing import Any, Dict, Optional, Set, Tuple

from .. import guard, link
from . import context, steps

_torch: Any = None
_limit = 0
_used_before: Dict[
    str, Tuple[ctypes.c_void_p, Optional[int]]
] = {}  # UUID -> NVML's handle, bytes used on the card before CUDA came up
_contexts: Dict[int, context.Context] = {}  # device -> Context
_nvml: Any = None
_changed = 0  # when the file with the limit was last written, as it says
_said: Set[str] = set()
_AGAIN = (1, 2, 5, 20, 100)  # steps after which the context is measured anew


def install(torch: Any, limit: int) -> None:
    global _torch, _limit
    _torch, _limit = torch, limit
    _read_before()
    torch.cuda._lazy_call(_apply)
    steps.before_backward(_apply)
    for step in _AGAIN:
        steps.at(step, lambda step: _apply())
    if os.environ.get("MEMROOM_GPU_MEM_FILE"):
        steps.at(1, _look)


def _look(step: int) -> None:
    """Takes a limit that was changed while the program runs, at the end of every step that is
    read.
    """
    global _limit, _changed
    steps.at(step + 1, _look)
    try:
        path = os.environ["MEMROOM_GPU_MEM_FILE"]
        changed = os.stat(path).st_mtime_ns
        if changed == _changed:
            return
        with open(path) as file:
            limit = int(file.read())
    except (OSError, ValueError, KeyError):
        return
    _changed = changed
    if limit != _limit:
        _limit = limit
        _apply()


class _Memory(ctypes.Structure):
    _fields_ = [
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    ]


@guard.hook("read cards", heavy=True, needed=True)
def _read_before() -> None:
    """Reads every card through NVML, which needs no CUDA context."""
    global _nvml
    try:
        _nvml = ctypes.CDLL("libnvidia-ml.so.1")
        if _nvml.nvmlInit_v2() != 0:
            _nvml = None
            return
    except OSError:
        return
    count = ctypes.c_uint()
    _nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    for index in range(count.value):
        handle = ctypes.c_void_p()
        if _nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0:
            _used_before[_uuid(handle)] = (handle, _used(handle))


def _used(handle: ctypes.c_void_p) -> Optional[int]:
    memory = _Memory()
    return memory.used if _nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0 else None


def _uuid(handle: ctypes.c_void_p) -> str:
    text = ctypes.create_string_buffer(96)
    _nvml.nvmlDeviceGetUUID(handle, text, 96)
    return text.value.decode("ascii", "replace").lower().replace("gpu-", "")


@guard.hook("gpu limit", heavy=True, needed=True)
def _apply() -> None:
    """Sets the fraction on every device this process uses. Called by torch when CUDA is up, and
    after some steps.
    """
    from . import of_torch

    if not of_torch.cuda_ready():
        devices = [
            _torch._C._cuda_getDevice()
        ]  # CUDA comes up at this moment: only the current device has a context
    else:
        devices = list(range(_torch.cuda.device_count()))
    for device in devices:
        reserved = of_torch.reading(device)[2]
        if reserved or device == _torch._C._cuda_getDevice():
            _set(device, reserved)


def _set(device: int, reserved: int) -> None:
    properties = _torch.cuda.get_device_properties(device)
    total = properties.total_memory
    own = _context(device, properties, reserved)
    fraction = min(1.0, max(0.0, (_limit - own) / total))
    _torch.cuda.set_per_process_memory_fraction(fraction, device)
    _say(
        "applied",
        "GPU %d: the allocator may reserve %s; %s of the %s of --gpu-mem are left to the CUDA "
        "context" % (device, _words(int(fraction * total)), _words(own), _words(_limit)),
    )


def _words(size: int) -> str:
    return "%.2f GiB" % (size / 2**30) if size >= 2**30 else "%d MiB" % (size >> 20)


def _context(device: int, properties: Any, reserved: int) -> int:
    """This process's bytes on the card outside the allocator."""
    if device not in _contexts:
        _contexts[device] = context.Context(
            context.Card(
                properties.total_memory,
                getattr(properties, "multi_processor_count", 0) or 128,
                getattr(properties, "max_threads_per_multi_processor", 0) or 2048,
            )
        )
    handle, before = _used_before.get(_device_uuid(device), (None, None))
    attributed = rise = None
    if handle is not None:
        attributed, used = _attributed(handle), _used(handle)
        if used is not None and before is not None:
            rise = used - before
    return _contexts[device].size(attributed, rise, reserved)


def _device_uuid(device: int) -> str:
    return str(getattr(_torch.cuda.get_device_properties(device), "uuid", "")).lower() or next(
        iter(_used_before), ""
    )


class _Process(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu", ctypes.c_uint),
        ("compute", ctypes.c_uint),
    ]


def _attributed(handle: ctypes.c_void_p) -> Optional[int]:
    """What NVML says this process holds; None in containers, where it does not know our pid."""
    count = ctypes.c_uint(64)
    processes = (_Process * 64)()
    call = getattr(_nvml, "nvmlDeviceGetComputeRunningProcesses_v3", None)
    if call is None or call(handle, ctypes.byref(count), processes) != 0:
        return None
    for entry in processes[: count.value]:
        if entry.pid == os.getpid() and 0 < entry.used < 1 << 50:
            answer: Optional[int] = entry.used
            return answer
    return None


def _say(kind: str, text: str) -> None:
    if text not in _said:
        _said.add(text)
        link.send("said", {"kind": kind, "text": text, "id": "gpu_mem"})
