"""The worst case first, on request: the longest batch that the data can give, an evaluation of it,
and the saving of a checkpoint.

The samples of the first DataLoader that is iterated are looked through for the largest ones, within
a bounded time. The first training call is then measured as if they had come together: its arguments
are made as long as theirs. Nothing that is run here is seen by the loop: no gradients stay,
generators and buffers are put back.
"""

import collections.abc
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from ..batch.inputs import is_tensor
from ..calls import generators, keepsakes, tree
from ..memory import room

PATIENCE = 15.0  # seconds for looking through samples


class Worst:
    def __init__(self, say: Callable[..., Any]) -> None:
        self.say, self._loader = say, None
        self._shapes: Optional[List[Any]] = None
        self._saved = False
        self._listen()

    def _listen(self) -> Any:
        from torch.utils.data import DataLoader

        original, worst = DataLoader.__iter__, self

        def __iter__(loader: Any) -> Any:
            if (
                worst._loader is None
                and loader.batch_size
                and hasattr(loader.dataset, "__len__")
                and hasattr(loader.dataset, "__getitem__")
            ):
                worst._loader = loader
            return original(loader)

        DataLoader.__iter__ = __iter__
        self.leave = lambda: setattr(DataLoader, "__iter__", original)

    def lengthened(
        self, module: torch.nn.Module, args: Tuple[Any, ...], kwargs: Dict[str, Any]
    ) -> Any:
        """(args, kwargs) of the call with the longest batch, or None where that is none longer than
        this one or nobody knows.
        """
        leaves, rebuild = tree.flatten((args, kwargs))
        longer = [self._longest_for(leaf) for leaf in leaves]
        if all(
            shape is None or tuple(shape) == tuple(leaf.shape)
            for leaf, shape in zip(leaves, longer)
        ):
            return None
        return rebuild(
            [
                leaf if shape is None else _stretched(leaf, shape)
                for leaf, shape in zip(leaves, longer)
            ]
        )

    def _longest_for(self, leaf: Any) -> Any:
        """The shape that an argument has in the longest batch: that of the tensor of its kind
        there, where it is longer.
        """
        if not is_tensor(leaf) or leaf.dim() < 2:
            return None
        alike = [s for dtype, s in self._longest() if dtype == leaf.dtype and len(s) == leaf.dim()]
        alike = [s for s in alike if all(a >= b for a, b in zip(s[1:], leaf.shape[1:]))]
        return (leaf.shape[0],) + max(alike, key=lambda s: _product(s[1:]))[1:] if alike else None

    def _longest(self) -> Any:
        """[(dtype, shape)] of the tensors of the longest batch."""
        if self._shapes is None:
            self._shapes = []
            if self._loader is not None:
                try:
                    self._shapes = self._look_through(self._loader)
                except Exception as why:  # a dataset of the script's own
                    self.say(
                        "note",
                        "the longest batch could not be put together: %s: %s"
                        % (type(why).__name__, why),
                        id="micro_batch",
                    )
        return self._shapes

    def _look_through(self, loader: Any) -> Any:
        states = generators.read_all()
        try:
            sizes, until = [], time.monotonic() + PATIENCE
            for i in range(len(loader.dataset)):
                sizes.append((_size(loader.dataset[i]), i))
                if time.monotonic() > until:
                    break
            largest = [i for _, i in sorted(sizes, reverse=True)[: loader.batch_size]]
            batch = loader.collate_fn([loader.dataset[i] for i in largest])
        finally:
            generators.put_back(states)
        tensors = [t for t in tree.flatten(batch)[0] if is_tensor(t)]
        self.say(
            "rehearsed",
            "the longest batch of %d samples%s: %s"
            % (
                len(sizes),
                ""
                if len(sizes) == len(loader.dataset)
                else " (of %d, as far as the time went)" % len(loader.dataset),
                ", ".join("x".join(map(str, t.shape)) for t in tensors),
            ),
            id="micro_batch",
        )
        return [(t.dtype, tuple(t.shape)) for t in tensors]

    def evaluate(
        self,
        module: torch.nn.Module,
        evaluation: Any,
        args: Tuple[Any, ...],
        kwargs: Dict[str, Any],
    ) -> None:
        """Runs the longest batch as an evaluation would. evaluation(args, kwargs): that takes it in
        pieces if it must.
        """
        around = room.of(next(module.parameters()).device)
        flags, buffers, states = (
            [(m, m.training) for m in module.modules()],
            [(b, b.detach().clone()) for b in module.buffers()],
            generators.read(module),
        )
        attributes = keepsakes.Snapshot(module)
        before = around.held()
        around.start_peak()
        try:
            module.eval()
            with torch.no_grad():
                evaluation(args, kwargs)
            taken = (
                " and takes %s" % room.words(max(0, around.peak() - before))
                if around.is_card
                else ""
            )
            self.say(
                "rehearsed", "an evaluation of the longest batch runs%s" % taken, id="micro_batch"
            )
        except Exception as why:
            self.say(
                "note",
                "an evaluation could not be rehearsed: %s: %s" % (type(why).__name__, why),
                id="micro_batch",
            )
        finally:
            for m, training in flags:
                m.training = training
            with torch.no_grad():
                for buffer, value in buffers:
                    buffer.copy_(value)
            attributes.put_back()
            generators.put_back(states)

    def save(self, modules: Any) -> None:
        """Writes what a checkpoint holds to nowhere, once, when optimizers have their state."""
        if self._saved:
            return
        self._saved, sink = True, _Nowhere()
        around, host = room.of(next(modules[0].parameters()).device), room.HostRoom(1)
        before, held = around.held(), host.held()
        around.start_peak()
        try:
            torch.save(
                {
                    "model": [m.state_dict() for m in modules],
                    "optimizer": [o.state_dict() for o in room.optimizers()],
                },
                sink,
            )
        except Exception as why:  # state that cannot be written is the script's affair
            self.say(
                "note",
                "saving could not be rehearsed: %s: %s" % (type(why).__name__, why),
                id="micro_batch",
            )
            return
        taken = (
            " and takes %s of the card" % room.words(max(0, around.peak() - before))
            if around.is_card
            else ""
        )
        self.say(
            "rehearsed",
            "saving a checkpoint writes %s%s, %s of host memory"
            % (room.words(sink.count), taken, room.words(max(0, host.held() - held))),
            id="micro_batch",
        )


