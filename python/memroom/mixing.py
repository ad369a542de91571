"""`memroom.mix([a, b], weights=[3, 1])`: one stream whose batches hold rows of several streams."""

import math
from typing import Any, Dict, Iterator, List, Optional, Sequence

from .streaming import Stream


class Mixed:
    """Batches that take a fixed number of rows from each of several streams. A pass ends with the
    first stream that has no more; the next one begins all of them anew, in their next epoch.
    """

    def __init__(self, streams: List[Stream]) -> None:
        self.streams = streams
        self.passes: Any = None

    def __iter__(self) -> Iterator[Dict[str, Any]]:
        return self._iterate(0, 1)

    def __len__(self) -> int:
        return min(len(stream) for stream in self.streams)

    def __getitem__(self, _: Any) -> Any:
        return self.streams[0][_]  # raises, and says what to write

    def _iterate(self, worker: int, workers: int) -> Iterator[Dict[str, Any]]:
        import numpy

        turns = [stream._iterate(worker, workers) for stream in self.streams]
        try:
            for parts in zip(*turns):
                names = list(parts[0])
                for part in parts[1:]:
                    if set(part) != set(names):
                        raise ValueError(
                            "streams that are mixed have the same columns; one has %r, another %r: "
                            "use select() or map()" % (sorted(names), sorted(part))
                        )
                yield {name: numpy.concatenate([part[name] for part in parts]) for name in names}
        finally:
            for turn in turns:
                turn.close()  # type: ignore[attr-defined]

    @property
    def columns(self) -> List[str]:
        """Names of the columns."""
        return self.streams[0].columns

    @property
    def epoch(self) -> int:
        return self.streams[0].epoch

    @property
    def _fresh(self) -> bool:
        return self.streams[0]._fresh

    def _go_to(self, epoch: int) -> None:
        for stream in self.streams:
            stream._go_to(epoch)

    def set_epoch(self, epoch: int) -> None:
        """The next iteration reads this epoch of every stream, from its start."""
        for stream in self.streams:
            stream.set_epoch(epoch)
        if self.passes is not None:
            self.passes.choose(int(epoch))

    def state_dict(self) -> Dict[str, Any]:
        """Where every stream is, after the batches handed out so far."""
        done = min(stream._done for stream in self.streams)
        return {"version": 1, "streams": [stream.state_at(done) for stream in self.streams]}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Continues where the state was taken."""
        states = state.get("streams") if isinstance(state, dict) else None
        if not isinstance(states, list) or len(states) != len(self.streams):
            raise ValueError(
                "this is not the state of %d mixed streams: give what their state_dict() returned"
                % len(self.streams)
            )
        for stream, one in zip(self.streams, states):
            stream.load_state_dict(one)
        if self.passes is not None:
            self.passes.choose(None)

    def torch(self) -> Any:
        """A torch IterableDataset, as of one stream: DataLoader(mixed.torch(), batch_size=None)."""
        from . import stream_torch

        return stream_torch.dataset(self)

    def close(self) -> None:
        """Lets go of all servers now."""
        for stream in self.streams:
            stream.close()


def mix(
    streams: Sequence[Stream],
    weights: Optional[Sequence[float]] = None,
    batch_size: Optional[int] = None,
) -> Mixed:
    """One stream of several. Each batch of batch_size rows (by default as many as the first
    stream's) holds rows of all of them by their weights (by default equal), at least one of each.
    """
    parts = list(streams)
    shares = [1.0] * len(parts) if weights is None else [float(w) for w in weights]
    if not parts or len(shares) != len(parts):
        raise ValueError(
            "mix takes streams, and as many weights: %d and %d" % (len(parts), len(shares))
        )
    if not all(w > 0 and math.isfinite(w) for w in shares):
        raise ValueError("weights are positive numbers, not %r" % (shares,))
    rows = int(batch_size or parts[0].batch_size)
    if rows < len(parts):
        raise ValueError("a batch of %d rows cannot hold rows of %d streams" % (rows, len(parts)))
    made = []
    for stream, count in zip(parts, _counts(shares, rows)):
        one = stream._again()
        one.batch_size = count
        one.drop_last = True  # a short part would change the shares
        made.append(one)
    return Mixed(made)


def _counts(shares: List[float], rows: int) -> List[int]:
    """Whole numbers in about these shares that add up to rows, none of them 0."""
    exact = [share / sum(shares) * rows for share in shares]
    counts = [max(1, int(e)) for e in exact]
    while sum(counts) != rows:
        step = 1 if sum(counts) < rows else -1
        able = [i for i, n in enumerate(counts) if n + step >= 1]
        furthest = max(able, key=lambda i: step * (exact[i] - counts[i]))
        counts[furthest] += step
    return counts
