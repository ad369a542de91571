"""Keeps a rehearsal from touching anything outside: disks, networks, other processes.

The script believes that it saves, logs and downloads. Nothing is written and nothing is fetched:
what it would have fetched is either not needed (weights: a model of the same configuration weighs
the same) or named in the one error it ends with.
"""

from __future__ import annotations

import inspect
import os
import sys
from typing import TYPE_CHECKING, Any, Callable

from ..imports import when_imported
from . import kernels, objects, overlay, ranks

if TYPE_CHECKING:
    import torch

    from .install import Rehearsal
    from .stage import Stage

Warn = Callable[[str], None]  # adds a sentence to the answer

OFFLINE = {
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "MLFLOW_TRACKING_URI": "",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DISABLE_MLFLOW_INTEGRATION": "TRUE",
    "TOKENIZERS_PARALLELISM": "false",
}
SAVED = "checkpoints were not written"
LOGGED = "logs were not written"
WEIGHTS = "pretrained weights were not read: models were built from their configurations"


def quiet_environment() -> None:
    """Set before anything is imported: libraries read these once."""
    for name, value in OFFLINE.items():
        os.environ[name] = value
    os.environ.pop("MLFLOW_TRACKING_URI", None)


def watch(rehearsal: Rehearsal) -> None:
    """Called before anything is imported: a library may import torch in the middle of its own
    import.
    """
    warn = rehearsal.recorder.warn
    when_imported("transformers.modeling_utils", lambda m: _transformers(m, rehearsal))
    when_imported("transformers.configuration_utils", lambda m: _configurations(m, rehearsal))
    when_imported("transformers.trainer", lambda m: _trainer(m, warn))
    when_imported(
        "safetensors.torch", lambda m: _replace(m, warn, SAVED, "save_file", "save_model")
    )
    when_imported("torch.utils.tensorboard.writer", lambda m: _tensorboard(m, warn))
    when_imported("torch.distributed.distributed_c10d", lambda m: ranks.install(m, rehearsal))
    when_imported("torch.distributed.fsdp._flat_param", ranks.flat_parameters)
    when_imported("torch.distributed.tensor._sharding_prop", ranks.shapes_apart)
    objects.watch()
    kernels.watch(rehearsal)
    when_imported(
        "torch.distributed.checkpoint.state_dict_saver",
        lambda m: _replace(m, warn, SAVED, "save", "async_save"),
    )


def install(rehearsal: Rehearsal) -> None:
    """Called when torch has been imported."""
    torch, warn = rehearsal.torch, rehearsal.recorder.warn
    _no_network(rehearsal)
    _one_process(rehearsal, torch)
    _compile(rehearsal)
    _loads(torch, warn)
    _threads(rehearsal.stage)


def _replace(module: Any, warn: Warn, text: str, *names: str) -> None:
    for name in names:
        if hasattr(module, name):
            setattr(module, name, lambda *a, **k: warn(text))


def _no_network(rehearsal: Rehearsal) -> None:
    """Only sockets of this machine connect."""
    import socket

    connect = socket.socket.connect

    def refuse(self: Any, address: Any) -> None:
        if (
            isinstance(address, tuple)
            and address
            and str(address[0]) not in ("localhost", "127.0.0.1", "::1")
        ):
            rehearsal.recorder.warn("the network was off: %s was not reached" % (address[0],))
            raise ConnectionRefusedError(
                "a rehearsal does not use the network: %s was not reached" % (address[0],)
            )
        return connect(self, address)

    socket.socket.connect = refuse


def _tensorboard(module: Any, warn: Warn) -> None:
    """A writer that forgets: every method of the real one, doing nothing."""

    class SummaryWriter(module.SummaryWriter):
        def __init__(self, log_dir: str | None = None, *args: Any, **kwargs: Any) -> None:
            warn(LOGGED)
            self.log_dir = log_dir or "runs"

        def __getattribute__(self, name: str) -> Any:
            if name.startswith(("add_", "_get_")) or name in ("flush", "close"):
                return lambda *a, **k: None
            return object.__getattribute__(self, name)

    module.SummaryWriter = SummaryWriter
    tensorboard = sys.modules.get("torch.utils.tensorboard")
    if tensorboard is not None:
        tensorboard.SummaryWriter = SummaryWriter


def _one_process(rehearsal: Rehearsal, torch: Any) -> None:
    """Loaders load in this process, and the script may not start others of itself."""
    loader = torch.utils.data.DataLoader
    begin = loader.__init__
    signature = inspect.signature(begin)

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(self, *args, **kwargs)
        for name in (
            "num_workers",
            "prefetch_factor",
            "persistent_workers",
            "pin_memory",
            "multiprocessing_context",
            "timeout",
            "worker_init_fn",
            "pin_memory_device",
        ):
            given.arguments.pop(name, None)
        begin(*given.args, **given.kwargs)  # what follows one that is left out goes by its name

    loader.__init__ = init

    def spawn(
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        nprocs: int = 1,
        join: bool = True,
        daemon: bool = False,
        start_method: str = "spawn",
    ) -> None:
        rank, world = ranks.asked(rehearsal)
        if nprocs != 1 and world == 1:
            rehearsal.fail(ranks.SEVERAL % (nprocs, nprocs))
        fn(rank, *args)

    import torch.multiprocessing as multiprocessing

    multiprocessing.spawn = multiprocessing.start_processes = spawn
    size = os.environ.get("WORLD_SIZE", "1")
    if size.isdigit() and int(size) > 1 and ranks.asked(rehearsal)[1] == 1:
        rehearsal.fail(ranks.SEVERAL % (int(size), int(size)))


