"""What a trial finds out about each output of a module: where it carries the batch, or whether it
is a loss, by comparing samples apart with samples together.
"""

import dataclasses
from typing import Any, List, Optional

import torch

from ..calls import autocast, tree
from .draws import Draws
from .inputs import Cannot, Together, is_tensor
from .joined import Joined
from .losses import Rule

ROWS, LOSS, SAME, DROPPED = "rows", "loss", "same", "dropped"


@dataclasses.dataclass
class Output:
    """What is known of one leaf of the result."""

    name: str
    kind: str
    dim: Optional[int] = None  # that carries the batch
    interleaved: bool = False  # time and batch lie in that dimension, time first
    candidates: Optional[List[Rule]] = None  # the rules that a loss may follow
    rounding: float = 0.0  # by how much samples apart differ from samples together, relative

    def rows_of(self, whole: Any, some: Any, rows: int) -> Any:
        """The part of this output that belongs to the first some rows of all."""
        assert self.dim is not None
        if self.interleaved:
            return whole.unflatten(self.dim, (-1, rows)).narrow(self.dim + 1, 0, some)
        return whole.narrow(self.dim, 0, whole.shape[self.dim] // rows * some)

    def joined(self, rows: int) -> Any:
        """What collects this output's pieces."""
        return Joined(self.dim, rows, self.interleaved) if self.kind == ROWS else None


@dataclasses.dataclass
class Findings:
    """What a trial found out about a module."""

    outputs: List[Output]
    random: bool  # it draws random numbers
    same_draws: bool  # each micro-batch draws what the whole batch does
    draws: Optional[Draws] = None  # by which it does, where it does not by itself
    autocast: bool = False  # samples apart add up only as autocast rounds

    @property
    def loss(self) -> Any:
        return next((o for o in self.outputs if o.kind == LOSS), None)


def leafwise(*results: Any) -> Any:
    flat = [tree.flatten(r)[0] for r in results]
    if len({len(f) for f in flat}) > 1:
        raise Cannot("micro-batches give results of different structure")
    return list(zip(tree.paths(results[0]), *flat))


def judge(rows: int, name: str, a: Any, b: Any, ab: Any) -> Any:
    """The Output for one leaf, or the Cannot that explains why there is none. rows: of which a is
    the result.
    """
    if not is_tensor(ab):
        if tree.holds_tensors(ab, is_tensor):
            if "past_key_values" in name:
                return Output(name, DROPPED)
            return Cannot("result %s is a %s, which cannot be joined" % (name, type(ab).__name__))
        return (
            Output(name, SAME)
            if a == b == ab
            else Cannot("result %s (%r, %r) differs between micro-batches" % (name, a, b))
        )
    if a.shape == b.shape == ab.shape:
        return _judge_unbatched(name, a, b, ab)
    for dim in range(ab.dim()):
        if a.dim() == b.dim() == ab.dim() and a.shape[dim] + b.shape[dim] == ab.shape[dim]:
            if all(a.shape[d] == b.shape[d] == ab.shape[d] for d in range(ab.dim()) if d != dim):
                joined = torch.cat([a, b], dim)
                if close(joined, ab):
                    return Output(name, ROWS, dim, rounding=apart(joined, ab))
                if _close_interleaved(rows, dim, a, b, ab):
                    return Output(name, ROWS, dim, interleaved=True)
    return Together(
        "output %s of a sample depends on the other samples of the batch: samples interact"
        % (name or "0")
    )


def _close_interleaved(rows: int, dim: Any, a: Any, b: Any, ab: Any) -> Any:
    """Whether time and batch were flattened into one dimension, time first: row 0 of every moment,
    row 1, ...
    """
    moments = a.shape[dim] // rows
    if moments < 2 or a.shape[dim] % rows or b.shape[dim] % moments:
        return False
    return close(
        torch.cat([t.unflatten(dim, (moments, -1)) for t in (a, b)], dim + 1).flatten(dim, dim + 1),
        ab,
    )


def _judge_unbatched(name: str, a: Any, b: Any, ab: Any) -> Any:
    if ab.dim() == 0 and ab.is_floating_point():
        return Output(name, LOSS)
    if close(a, ab) and close(b, ab):
        return Output(name, SAME)
    return Cannot("output %s has no batch dimension (shape %s)" % (name or "0", tuple(ab.shape)))


def close(a: Any, b: Any) -> Any:
    if a.dtype in (torch.bool, torch.int64, torch.int32, torch.int16, torch.uint8):
        return torch.equal(a, b)
    return apart(a, b) <= _tolerance(b)


def apart(a: Any, b: Any) -> Any:
    """The largest difference, relative to the largest value. Not a number if there is one."""
    if not b.numel():
        return 0.0
    a, b = a.detach().float(), b.detach().float()
    return float((a - b).abs().max()) / max(float(b.abs().max()), 1e-6)


def _tolerance(like: Any) -> Any:
    """How far two kernels for different shapes may be apart, relative to the largest value."""
    half = like.dtype in (torch.float16, torch.bfloat16) or autocast.is_on(like.device)
    return 3e-2 if half or like.is_cuda and may_use_tf32() else 1e-3


def may_use_tf32() -> Any:
    try:
        return torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32
    except RuntimeError:  # the script uses the newer settings, with which the older cannot be read
        return True