class _Nowhere:
    """A file that only counts."""

    def __init__(self) -> None:
        self.count = 0

    def write(self, data: Any) -> Any:
        size = len(data) if isinstance(data, (bytes, bytearray)) else memoryview(data).nbytes
        self.count += size
        return size

    def flush(self) -> None:
        pass


def _size(sample: Any) -> Any:
    """How large a sample is: elements of its tensors and arrays, characters and items of the
    rest.
    """
    if isinstance(sample, collections.abc.Mapping):
        return sum(_size(v) for v in sample.values())
    if hasattr(sample, "shape"):
        return _product(sample.shape)
    if isinstance(sample, (list, tuple)):
        return (
            sum(_size(v) for v in sample)
            if sample and not isinstance(sample[0], (int, float))
            else len(sample)
        )
    return len(sample) if isinstance(sample, (str, bytes)) else 1


def _product(shape: Any) -> Any:
    count = 1
    for n in shape:
        count *= int(n)
    return count


def _stretched(leaf: Any, shape: Any) -> Any:
    """The tensor with each dimension as long as asked for, its content repeated."""
    for dim, length in enumerate(shape):
        if length > leaf.shape[dim]:
            leaf = leaf.index_select(
                dim, torch.arange(length, device=leaf.device) % leaf.shape[dim]
            )
    return leaf
