"""--gpu-mem: holds the process to a number of device bytes on each card.

torch limits what its allocator reserves; the card also gives up the context and the libraries'
code, which come with the first work and grow during the first steps. So the fraction is (limit -
measured context) / total, set when CUDA comes up, when the first backward pass begins, and again as
the context grows. The context is the rise of the card's used bytes since before CUDA came up, less
what the allocator reserved; on a card where neighbours come and go meanwhile it is what NVML
attributes to this process, where NVML says so.
"""

import ctypes
import os

from .. import guard, link
from . import steps

_torch = None
_limit = 0
_used_before = {}  # PCI bus id -> bytes used on the card before CUDA came up
_nvml = None
_said = set()
_AGAIN = (1, 2, 5, 20, 100)  # steps after which the context is measured anew


def install(torch, limit):
    global _torch, _limit
    _torch, _limit = torch, limit
    _read_before()
    torch.cuda._lazy_call(_apply)
    steps.before_backward(_apply)
    for step in _AGAIN:
        steps.at(step, lambda step: _apply())


class _Memory(ctypes.Structure):
    _fields_ = [
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    ]


@guard.hook("read cards", heavy=True)
def _read_before():
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


def _used(handle):
    memory = _Memory()
    return memory.used if _nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0 else None


def _uuid(handle):
    text = ctypes.create_string_buffer(96)
    _nvml.nvmlDeviceGetUUID(handle, text, 96)
    return text.value.decode("ascii", "replace").lower().replace("gpu-", "")


@guard.hook("gpu limit", heavy=True)
def _apply():
    """Sets the fraction on every device this process uses. Called by torch when CUDA is up, and
    after some steps.
    """
    from . import of_torch

    if not of_torch.cuda_ready():
        devices = [
            _torch._C._cuda_getDevice()
        ]  # CUDA comes up at this moment: only the current device has a context
    else:
        devices = range(_torch.cuda.device_count())
    for device in devices:
        reserved = of_torch.reading(device)[2]
        if reserved or device == _torch._C._cuda_getDevice():
            _set(device, reserved)


def _set(device, reserved):
    total = _torch.cuda.get_device_properties(device).total_memory
    context = _context(device, reserved)
    if context is None:
        _say(
            "declined",
            "gpu_mem: the context's size on device %d cannot be measured: limiting the allocator alone"
            % device,
        )
        context = 0
    fraction = min(1.0, max(0.0, (_limit - context) / total))
    _torch.cuda.set_per_process_memory_fraction(fraction, device)
    _say(
        "applied",
        "gpu_mem: device %d may reserve %d of %d bytes, its context takes %d"
        % (device, int(fraction * total), total, context),
    )


def _context(device, reserved):
    """This process's bytes on the card outside the allocator, or None."""
    handle, before = _used_before.get(_device_uuid(device), (None, None))
    if handle is None:
        return None
    mine = _attributed(handle)
    if mine is None:
        used = _used(handle)
        if used is None or before is None:
            return None
        mine = used - before
    return max(0, mine - reserved)


def _device_uuid(device):
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


def _attributed(handle):
    """What NVML says this process holds; None in containers, where it does not know our pid."""
    count = ctypes.c_uint(64)
    processes = (_Process * 64)()
    call = getattr(_nvml, "nvmlDeviceGetComputeRunningProcesses_v3", None)
    if call is None or call(handle, ctypes.byref(count), processes) != 0:
        return None
    for entry in processes[: count.value]:
        if entry.pid == os.getpid() and 0 < entry.used < 1 << 50:
            return entry.used
    return None


def _say(kind, text):
    if text not in _said:
        _said.add(text)
        link.send("said", {"kind": kind, "text": text, "id": "gpu_mem"})
