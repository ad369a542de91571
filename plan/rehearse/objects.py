"""Python objects that ranks send each other: the others are taken to send what this one would."""

from types import ModuleType
from typing import Any, List, Optional

from ..imports import when_imported

UNKNOWN = "an object that another rank would send is not known: the script got None"
STRATEGIES = ("lightning.pytorch", "lightning.fabric", "pytorch_lightning", "lightning_fabric")


def install(module: Any, public: Any, rehearsal: Any) -> None:
    """`module` is torch.distributed.distributed_c10d, `public` torch.distributed, or None."""
    warn = rehearsal.recorder.warn

    def all_gather_object(object_list: List[Any], obj: Any, group: Any = None) -> None:
        object_list[:] = [obj] * len(object_list)

    def gather_object(
        obj: Any, object_gather_list: Optional[List[Any]] = None, *to: Any, **group: Any
    ) -> None:
        if object_gather_list:
            object_gather_list[:] = [obj] * len(object_gather_list)

    def broadcast_object_list(object_list: List[Any], *source: Any, **group: Any) -> None:
        if any(obj is None for obj in object_list):
            warn(UNKNOWN)

    def scatter_object_list(
        scatter_object_output_list: List[Any],
        scatter_object_input_list: Optional[List[Any]] = None,
        *source: Any,
        **group: Any,
    ) -> None:
        if scatter_object_input_list:
            mine = module.get_rank(group.get("group"))
            scatter_object_output_list[0] = scatter_object_input_list[mine]
        else:
            warn(UNKNOWN)

    def send_object_list(object_list: List[Any], *to: Any, **group: Any) -> None:
        pass

    def recv_object_list(
        object_list: List[Any], src: Optional[int] = None, *rest: Any, **group: Any
    ) -> int:
        warn(UNKNOWN)
        return src or 0

    for ours in (
        all_gather_object,
        gather_object,
        broadcast_object_list,
        scatter_object_list,
        send_object_list,
        recv_object_list,
    ):
        for place in (module, public):
            if place is not None and hasattr(place, ours.__name__):
                setattr(place, ours.__name__, ours)


def watch() -> None:
    """Lightning empties what it broadcasts on every rank but the first: there it stays as it is."""
    for name in STRATEGIES:
        when_imported(name + ".strategies", _keep)


def _same(strategy: Any, obj: Any, src: int = 0) -> Any:
    return obj


def _keep(module: ModuleType) -> None:
    for kind in vars(module).values():
        if isinstance(kind, type) and "broadcast" in vars(kind):
            kind.broadcast = _same
