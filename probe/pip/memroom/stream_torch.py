"""Streams as torch data sets. Loaded only where torch is used."""

from typing import Any, Dict, Iterator

import torch
from torch.utils.data import IterableDataset, get_worker_info

from .passes import Passes
from .streaming import Stream


def dataset(stream: Stream) -> Any:
    return Batches(stream)


class Batches(IterableDataset):
    """Batches as tensors. Workers of a DataLoader take turns, so that the loader gives batches in
    the stream's order whatever their number is.
    """

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.number = 0  # passes that this process has begun
        self.loaded = False  # a state was loaded here and not read from yet
        if stream.passes is None:
            stream.passes = Passes()

    def __iter__(self) -> Iterator[Dict[str, Any]]:
        worker = get_worker_info()
        if worker is None:
            yield from self._tensors(0, 1)
            return
        seed, number = int(worker.seed - worker.id) & (1 << 64) - 1 or 1, self.number
        self._agree(seed, number)
        stream = self.stream
        for batch in self._tensors(worker.id, worker.num_workers):
            if stream._left(worker.id, worker.num_workers) <= 0:
                # Said before the last batch: a loop that counts them does not ask for another.
                stream.passes.finish(seed, number)
            yield batch
        stream.passes.finish(seed, number)

    def _agree(self, seed: int, number: int) -> None:
        """All workers of a pass read the same epoch, and the next pass the next one."""
        stream = self.stream
        if not self.loaded:
            # What was read before this pass was read by the process that starts the workers, one
            # batch at a time. A pass of workers that was left begins anew.
            read = stream._done if number == 0 else 0
            stream._start, stream._done = stream._start + read * stream.world, 0
        epoch = stream.passes.begin(seed, number, stream.epoch, self.loaded)
        if epoch != stream.epoch:
            stream._epoch, stream._start, stream._done = epoch, 0, 0
        self.number, self.loaded = number + 1, False

    def _tensors(self, worker: int, workers: int) -> Iterator[Dict[str, Any]]:
        for batch in self.stream._iterate(worker, workers):
            yield {name: _tensor(values) for name, values in batch.items()}

    def __len__(self) -> int:
        return len(self.stream)

    def set_epoch(self, epoch: int) -> None:
        self.stream.set_epoch(epoch)

    def state_dict(self) -> Dict[str, Any]:
        """Of the whole stream; in a worker, of that worker's share."""
        worker = get_worker_info()
        state = self.stream.state_dict()
        if worker is not None:
            state["batch"] = self.stream._start
            state["done"] = self.stream._done
            state["workers"] = worker.num_workers
        return state

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        worker = get_worker_info()
        workers = 1 if worker is None else worker.num_workers
        if state.get("workers", workers) != workers:
            raise ValueError(
                "this state was taken in one of %d workers, there are %d: use the state of the "
                "stream itself, stream.state_at(batches)" % (state["workers"], workers)
            )
        self.stream.load_state_dict(state)
        self.stream._done = int(state.get("done", 0))
        self.loaded = worker is not None


def _tensor(values: Any) -> Any:
    if values.dtype.kind in "biufc" and values.dtype.isnative:
        return torch.from_numpy(values) if values.flags.writeable else torch.tensor(values)
    return values  # texts, lists and times have no tensor
