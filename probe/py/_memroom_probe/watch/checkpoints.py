"""Checkpoints that are loaded: how much, to where, and whether the loaded dictionary still lives
beside the model when training goes on.

Only weak references to the loaded tensors are kept, until they are looked at once, some steps
later.
"""

import functools
import weakref

from .. import compiled, guard, link
from . import holders, models, steps

MOST_TENSORS = 20000
LEAST = 8 << 20  # bytes of a file that are worth a look
LATER = 3  # steps after which the dictionary should be gone

_torch = None


def install(torch):
    global _torch
    _torch = torch
    if not hasattr(torch.Tensor, "untyped_storage"):
        return  # before torch 2.0
    original = torch.load

    @compiled.left_alone
    @functools.wraps(original)
    def load(*args, **kwargs):
        loaded = original(*args, **kwargs)
        if not kwargs.get("mmap"):  # else pages of the file, which all processes share
            _loaded(loaded)
        return loaded

    torch.load = load


@guard.hook("load", heavy=True)
def _loaded(loaded):
    sizes: dict = {}  # data pointer -> bytes
    refs, card = [], 0
    for tensor in _tensors(loaded):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in sizes:
            sizes[storage.data_ptr()] = storage.nbytes()
            card += storage.nbytes() if tensor.device.type != "cpu" else 0
        refs.append(weakref.ref(tensor))
    total = sum(sizes.values())
    if total < LEAST:
        return
    file, line = models.line()
    told = {"bytes": total, "card": card, "file": file, "line": line}
    link.send("checkpoint", dict(told, step=steps.step))
    steps.at(steps.step + LATER, lambda step: _later(refs, told), wake=True)


def _tensors(loaded):
    """The tensors in a loaded object: dictionaries, lists and modules, without running code of the
    program.
    """
    waiting, seen = [loaded], 0
    while waiting and seen < MOST_TENSORS:
        thing = waiting.pop()
        seen += 1
        if isinstance(thing, _torch.Tensor):
            yield thing
        elif isinstance(thing, _torch.nn.Module):
            waiting.extend(thing.state_dict().values())
        elif isinstance(thing, dict):
            waiting.extend(dict.values(thing))
        elif isinstance(thing, (list, tuple)):
            waiting.extend(thing)


def _later(refs, told):
    """Tells what of a checkpoint is still there, apart from what the model has taken over."""
    from . import torch_account

    taken = {p.untyped_storage().data_ptr() for p in torch_account.live_parameters()}
    kept, sizes = [], {}
    for tensor in [t for t in (r() for r in refs) if t is not None]:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in taken:
            sizes[storage.data_ptr()] = storage.nbytes()
            kept.append(tensor)
    del refs[:]
    total = sum(sizes.values())
    if 2 * total < told["bytes"]:
        return
    found = holders.look(wanted=set(map(id, kept)))
    best = max(found.values(), key=lambda h: h.count) if found else None
    link.send(
        "checkpoint",
        dict(
            told,
            step=steps.step,
            kept=total,
            holder=best.name.partition("[")[0] if best else "",
            holder_file=best.file if best else "",
            holder_line=holders.line_of(best) if best else 0,
        ),
    )
