"""Answers torch.cuda for a card that is not there.

The functions of torch.cuda stay torch's own; what they ask of the driver (the `torch._C._cuda_*`
functions) is answered from the target's facts. Whatever has no fact is refused by torch itself, in
its own words.
"""

from __future__ import annotations

import ctypes
import os
import types
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .recorder import Recorder

# Facts of a card where the target does not say: the H200 on which the rules were measured.
DEFAULTS: dict[str, Any] = {
    "name": "NVIDIA H200",
    "total_memory": 150109880320,
    "sms": 132,
    "major": 9,
    "minor": 0,
    "threads": 2048,  # resident on a multiprocessor
    "blas": 32 << 20,  # bytes of the workspace that cuBLAS keeps for each thread that multiplies
    "blaslt": 1 << 20,  # the same of cuBLASLt
    "count": 1,
}


class Properties:
    """What torch.cuda.get_device_properties answers."""

    def __init__(self, card: dict[str, Any]) -> None:
        self.name = card["name"]
        self.major, self.minor = card["major"], card["minor"]
        self.total_memory = card["total_memory"]
        self.multi_processor_count = card["sms"]
        self.max_threads_per_multi_processor = card["threads"]
        self.max_threads_per_block = 1024
        self.warp_size = 32
        self.regs_per_multiprocessor = 65536
        self.shared_memory_per_block = 49152
        self.shared_memory_per_block_optin = 232448 if self.major >= 9 else 101376
        self.shared_memory_per_multiprocessor = 233472 if self.major >= 9 else 167936
        self.L2_cache_size = 62914560
        self.is_integrated = 0
        self.is_multi_gpu_board = 0
        self.gcnArchName = self.name
        self.uuid = "00000000-0000-0000-0000-000000000000"
        self.pci_bus_id = self.pci_device_id = self.pci_domain_id = 0
        self.clock_rate = 1980000
        self.memory_clock_rate = 3201000
        self.memory_bus_width = 6144

    def __repr__(self) -> str:
        return (
            "_CudaDeviceProperties(name='%s', major=%d, minor=%d, total_memory=%dMB, "
            "multi_processor_count=%d)"
        ) % (
            self.name,
            self.major,
            self.minor,
            self.total_memory // 1048576,
            self.multi_processor_count,
        )


class Stream:
    """A stream in name: it only says to which of the allocator's pools a request belongs."""

    made = 0

    def __init__(
        self, device: object = None, priority: int = 0, stream_id: int | None = None, **_: object
    ) -> None:
        if stream_id is None:
            Stream.made += 1
            stream_id = Stream.made
        self.stream_id = self.cuda_stream = stream_id
        self.device = torch.device("cuda", 0)
        self.device_index, self.device_type = 0, 1
        self.priority = priority

    def wait_event(self, event: Event) -> None:
        pass

    def wait_stream(self, stream: Stream) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:  # asked by optimizers since torch 2.12
        return False

    def record_event(self, event: Event | None = None) -> Event:
        return event if event is not None else Event()

    def __enter__(self) -> Stream:
        self._inside = torch.cuda.stream(self)
        self._inside.__enter__()
        return self

    def __exit__(self, *exc: Any) -> bool | None:
        answer: bool | None = self._inside.__exit__(*exc)
        return answer

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return hash(self.stream_id)


