"""DataLoaders with fewer workers, or without pinned memory."""

import functools
from typing import Any, Dict, List


def data_loader(changes: Any, id: Any, words: Any, equivalence: Any) -> Any:
    """A remedy that changes how DataLoaders are made. changes(kwargs) edits the arguments and says
    whether it did.
    """

    def install(params: Any, say: Any) -> None:
        from torch.utils.data import DataLoader

        original = DataLoader.__init__
        told: List[bool] = []

        @functools.wraps(original)
        def __init__(self: Any, dataset: Any, *args: Any, **kwargs: Any) -> None:
            if changes(kwargs, params) and not told:
                told.append(True)
                say(
                    "applied",
                    words % params if "%" in words else words,
                    id=id,
                    equivalence=equivalence,
                )
            original(self, dataset, *args, **kwargs)

        DataLoader.__init__ = __init__

    return install


def fewer_workers(kwargs: Dict[str, Any], params: Dict[str, Any]) -> bool:
    most = int(params.get("workers", 0))
    if kwargs.get("num_workers", 0) <= most:
        return False
    kwargs["num_workers"] = most
    if most == 0:
        for name in ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout"):
            kwargs.pop(name, None)
    elif kwargs.get("prefetch_factor"):
        kwargs["prefetch_factor"] = min(2, kwargs["prefetch_factor"])
    return True


def no_pinning(kwargs: Dict[str, Any], params: Dict[str, Any]) -> bool:
    return bool(kwargs.pop("pin_memory", False))