def _threads(stage: Stage) -> None:
    """The script's own threads (loaders that work ahead) play on the same stage: a mode of torch
    belongs to one thread.
    """
    import threading

    begin = threading.Thread._bootstrap_inner

    def follow(self: threading.Thread) -> None:
        with stage:
            begin(self)

    threading.Thread._bootstrap_inner = follow


def _compile(rehearsal: Rehearsal) -> None:
    from . import inductor

    inductor.install(rehearsal)


def _loads(torch: Any, warn: Warn) -> None:
    """Files are read into host memory; tensors meant for the card then go there like any others.
    What the script has saved itself is made again.
    """
    load = torch.load

    def read(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("mmap", None)
        value = load(f, "cpu", *args, **kwargs)
        device = None
        if isinstance(map_location, (str, torch.device)):
            device = torch.device(map_location)
        return (
            _moved(torch, value, device) if device is not None and device.type == "cuda" else value
        )

    saved, whole = overlay.Saved(torch), torch.save
    saved.load = read

    def save(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
        if torch.is_storage(obj):  # pickle asks for the bytes of a tensor of the host
            whole(obj, f, *args, **kwargs)
            return
        warn(SAVED)
        saved.save(obj, f)

    torch.save = torch.serialization.save = save
    torch.load = torch.serialization.load = saved.read


def _moved(torch: Any, value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return type(value)((k, _moved(torch, v, device)) for k, v in value.items())
    if type(value) in (list, tuple):
        return type(value)(_moved(torch, v, device) for v in value)
    return value


# -- Hugging Face
# ------------------------------------------------------------


def _transformers(module: Any, rehearsal: Rehearsal) -> None:
    base, warn = module.PreTrainedModel, rehearsal.recorder.warn
    base.save_pretrained = lambda self, *a, **k: warn(SAVED)
    base.push_to_hub = lambda self, *a, **k: warn(SAVED)

    def from_pretrained(
        cls: Any,
        name: Any,
        *args: Any,
        config: Any = None,
        dtype: torch.dtype | str | None = None,
        torch_dtype: torch.dtype | str | None = None,
        device_map: Any = None,
        attn_implementation: str | None = None,
        quantization_config: Any = None,
        load_in_8bit: bool = False,
        load_in_4bit: bool = False,
        **kwargs: Any,
    ) -> torch.nn.Module:
        if quantization_config is not None or load_in_8bit or load_in_4bit:
            return rehearsal.fail(
                "8- and 4-bit loading needs bitsandbytes' kernels, which a rehearsal cannot "
                "play: use `memroom plan CONFIG --load-in 4bit`"
            )
        warn(WEIGHTS)
        if not hasattr(config, "to_dict"):
            config = _config(cls, config or name, kwargs)
        config.name_or_path = name  # where TRL reads a reference from
        options = {}
        dtype = dtype if dtype is not None else torch_dtype
        if dtype in (None, "auto"):
            dtype = getattr(config, "dtype", None) if dtype == "auto" else None
        if dtype is not None:
            options["dtype"] = (
                dtype if not isinstance(dtype, str) else getattr(rehearsal.torch, dtype)
            )
        if attn_implementation:
            options["attn_implementation"] = attn_implementation
        model = cls._from_config(config, **options).eval()
        return model.to("cuda") if _on_card(device_map) else model

    base.from_pretrained = classmethod(from_pretrained)


def _config(cls: Any, name: Any, kwargs: dict[str, Any]) -> Any:
    import transformers

    keep = {
        k: kwargs[k]
        for k in ("revision", "subfolder", "cache_dir", "num_labels", "trust_remote_code")
        if k in kwargs
    }
    return (getattr(cls, "config_class", None) or transformers.AutoConfig).from_pretrained(
        name, **keep
    )


def _configurations(module: Any, rehearsal: Rehearsal) -> None:
    """A configuration that would have to be fetched ends the rehearsal with a sentence about it."""
    base = getattr(module, "PreTrainedConfig", None) or module.PretrainedConfig
    read = base.get_config_dict.__func__

    def get_config_dict(cls: Any, name: Any, **kwargs: Any) -> Any:
        try:
            return read(cls, name, **kwargs)
        except OSError as e:
            rehearsal.fail(
                "the configuration of %s is not on this machine and a rehearsal does not "
                "use the network: fetch it once (hf download %s "
                "config.json), or build the model from a configuration [%s]"
                % (name, name, str(e).strip().splitlines()[0][:160])
            )

    base.get_config_dict = classmethod(get_config_dict)


def _on_card(device_map: Any) -> bool:
    if device_map is None:
        return False
    values = device_map.values() if isinstance(device_map, dict) else [device_map]
    return any(
        str(v) in ("auto", "balanced", "sequential", "cuda")
        or str(v).startswith("cuda")
        or str(v).isdigit()
        for v in values
    )


def _trainer(module: Any, warn: Warn) -> None:
    trainer = module.Trainer
    for name in (
        "_save_checkpoint",
        "save_model",
        "save_state",
        "_save",
        "push_to_hub",
        "_rotate_checkpoints",
    ):
        if hasattr(trainer, name):
            setattr(trainer, name, lambda self, *a, **k: warn(SAVED))