class Event:
    """An event that has always happened; a measured time of 1 ms keeps rates finite."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        self.event_id = self.cuda_event = 0

    def record(self, stream: Stream | None = None) -> None:
        pass

    def wait(self, stream: Stream | None = None) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: Event) -> float:
        return 1.0


class Card:
    """Installs the answers. `recorder` hears about emptied caches and streams and knows the bytes
    in use.
    """

    def __init__(self, target: dict[str, Any], recorder: Recorder) -> None:
        self.card = dict(DEFAULTS, **{k: v for k, v in target.items() if v})
        self.recorder = recorder
        self.current = Stream(stream_id=0)
        self.properties = Properties(self.card)
        self.device = 0

    def install(self) -> None:
        # The guard that lets the real autograd engine run on tensors of an absent card. It must
        # come before is_available is answered, and costs nothing where a driver exists.
        torch._C._ensureCUDADeviceGuardSet()
        _lead_engine_past_driver()
        self._answer_driver()
        self._answer_module()
        self._answer_streams()
        self._answer_accelerator()
        for name in (
            "_jit_set_texpr_fuser_enabled",
            "_jit_override_can_fuse_on_gpu",
        ):  # scripted functions are not compiled for a card
            getattr(torch._C, name, lambda on: None)(False)

    def _answer_driver(self) -> None:
        count = self.card["count"]
        answers = {
            "getDeviceCount": lambda: count,
            "getDevice": lambda: self.device,
            "setDevice": self.set_device,
            "exchangeDevice": self.exchange,
            "maybeExchangeDevice": self.exchange,
            "init": lambda: None,
            "synchronize": lambda *a: None,
            "emptyCache": self.recorder.empty_cache,
            "ipc_collect": lambda: None,
            "memoryStats": self.stats,
            "resetPeakMemoryStats": self.reset_peak,
            "resetAccumulatedMemoryStats": lambda d: None,
            "memorySnapshot": lambda *a: {
                "segments": [],
                "device_traces": [[]],
                "allocator_settings": {},
            },
            "record_memory_history": lambda *a, **k: None,
            "record_memory_history_legacy": lambda *a, **k: None,
            "setMemoryFraction": lambda *a: None,
            "getMemoryFraction": lambda *a: 1.0,
            "isCurrentStreamCapturing": lambda: False,
            "getArchFlags": lambda: "sm_%d%d" % (self.properties.major, self.properties.minor),
            "set_sync_debug_mode": lambda m: None,
            "get_sync_debug_mode": lambda: 0,
            "getCurrentRawStream": lambda d: 0,
            "getCurrentBlasHandle": lambda: 0,
            "canDeviceAccessPeer": lambda a, b: a != b,
            "clearCublasWorkspaces": lambda: None,
        }
        replaced = {}
        for name, answer in answers.items():
            replaced[id(getattr(torch._C, "_cuda_" + name, None))] = answer
            setattr(torch._C, "_cuda_" + name, answer)
        for module in (
            torch.cuda,
            torch.cuda.graphs,
            torch.cuda.memory,
        ):  # names imported from torch._C before us
            for name, value in list(vars(module).items()):
                if value is not None and id(value) in replaced:
                    setattr(module, name, replaced[id(value)])
        for name in ("_exchange_device", "_maybe_exchange_device"):
            setattr(torch.cuda, name, self.exchange)

    def _answer_module(self) -> None:
        cuda = torch.cuda
        cuda._lazy_init = cuda.init = lambda: None
        cuda._initialized = True
        cuda.is_initialized = lambda: True
        cuda.is_available = lambda: True
        cuda.device_count = lambda: self.card["count"]
        cuda._lazy_call = lambda call, **kw: None  # seeds of a generator that does not exist
        cuda.get_device_properties = cuda._get_device_properties = lambda device=None: (
            self.properties
        )
        cuda.get_device_name = lambda device=None: self.properties.name
        cuda.get_device_capability = lambda device=None: (
            self.properties.major,
            self.properties.minor,
        )
        cuda.get_arch_list = lambda: ["sm_80", "sm_90"]
        cuda.is_bf16_supported = lambda including_emulation=True: (
            including_emulation or self.properties.major >= 8
        )
        cuda.is_tf32_supported = lambda: self.properties.major >= 8
        info = lambda device=None: (
            max(0, self.properties.total_memory - self.recorder.allocated),
            self.properties.total_memory,
        )
        cuda.mem_get_info = cuda.memory.mem_get_info = info
        cuda.cudart = lambda: types.SimpleNamespace(
            cudaMemGetInfo=info, cudaProfilerStart=lambda: 0, cudaProfilerStop=lambda: 0
        )

        def state(device: Any = "cuda") -> Any:
            return torch.zeros(16, dtype=torch.uint8)

        for module in (cuda, cuda.random):
            module.get_rng_state = state
            module.get_rng_state_all = lambda: [state() for _ in range(self.card["count"])]
            module.set_rng_state = lambda new_state, device="cuda": None
            module.set_rng_state_all = lambda states: None
            module.manual_seed = module.manual_seed_all = lambda seed: None
            module.seed = module.seed_all = lambda: None
            module.initial_seed = lambda: 0
        for name in ("utilization", "temperature", "power_draw", "clock_rate", "memory_usage"):
            setattr(cuda, name, lambda device=None: 0)
        cuda.device_memory_used = lambda device=None: self.recorder.allocated
        cuda.list_gpu_processes = lambda device=None: "GPU:0\nno processes are running"

    def _answer_streams(self) -> None:
        cuda, card = torch.cuda, self

        class StreamContext:
            def __init__(self, stream: Stream | None) -> None:
                self.stream = stream

            def __enter__(self) -> None:
                self.before = card.switch(self.stream)

            def __exit__(self, *exc: object) -> None:
                card.switch(self.before)

        cuda.Stream = cuda.streams.Stream = cuda.ExternalStream = Stream
        cuda.Event = cuda.streams.Event = Event
        cuda.StreamContext = StreamContext
        cuda.stream = lambda stream: StreamContext(stream)
        cuda.set_stream = self.switch
        cuda.current_stream = lambda device=None: self.current
        cuda.default_stream = lambda device=None: Stream(stream_id=0)

    def _answer_accelerator(self) -> None:
        accelerator = getattr(torch, "accelerator", None)
        if accelerator is None:
            return
        answers = {
            "is_available": lambda: True,
            "device_count": lambda: self.card["count"],
            "current_device_index": lambda: self.device,
            "current_device_idx": lambda: self.device,
            "set_device_index": self.set_device,
            "set_device_idx": self.set_device,
            "current_accelerator": lambda check_available=False: torch.device("cuda"),
            "synchronize": lambda *a: None,
            "current_stream": lambda device=None: self.current,
            "set_stream": self.switch,
            "empty_cache": self.recorder.empty_cache,
            "memory_allocated": torch.cuda.memory_allocated,
            "max_memory_allocated": torch.cuda.max_memory_allocated,
            "memory_reserved": torch.cuda.memory_reserved,
            "max_memory_reserved": torch.cuda.max_memory_reserved,
            "memory_stats": torch.cuda.memory_stats,
            "reset_peak_memory_stats": lambda *a: self.reset_peak(0),
            "reset_accumulated_memory_stats": lambda *a: None,
            "get_memory_info": lambda device=None: torch.cuda.mem_get_info(),
        }
        for name, answer in answers.items():
            if hasattr(accelerator, name):
                setattr(accelerator, name, answer)
            if hasattr(getattr(accelerator, "memory", None), name):
                setattr(accelerator.memory, name, answer)
        torch._C._accelerator_getAccelerator = lambda: torch.device("cuda")

    def set_device(self, device: int | str | torch.device) -> None:
        if isinstance(device, (str, torch.device)):
            device = torch.device(device).index or 0
        if device >= self.card["count"]:
            raise RuntimeError(
                "CUDA error: invalid device ordinal (the rehearsal has %d card)"
                % self.card["count"]
            )
        if device >= 0 and device != self.device:
            self.device = device
            set_index = getattr(torch._C, "_accelerator_setDeviceIndex", None)
            if set_index is not None:  # what C++ takes for a card that is given without a number
                set_index(device)

    def exchange(self, device: int) -> int:
        before = self.device
        self.set_device(device)
        return before

    def switch(self, stream: Stream | None) -> Stream:
        before = self.current
        if stream is not None:
            self.current = stream
            self.recorder.stream = getattr(stream, "stream_id", 0)
        return before

    def stats(self, device: int) -> dict[str, Any]:
        def row(current: int, peak: int) -> dict[str, dict[str, int]]:
            return {
                k: {"current": current, "peak": peak, "allocated": peak, "freed": peak - current}
                for k in ("all", "small_pool", "large_pool")
            }

        r = self.recorder
        byte_row, count_row, reserved = (
            row(r.allocated, r.peak),
            row(len(r.live), len(r.live)),
            row(r.peak, r.peak),
        )
        stats: dict[str, Any] = {
            k + "_bytes": byte_row for k in ("allocated", "active", "requested")
        }
        stats.update({k: count_row for k in ("allocation", "active", "segment", "inactive_split")})
        stats.update(
            reserved_bytes=reserved,
            inactive_split_bytes=row(0, 0),
            num_alloc_retries=0,
            num_ooms=0,
            max_split_size=-1,
            num_sync_all_streams=0,
            num_device_alloc=0,
            num_device_free=0,
            oversize_allocations=row(0, 0)["all"],
            oversize_segments=row(0, 0)["all"],
        )
        return stats

    def reset_peak(self, device: int) -> None:
        self.recorder.peak = self.recorder.allocated


# bool AcceleratorHooksInterface::hasPrimaryContext(DeviceIndex): the virtual function after the two
# destructors, isBuilt and isAvailable (torch 2.5 to 2.11).
_SLOT, _ENTRIES = 4, 160
_CONTEXT = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_int8)(
    lambda hooks, device: True
)
_TABLE = (ctypes.c_void_p * (_ENTRIES + 2))()  # both live as long as the process


def _lead_engine_past_driver() -> None:
    """Before each backward pass the engine asks torch's CUDA hooks whether a card has a context,
    and they ask a driver. The hooks are one object; it gets a copy of its own table of functions in
    which this one answer is yes. Were the slot another one some day, the first backward pass would
    say so (script.py); nothing calls its neighbours without a driver.
    """
    try:
        library = ctypes.CDLL(
            os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so")
        )
        hooks_of = library._ZN2at6detail12getCUDAHooksEv
    except (OSError, AttributeError) as e:
        raise NotImplementedError(
            "this build of torch %s has no CUDA to rehearse for: %s" % (torch.__version__, e)
        ) from None
    hooks_of.restype = ctypes.c_void_p
    hooks = ctypes.c_void_p.from_address(hooks_of())
    ctypes.memmove(
        _TABLE, hooks.value - 16, ctypes.sizeof(_TABLE)
    )  # two words before the functions describe the type
    _TABLE[2 + _SLOT] = ctypes.cast(_CONTEXT, ctypes.c_void_p).value
    hooks.value = ctypes.addressof(_TABLE) + 16
