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

from .. import context, guard, link
from . import steps, torch_memory

_AGAIN = (1, 2, 5, 20, 100)  # steps after which the context is measured anew


class Limit:
    """The limit of this process."""

    __slots__ = (
        "_changed",
        "_contexts",
        "_cuda",
        "_limit",
        "_loop",
        "_nvml",
        "_said",
        "_torch",
        "_used_before",
    )

    def __init__(self, torch: Any, cuda: torch_memory.Cuda, loop: steps.Loop, limit: int) -> None:
        self._torch, self._cuda, self._loop, self._limit = torch, cuda, loop, limit
        # UUID -> NVML's handle, bytes used on the card before CUDA came up
        self._used_before: Dict[str, Tuple[ctypes.c_void_p, Optional[int]]] = {}
        self._contexts: Dict[int, context.Context] = {}  # device -> Context
        self._nvml: Any = None
        self._changed = 0  # when the file with the limit was last written, as it says
        self._said: Set[str] = set()

    def install(self) -> None:
        self._read_before()
        self._torch.cuda._lazy_call(self._apply)
        self._loop.before_backward(self._apply)
        for step in _AGAIN:
            self._loop.at(step, lambda step: self._apply())
        if os.environ.get("MEMROOM_GPU_MEM_FILE"):
            self._loop.at(1, self._look)

    def _look(self, step: int) -> None:
        """Takes a limit that was changed while the program runs, at the end of every step that is
        read.
        """
        self._loop.at(step + 1, self._look)
        try:
            path = os.environ["MEMROOM_GPU_MEM_FILE"]
            changed = os.stat(path).st_mtime_ns
            if changed == self._changed:
                return
            with open(path) as file:
                limit = int(file.read())
        except (OSError, ValueError, KeyError):
            return
        self._changed = changed
        if limit != self._limit:
            self._limit = limit
            self._apply()

    @guard.hook("read cards", heavy=True, needed=True)
    def _read_before(self) -> None:
        """Reads every card through NVML, which needs no CUDA context."""
        try:
            self._nvml = ctypes.CDLL("libnvidia-ml.so.1")
            if self._nvml.nvmlInit_v2() != 0:
                self._nvml = None
                return
        except OSError:
            return
        count = ctypes.c_uint()
        self._nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        for index in range(count.value):
            handle = ctypes.c_void_p()
            if self._nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0:
                self._used_before[self._uuid(handle)] = (handle, self._used(handle))

    def _used(self, handle: ctypes.c_void_p) -> Optional[int]:
        memory = _Memory()
        return (
            memory.used
            if self._nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0
            else None
        )

    def _uuid(self, handle: ctypes.c_void_p) -> str:
        text = ctypes.create_string_buffer(96)
        self._nvml.nvmlDeviceGetUUID(handle, text, 96)
        return text.value.decode("ascii", "replace").lower().replace("gpu-", "")

    @guard.hook("gpu limit", heavy=True, needed=True)
    def _apply(self) -> None:
        """Sets the fraction on every device this process uses. Called by torch when CUDA is up, and
        after some steps.
        """
        if not self._cuda.ready():
            devices = [
                self._torch._C._cuda_getDevice()
            ]  # CUDA comes up at this moment: only the current device has a context
        else:
            devices = list(range(self._torch.cuda.device_count()))
        for device in devices:
            reserved = self._cuda.reading(device)[2]
            if reserved or device == self._torch._C._cuda_getDevice():
                self._set(device, reserved)

    def _set(self, device: int, reserved: int) -> None:
        properties = self._torch.cuda.get_device_properties(device)
        total = properties.total_memory
        own = self._context(device, properties, reserved)
        fraction = min(1.0, max(0.0, (self._limit - own) / total))
        self._torch.cuda.set_per_process_memory_fraction(fraction, device)
        self._say(
            "applied",
            "GPU %d: the allocator may reserve %s; %s of the %s of --gpu-mem are left to the CUDA "
            "context" % (device, _words(int(fraction * total)), _words(own), _words(self._limit)),
        )

    def _context(self, device: int, properties: Any, reserved: int) -> int:
        """This process's bytes on the card outside the allocator."""
        if device not in self._contexts:
            self._contexts[device] = context.Context(context.card(properties))
        handle, before = self._used_before.get(self._device_uuid(device), (None, None))
        attributed = rise = None
        if handle is not None:
            attributed, used = self._attributed(handle), self._used(handle)
            if used is not None and before is not None:
                rise = used - before
        return self._contexts[device].size(attributed, rise, reserved)

    def _device_uuid(self, device: int) -> str:
        return str(
            getattr(self._torch.cuda.get_device_properties(device), "uuid", "")
        ).lower() or next(iter(self._used_before), "")

    def _attributed(self, handle: ctypes.c_void_p) -> Optional[int]:
        """What NVML says this process holds; None in containers, where it does not know our pid."""
        count = ctypes.c_uint(64)
        processes = (_Process * 64)()
        call = getattr(self._nvml, "nvmlDeviceGetComputeRunningProcesses_v3", None)
        if call is None or call(handle, ctypes.byref(count), processes) != 0:
            return None
        for entry in processes[: count.value]:
            if entry.pid == os.getpid() and 0 < entry.used < 1 << 50:
                answer: Optional[int] = entry.used
                return answer
        return None

    def _say(self, kind: str, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            link.send("said", {"kind": kind, "text": text, "id": "gpu_mem"})


class _Memory(ctypes.Structure):
    _fields_ = [
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    ]


def _words(size: int) -> str:
    return "%.2f GiB" % (size / 2**30) if size >= 2**30 else "%d MiB" % (size >> 20)


class _Process(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu", ctypes.c_uint),
        ("compute", ctypes.c_uint),
    ]
