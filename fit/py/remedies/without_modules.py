"""What autograd saves outside of modules: in networks written as functions of plain tensors,
Gaussian processes, factorised matrices, simulations; and in a loss that a script computes itself of
what a model gives.

There is no call to cut and nothing to run twice, but what is saved can wait in host memory, as that
of a module can. Where a module is trained, this stops, unless the module's calls cannot be what ran
out: then it is for what comes between them.
"""

import contextlib
import functools
import threading
from typing import Any, Callable, Dict, Iterator, Optional

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ..calls import aside, outermost
from ..memory import room
from .activation_offload import Away

MORE = 1.2  # times what lacks room that is sent


class WithoutModules:
    """budget(limit): bytes to plan with; to_come(): of optimizer state. stopped: nothing more is
    sent.
    """

    def __init__(
        self,
        say: Callable[..., None],
        limit: Optional[int],
        budget: Callable[[int], float],
        to_come: Callable[[], float],
    ) -> None:
        self.say, self.limit, self.budget, self.to_come = say, limit, budget, to_come
        self._away = _Kept(torch.nn.Module(), ())
        self._around: Any = None
        self.stopped = False
        self._most: Optional[float] = None  # bytes of a step that are sent; None: not known
        self._beside = False  # modules are trained too
        # Hooks of a thread: programs train on the one that imports torch.
        self._thread = threading.get_ident()
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)
        self._hooks.__enter__()
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        self._listener = register_optimizer_step_pre_hook(self._step)
        outermost.when_forgotten(self.stop)
        _stop_where_hooks_may_not_be(self.stop)

    def stop(self) -> None:
        if self.stopped:
            return
        self.stopped = True
        self._listener.remove()
        self._leave()

    def _leave(self) -> bool:
        """Takes the hooks away; returns whether they were there, with nobody else's in front."""
        top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
        if threading.get_ident() != self._thread or top is None:
            return False
        if (top(True) or (None,))[0] != self._pack:
            return False
        self._hooks.__exit__(None, None, None)
        return True

    # --- where modules are trained

    @contextlib.contextmanager
    def around_module(self) -> Iterator[None]:
        """Around a module's training call, which the others look after."""
        there = self._leave()
        try:
            yield
        finally:
            if there and not self.stopped:
                self._hooks.__enter__()

    def go_on_beside_modules(self, around: Any) -> None:
        """What is saved between the modules' calls waits in host memory from now on."""
        self._beside, self._around = True, around

    def stays(self, sent: int, lacks: float) -> float:
        """Bytes of those that a step sent that stay on the card from the next one on. lacks: bytes
        that have no room there; a little more is sent, because one step says little of the next.
        """
        self._most = most = min(sent, MORE * lacks)
        self._away.next_step(most)
        return sent - most

    def take_sent(self) -> int:
        """Bytes that were sent since this was asked last."""
        sent, self._away.sent = self._away.sent, 0
        return sent

    def _pack(self, tensor: torch.Tensor) -> Any:
        if torch.jit.is_tracing():
            with _unrecorded():
                return tensor.detach()
        if self._around is None and not self.stopped:
            self._begin(tensor)
        return tensor.detach() if self.stopped else self._away.pack(tensor)

    def _unpack(self, packed: Any) -> torch.Tensor:
        return packed if isinstance(packed, torch.Tensor) else self._away.back(packed)

    def _begin(self, tensor: torch.Tensor) -> None:
        around = room.of(tensor.device, self.limit)
        if not around.is_card:
            return
        self._around = around
        around.start_peak()

    def _step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer begins: the passes are over. After the first ones what there is room for
        stays on the card.
        """
        sent = self._away.sent
        if self._beside and self._most is None:
            return self._away.forget_gone()
        if self._beside and self._most is not None:
            return self._away.next_step(self._most)
        if self._around is None or not sent and self._most is None:
            return
        if self._most is None:
            spare = self.budget(self._around.limit) - self._around.peak() - self.to_come()
            self._most = max(0, sent - max(0, spare))
            if self._most:
                self.say(
                    "applied",
                    "no module is called: %d %% of what is saved waits in host memory"
                    % (100 * self._most / sent),
                    id="activation_offload",
                    equivalence="exact",
                    limit=self._around.limit,
                )
        self._away.next_step(self._most)


@contextlib.contextmanager
def _unrecorded() -> Iterator[None]:
    """What runs here is no part of the graph that torch.jit records."""
    state = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)
    try:
        yield
    finally:
        torch._C._set_tracing_state(state)


class _Kept(Away):
    """What others hold anyway is known when it is wanted back: it is not sent again."""

    def __init__(self, module: torch.nn.Module, given: Any) -> None:
        super().__init__(module, given)
        self.held: Dict[
            int, StorageWeakRef
        ] = {}  # name of a storage -> a weak reference, so that the name stays its own

    def pack(self, tensor: torch.Tensor) -> Any:
        if aside.has_memory(tensor):
            storage = StorageWeakRef(tensor.untyped_storage())
            if storage.cdata in self.held:
                return tensor.detach()
        return super().pack(tensor)

    def back(self, packed: Any) -> torch.Tensor:
        storage = getattr(getattr(packed, "sent", packed), "storage", None)
        if storage is not None and not storage.expired():
            self.held[storage.cdata] = storage
        return packed.back()

    def next_step(self, quota: float) -> None:
        self.quota, self.sent = quota, 0
        self.forget_gone()

    def forget_gone(self) -> None:
        self.held = {name: s for name, s in self.held.items() if not s.expired()}


def _stop_where_hooks_may_not_be(stop: Callable[[], None]) -> None:
    """torch's function transforms refuse to run where such hooks are, and what is compiled or
    recorded as a graph must not hold any: stops as soon as a script comes to one of these.
    """
    places = [(torch.autograd.graph, "disable_saved_tensors_hooks"), (torch, "compile")]
    places += [(getattr(torch.cuda, "CUDAGraph", None), "capture_begin")]
    for owner, name in places:
        if hasattr(owner, name):
            _call_first(owner, name, stop)


def _call_first(owner: Any, name: str, first: Callable[[], None]) -> None:
    before = getattr(owner, name)

    @functools.wraps(before)
    def called(*args: Any, **kwargs: Any) -> Any:
        first()
        return before(*args, **kwargs)

    setattr(owner, name, called)
    outermost.when_forgotten(lambda: setattr(owner, name, before))
