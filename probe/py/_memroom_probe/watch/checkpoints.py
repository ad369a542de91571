"""Checkpoints that are loaded: how much, to where, and whether the loaded dictionary still lives
beside the model when training goes on. Checkpoints that are saved: what of them is a copy of the
weights that was made in host memory for it.

Only weak references to the loaded tensors are kept, until they are looked at once, some steps
later.
"""

from __future__ import annotations

import functools
import io
import sys
import types
import weakref
from typing import TYPE_CHECKING, Any, Callable, Iterator

from .. import compiled, guard, imports, link, where
from . import holders, host, models, steps, torch_account

if TYPE_CHECKING:
    from torch import Tensor, device

MOST_TENSORS = 20000
LEAST = 8 << 20  # bytes of a file that are worth a look
LATER = 3  # steps after which the dictionary should be gone
MOST_SAVES = 20  # that are looked at: what one of them copies, the next ones copy too


class Checkpoints:
    """The checkpoints that this process loads and saves."""

    __slots__ = ("_account", "_loop", "_reads", "_saves", "_torch")

    def __init__(self, torch: Any, loop: steps.Loop, account: torch_account.Account) -> None:
        self._torch, self._loop, self._account = torch, loop, account
        self._saves = 0
        # not before torch 2.0: neither loads nor saves are looked at there
        self._reads = hasattr(torch.Tensor, "untyped_storage")

    def install(self) -> None:
        torch = self._torch
        if not self._reads:
            return
        imports.when_imported("safetensors.torch", self._hook_safetensors)
        original = torch.load

        @compiled.left_alone
        @functools.wraps(original)
        def load(*args: Any, **kwargs: Any) -> Any:
            if args and not kwargs.get("mmap"):
                where.reads(args[0])
            loaded = original(*args, **kwargs)
            if not kwargs.get("mmap"):  # else pages of the file, which all processes share
                self._loaded(loaded)
            return loaded

        torch.load = load

    def _hook_safetensors(self, module: Any) -> None:
        """Files of safetensors. Saving tensors of a card brings all of them into host memory at
        once, and before 0.6 it made a copy of those in host memory too.
        """
        load = module.load_file
        copies = not hasattr(module, "_flatten_as_ptr")

        @functools.wraps(load)
        def load_file(*args: Any, **kwargs: Any) -> dict[str, Tensor]:
            loaded = load(*args, **kwargs)
            self._loaded(loaded)
            answer: dict[str, Tensor] = loaded
            return answer

        def saver(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def save(tensors: dict[str, Tensor], *args: Any, **kwargs: Any) -> bytes | None:
                result = original(tensors, *args, **kwargs)
                self.saved(tensors, result, moved="all" if copies else "card")
                answer: bytes | None = result
                return answer

            return save

        module.load_file = load_file
        module.save_file = saver(module.save_file)
        module.save = saver(module.save)

    @guard.hook("saved", heavy=True)
    def saved(self, thing: object, into: object, moved: str = "") -> None:
        """A checkpoint was saved, and what it was made of is still there. into is the file, or the
        bytes that it has become; moved says which of the tensors the library has copied: "all",
        those of the "card", or none.
        """
        if self._saves >= MOST_SAVES or self._loop.step == 0 or not self._reads:
            return
        whole, copied, card = self._copied(thing)
        built = _built(into) if _own_call() else 0
        if moved:
            copied += card + (whole - copied - card if moved == "all" else 0)
        if max(copied, built) < LEAST:
            return
        self._saves += 1
        file, line = models.line()
        link.send(
            "saved",
            {
                "step": self._loop.step,
                "bytes": whole,
                "copied": copied,
                "built": built,
                "anonymous": host.memory()[1],
                "heap": host.heap(),
                "file": file,
                "line": line,
            },
        )

    def _copied(self, thing: object) -> tuple[int, int, int]:
        """(bytes of all tensors, of those in host memory that are copies, of those on a card). A
        copy is what has the shape of a live parameter or of its optimizer state and is none of
        them.
        """
        live: set[int] = set()  # addresses of storages
        shapes: set[tuple[int, ...]] = set()
        for tensor in self._account.live_tensors():
            live.add(tensor.untyped_storage().data_ptr())
            shapes.add(tuple(tensor.shape))
        seen: set[tuple[device, int]] = set()
        whole = copied = card = 0
        for tensor in self._tensors(thing):
            storage = tensor.untyped_storage()
            at = (tensor.device, storage.data_ptr())
            if at in seen:
                continue
            seen.add(at)
            size = storage.nbytes()
            whole += size
            if tensor.device.type != "cpu":
                card += size
            elif at[1] not in live and tuple(tensor.shape) in shapes:
                copied += size
        return whole, copied, card

    @guard.hook("load", heavy=True)
    def _loaded(self, loaded: object) -> None:
        sizes: dict[int, int] = {}  # data pointer -> bytes
        refs: list[weakref.ref[Tensor]] = []
        card = 0
        for tensor in self._tensors(loaded):
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
        link.send("checkpoint", dict(told, step=self._loop.step))
        self._loop.at(self._loop.step + LATER, lambda step: self._later(refs, told), wake=True)

    def _tensors(self, loaded: object) -> Iterator[Tensor]:
        """The tensors in a loaded object: dictionaries, lists and modules, without running code of
        the program.
        """
        waiting: list[Any] = [loaded]
        seen = 0
        while waiting and seen < MOST_TENSORS:
            thing = waiting.pop()
            seen += 1
            if isinstance(thing, self._torch.Tensor):
                if thing.layout is self._torch.strided:  # sparse ones have no storage of their own
                    yield thing
            elif isinstance(thing, self._torch.nn.Module):
                waiting.extend(thing.state_dict().values())
            elif isinstance(thing, dict):
                waiting.extend(dict.values(thing))
            elif isinstance(thing, (list, tuple)):
                waiting.extend(thing)

    def _later(self, refs: list[weakref.ref[Tensor]], told: dict[str, Any]) -> None:
        """Tells what of a checkpoint is still there, apart from what the model has taken over."""
        taken = {p.untyped_storage().data_ptr() for p in self._account.live_parameters()}
        kept: list[Tensor] = []
        sizes: dict[int, int] = {}  # data pointer -> bytes
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
                step=self._loop.step,
                kept=total,
                holder=best.name.partition("[")[0] if best else "",
                holder_file=best.file if best else "",
                holder_line=holders.line_of(best) if best else 0,
            ),
        )


def _own_call() -> bool:
    """Returns whether the program itself saved. A library that builds its files in memory, as
    Lightning does, cannot be told not to.
    """
    frame: types.FrameType | None = sys._getframe()
    while frame is not None and "_memroom_probe" in frame.f_code.co_filename:
        frame = frame.f_back
    return frame is not None and holders.is_users(frame.f_code.co_filename)


def _built(into: object) -> int:
    """Bytes of a file that was built in memory."""
    if isinstance(into, bytes):
        return len(into)
    return into.tell() if type(into) is io.BytesIO else 0
