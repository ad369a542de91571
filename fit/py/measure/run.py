"""Runs a module forward and backward on a few samples, and reads what that took.

Everything is put back afterwards: random generators, buffers, gradients.
"""

import contextlib
import dataclasses
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

import torch

from ..batch.inputs import is_tensor
from ..calls import aside, generators, keepsakes, outermost, packing, tree, weights
from ..calls.again import bears_no_grad, without_own_drops
from ..memory.room import is_one_of_several_ranks
from ..remedies import sparse_gradients
from .parts import Record


@dataclasses.dataclass
class Seen:
    """What one run showed."""

    saved: int  # bytes kept for backward
    late: int  # of them the largest storage, where it came near the end
    peak: int  # bytes
    seconds: float
    outputs: Tuple[int, int, bool, bool]  # bytes, elements, in half precision, with a loss
    records: Dict[int, Record]  # of the modules inside, by their id
    once: bool  # a second run would be seen
    results: List[torch.Tensor]  # some elements of each
    repeats: bool = True  # a second run gave the same results
    way: Optional[Callable[..., None]] = None  # how gradients were taken
    least: int = 0  # bytes that the peak has at the least: what is kept, results, gradients
    graph: int = 0  # bytes of host memory that the graph itself takes, where training is there

    def same_results(self, other: Any) -> Any:
        """Up to what kernels that add in any order may differ by."""
        return len(self.results) == len(other.results) and all(
            a.shape == b.shape and _near(a, b) for a, b in zip(self.results, other.results)
        )


KEPT = 4096  # elements of each result that are compared with those of a second run


def _near(a: Any, b: Any) -> Any:
    good = torch.isfinite(a) & torch.isfinite(b)
    a, b = a[good], b[good]
    return not len(a) or bool((a - b).abs().max() <= 1e-2 * max(float(a.abs().max()), 1e-6))


def one(
    module: torch.nn.Module,
    call: Callable[..., Any],
    inputs: Any,
    rows: int,
    room: Any,
    backward: Callable[..., Any],
) -> Any:
    """Runs the module forward and backward on a few rows."""
    args, kwargs = inputs.pick(list(range(rows)))
    room.start_peak()
    before, lengths, drawn = room.held(), keepsakes.lengths(module), generators.read(module)
    room.wait()
    begin = time.perf_counter()
    tally = _Tally(module, (args, kwargs))
    watch = _Watch(module, tally)
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(
        tally.pack, tally.unpack
    ), watch:
        results = [t for t in tree.flatten(call(*args, **kwargs))[0] if is_tensor(t)]
    generators.note_drawn(drawn, generators.read(module))
    outputs = sum(t.numel() * t.element_size() for t in results)
    graph = 0 if room.is_card else max(0, room.held() - before - tally.bytes - outputs)
    differentiate(module, results, backward)
    room.wait()
    seconds = time.perf_counter() - begin
    gradients = sum(p.numel() * p.element_size() for p in module.parameters() if p.requires_grad)
    peak = room.peak() - before if room.peak() > before else 0
    differentiable = [t for t in results if t.requires_grad]
    described = (
        outputs,
        sum(t.numel() for t in differentiable),
        any(t.element_size() < 4 for t in differentiable),
        any(t.dim() == 0 for t in differentiable),
    )
    for key in tally.twice & set(watch.records):
        watch.records[key].twice = True
    least = tally.bytes + outputs + gradients
    return Seen(
        tally.bytes,
        tally.late(),
        max(peak, least),
        seconds,
        described,
        watch.records,
        bool(tally.twice) or keepsakes.lengths(module) != lengths,
        [t.detach().flatten()[:KEPT].double() for t in results if not t.is_complex()],
        least=least,
        graph=graph,
    )


def differentiate(module: torch.nn.Module, results: Any, backward: Callable[..., Any]) -> None:
    """Runs the backward pass of a call. backward: how gradients are taken."""
    sums = [t.float().sum() for t in results if t.requires_grad and t.is_floating_point()]
    if sums:
        backward(sums, [p for p in module.parameters() if p.requires_grad])


def by_grad(sums: Any, parameters: Any) -> None:
    """Takes gradients and drops them."""
    with sparse_gradients.as_in_training(parameters):
        torch.autograd.grad(sums, parameters, allow_unused=True)


def by_backward(sums: Any, parameters: Any) -> None:
    """The same where only backward() will do: the script's own gradients are laid aside
    meanwhile.
    """
    kept = [p.grad for p in parameters]
    try:
        for p in parameters:
            p.grad = None
        torch.autograd.backward(sums)
    finally:
        for p, grad in zip(parameters, kept):
            p.grad = grad


def way_to_gradients(
    module: torch.nn.Module, call: Callable[..., Any], inputs: Any, rows: int, room: Any
) -> Any:
    """How gradients can be taken from this module, and what a run showed, which also fills
    workspaces and caches; generators are left as they were. torch's reentrant checkpointing wants
    backward(), which is not tried where somebody waits for gradients: other ranks, hooks.
    """
    states = generators.read(module)
    try:
        return by_grad, one(module, call, inputs, rows, room, by_grad)
    except RuntimeError as why:
        hooked = any(
            p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None)
            for p in module.parameters()
        )
        if not bears_no_grad(why) or hooked or is_one_of_several_ranks():
            raise
    finally:
        generators.put_back(states)
    try:
        return by_backward, one(module, call, inputs, rows, room, by_backward)
    finally:
        generators.put_back(states)


