"""Activations wait in host memory between forward and backward."""

import weakref
from typing import Any, Callable, Dict, Tuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ..calls import aside, outermost, tree
from ..calls.modules import worth_it

MIB = 1 << 20


def activations(params: Dict[str, Any], say: Callable[..., Any]) -> None:
    outermost.handle(SavedActivations(params.get("above", MIB), say))


class SavedActivations:
    """The remedy as it is asked for by name: everything above a size, for every training call."""

    def __init__(self, above: Any, say: Callable[..., Any]) -> None:
        self.above, self.say, self.told = above, say, False

    def __call__(
        self,
        module: torch.nn.Module,
        call: Callable[..., Any],
        args: Tuple[Any, ...],
        kwargs: Dict[str, Any],
    ) -> Any:
        if not torch.is_grad_enabled() or not worth_it(module):
            return call(*args, **kwargs)
        if not self.told:
            self.told = True
            self.say(
                "applied",
                "%s: saved tensors above %d bytes wait in host memory"
                % (type(module).__name__, self.above),
                id="activation_offload",
                equivalence="exact",
            )
        with Away(module, (args, kwargs), above=self.above):
            return call(*args, **kwargs)


PADDED = 1.5  # times its elements that a tensor's memory may hold to come back as it lay there


class Away:
    """While this is entered, tensors that autograd saves and that are larger than above bytes
    travel to pinned host memory, until quota bytes are there: the first ones, which backward needs
    last. The tensor that goes beyond quota travels too: what stays must be no more than was planned
    with, however large a single one is. keep: bytes that stay at the most, where a longer batch may
    save more than the one that quota was reckoned for. given: what the call was given, which others
    hold, so that sending it would free nothing. Copies run on the stream that computes, so that the
    card's memory is free for the next kernel without waiting for the host.
    """

    def __init__(
        self, module: Any, given: Any, quota: Any = float("inf"), above: Any = MIB
    ) -> None:
        self.own = tree.storages((list(module.parameters()), given))
        self.quota, self.above, self.sent = quota, above, 0
        self.keep, self.stayed = float("inf"), 0
        self.kept: Dict[
            Any, Any
        ] = {}  # name of a storage that stays -> a weak reference, so that it stays its own
        self.known: weakref.WeakValueDictionary[Any, Any] = (
            weakref.WeakValueDictionary()
        )  # what several operations save is sent once
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self.pack, _unpack)

    def __enter__(self) -> None:
        self.hooks.__enter__()

    def __exit__(self, *why: Any) -> None:
        self.hooks.__exit__(*why)
        self.own = set()

    def gave(self, result: Any) -> None:
        """After the call. Whoever called holds what it gave, perhaps until it is needed here."""
        for tensor in (t for t in tree.flatten(result)[0] if isinstance(t, torch.Tensor)):
            if tensor.layout == torch.strided and not tensor.is_inference():
                name = StorageWeakRef(tensor.untyped_storage()).cdata
                mark = name, tensor._version, tensor.dtype
                for sent in list(self.known.values()):
                    if (sent.storage.cdata, sent.version, sent.there.dtype) == mark:
                        sent.alive = weakref.ref(tensor)

    def pack(self, tensor: torch.Tensor) -> Any:
        if not aside.has_memory(tensor):
            return tensor.detach()
        size = tensor.numel() * tensor.element_size()
        if (
            size < self.above
            or tensor.untyped_storage().data_ptr() in self.own
            or tensor.device.type == "cpu"
            and torch.cuda.is_available()
        ):
            return tensor.detach()
        if 0 in tensor.stride():
            return self._pack_expanded(tensor)
        storage = StorageWeakRef(tensor.untyped_storage())
        seen = tuple(tensor.shape), tensor.stride()
        key = (storage.cdata, tensor.storage_offset(), tensor.numel(), tensor.dtype)
        key += (tensor._version, *(() if _dense(tensor) else seen))
        there = self.known.get(key)
        if there is None and self.quota <= 0 and self._may_stay(tensor):
            return tensor.detach()
        if there is None:
            self.quota, self.sent = self.quota - size, self.sent + size
            there = self.known[key] = _Sent(tensor, storage)
        if _dense(tensor):
            return _Seen(there, *seen)
        return _Padded(there, *seen) if _is_padded(tensor) else there

    def _may_stay(self, tensor: torch.Tensor) -> bool:
        if self.keep == float("inf"):
            return True
        storage = StorageWeakRef(tensor.untyped_storage())
        size = tensor.untyped_storage().nbytes()
        if storage.cdata not in self.kept:
            if size > self.keep:
                return False
            self.kept[storage.cdata], self.keep = storage, self.keep - size
            self.stayed += size
        return True

    def _pack_expanded(self, tensor: torch.Tensor) -> Any:
        """What repeats the same numbers takes little room as it is, and much as a copy: an index of
        all edges for each channel of a message. What is repeated travels, if it is large.
        """
        once = tensor.as_strided(
            [n if stride else 1 for n, stride in zip(tensor.shape, tensor.stride())],
            [stride or 1 for stride in tensor.stride()],
            tensor.storage_offset(),
        )
        return _Expanded(self.pack(once), tensor.shape)


