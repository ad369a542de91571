"""DataLoaders with fewer workers, or without pinned memory."""

import functools


def data_loader(changes, id, words, equivalence):
    """A remedy that changes how DataLoaders are made. changes(kwargs) edits the arguments and says
    whether it did.
    """

    def install(params, say):
        from torch.utils.data import DataLoader

        original, told = DataLoader.__init__, []

        @functools.wraps(original)
        def __init__(self, dataset, *args, **kwargs):
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


def fewer_workers(kwargs, params):
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


def no_pinning(kwargs, params):
    return bool(kwargs.pop("pin_memory", False))