LATE = 0.8  # of what is saved in the end, from which on something comes late


class _Tally:
    """Counts the storages that autograd keeps, each once, parameters and what the call was given
    not at all, which is there whatever is done; and finds the modules whose backward pass asks for
    a saved tensor twice, which checkpointing answers with an error.
    """

    def __init__(self, module: Any, given: Any) -> None:
        self.bytes, self.calls = 0, [id(module)]
        self.twice: Set[Any] = set()
        self.sizes: List[Any] = []  # bytes of each storage, in the order in which they are kept
        self._largest, self._before_largest = 0, 0
        self.seen = tree.storages((list(module.parameters()), given))

    def pack(self, tensor: torch.Tensor) -> Any:
        if not aside.has_memory(tensor):
            return [tensor.detach(), tuple(self.calls)]
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.seen:
            self.seen.add(storage.data_ptr())
            if storage.nbytes() > self._largest:
                self._largest, self._before_largest = storage.nbytes(), self.bytes
            self.bytes += storage.nbytes()
            self.sizes.append(storage.nbytes())
        return [
            tensor.detach(),
            tuple(self.calls),
        ]  # a saved result that keeps its own node would be a cycle

    def late(self) -> Any:
        """Bytes of the largest storage where it comes near the end, as logits do: its gradient is
        there with all that was saved.
        """
        return self._largest if self._before_largest + self._largest >= LATE * self.bytes else 0

    def unpack(self, packed: Any) -> Any:
        if len(packed) > 2:
            self.twice.update(packed[1])
        packed.append("asked for")
        return packed[0]


class _Watch:
    """Reads the tally around the call of every module inside."""

    def __init__(self, module: Any, tally: Any) -> None:
        self.inside, self.tally = [m for m in module.modules() if m is not module], tally
        self.records: Dict[Any, Any] = {}

    def __enter__(self) -> None:
        outermost.handle_inner(self.inside, self)

    def __exit__(self, *_: Any) -> None:
        outermost.leave_inner(self.inside)

    def __call__(
        self,
        module: torch.nn.Module,
        call: Callable[..., Any],
        args: Tuple[Any, ...],
        kwargs: Dict[str, Any],
    ) -> Any:
        tensors = [t for t in tree.flatten((args, kwargs))[0] if is_tensor(t)]
        record = self.records.setdefault(id(module), Record(len(self.records)))
        before, versions, lengths = (
            len(self.tally.sizes),
            [t._version for t in tensors],
            keepsakes.lengths(module),
        )
        self.tally.calls.append(id(module))
        result = call(*args, **kwargs)
        self.tally.calls.pop()
        kept = self.tally.sizes[before:]
        record.saved += sum(kept)
        record.largest = max([record.largest, *kept])
        record.given += sum(t.numel() * t.element_size() for t in tensors if t.requires_grad)
        if (
            any(t._version != v for t, v in zip(tensors, versions))
            or keepsakes.lengths(module) != lengths
        ):
            record.once = True
        return result


class _State:
    """Buffers and parameters of a module as they were. most: bytes of buffers that are copied; of
    those beyond, only whether they have changed is known.
    """

    def __init__(self, module: Any, most: Any = float("inf")) -> None:
        self.module, self.buffers, self.large = module, [], []
        for b in module.buffers():
            most -= b.numel() * b.element_size()
            if most >= 0:
                self.buffers.append((b, b.detach().clone()))
            elif not b.is_inference():
                self.large.append((b, b._version))
        self.places = [(m._buffers, dict(m._buffers)) for m in module.modules() if m._buffers]
        self.parameters = weights.Kept(module)

    def put_back(self) -> None:
        self.parameters.put_back()
        with torch.no_grad():
            for buffer, value in self.buffers:
                if buffer.shape == value.shape:
                    buffer.copy_(value)
        for names, before in self.places:  # a call may replace a buffer
            names.update((key, b) for key, b in before.items() if names.get(key) is not b)

    def again(self) -> None:
        """Puts them back, and keeps them for once more."""
        self.put_back()
        self.parameters = weights.Kept(self.module)


class Before:
    """A module and its generators as they are before a call, to be put back after it."""

    def __init__(self, module: Any, most: Any = float("inf")) -> None:
        self.state, self._attributes = _State(module, most), keepsakes.Snapshot(module)
        self._drawn = generators.read(module)

    def can_be_put_back(self) -> bool:
        """Whether the call has left alone what is too large to be copied, as a queue of keys."""
        return all(buffer._version == version for buffer, version in self.state.large)

    def learning(self) -> Any:
        """Around the call: which parameters it changes, where no trial has shown that."""
        return self.state.parameters.learn()

    def put_back(self) -> None:
        self._attributes.put_back()
        generators.put_back(self._drawn)
        self.state.put_back()


@contextlib.contextmanager
def put_back(module: torch.nn.Module) -> Iterator[Any]:
    before = Before(module)
    try:
        with without_own_drops(module), packing.checked():
            yield before.state
    finally:
        before.put_back()