def _dense(tensor: torch.Tensor) -> Any:
    """Whether its elements fill one piece of memory: then any other such tensor that begins there
    with as many elements is the same piece in another shape.
    """
    return torch._debug_has_internal_overlap(tensor) == 0


def _is_padded(tensor: torch.Tensor) -> Any:
    """Whether it is most of a piece of memory, as a mask whose rows were made longer for a kernel
    that wants them to begin at certain places.
    """
    extent = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride()))
    return extent <= PADDED * tensor.numel()


class _Padded:
    """What one operation saved of a tensor with gaps. It comes back with the same gaps."""

    def __init__(self, sent: Any, shape: Any, stride: Any) -> None:
        self.sent, self.shape, self.stride = sent, shape, stride

    def back(self) -> Any:
        there = self.sent.there
        padded = torch.empty_strided(
            self.shape, self.stride, dtype=there.dtype, device=self.sent.device
        )
        return padded.copy_(there, non_blocking=True)


class _Seen:
    """What one operation saved: a tensor that waits on the host, in the shape in which it was
    saved. Several operations save one result in several shapes; it travels once.
    """

    def __init__(self, sent: Any, shape: Any, stride: Any) -> None:
        self.sent, self.shape, self.stride = sent, shape, stride

    def back(self) -> Any:
        alive = self.sent.still_there()
        if alive is not None:
            return alive.as_strided(self.shape, self.stride, self.sent.offset)
        return self.sent.back().as_strided(self.shape, self.stride, 0)


class _Expanded:
    """What one operation saved of a tensor that repeats itself."""

    def __init__(self, once: Any, shape: Any) -> None:
        self.once, self.shape = once, shape

    def back(self) -> Any:
        return _unpack(self.once).expand(self.shape)


class _Sent:
    """A tensor that waits on the host. It keeps the shape in which it lay on the card. storage:
    holds the name of what was sent, so that nothing that is made later can be taken for it.
    """

    def __init__(self, tensor: torch.Tensor, storage: Any) -> None:
        self.device, self.storage = tensor.device, storage
        self.offset, self.version = tensor.storage_offset(), tensor._version
        # A weak reference to a tensor with the same memory: a variable of the script may hold it
        # until it is needed here, and then it is taken, instead of a second copy on the card.
        self.alive = weakref.ref(tensor)
        self.there = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
        self.there.copy_(tensor, non_blocking=True)

    def still_there(self) -> Any:
        """A tensor with the same memory, unchanged since it was sent; or None."""
        tensor = self.alive()
        return tensor.detach() if tensor is not None and tensor._version == self.version else None

    def back(self) -> Any:
        return self.there.to(self.device, non_blocking=True)


def _unpack(packed: Any) -> Any:
    return packed if isinstance(packed, torch.Tensor) else packed.back()
