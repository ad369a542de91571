"""How a loss that the model itself returns is put together from the losses of pieces of the batch.

A mean over the batch is the mean of the pieces' means only with the right weights: rows, or the
tokens that count. Which one a model uses is not guessed but found out: every rule that could be
meant is tried on a few rows, and those that predict the loss of the rows together from the losses
of the rows apart survive.
"""

import dataclasses
import math
from typing import Any, Callable, Iterator, Sequence, Union

import torch

Weight = Union[float, torch.Tensor]  # a number, or a 0-dim tensor that waits on the device


@dataclasses.dataclass(frozen=True)
class Rule:
    """One way to weigh micro-batches."""

    name: str
    weigh: Callable[[Sequence[Any]], Weight]  # of a micro-batch, by the leaves of its call
    mean: bool = True  # the loss is a mean by these weights; otherwise their sum
    guessed: bool = False  # nothing but habit speaks for it: gives way where nothing decides

    def shares(self, pieces: Sequence[Any]) -> Any:
        """What each piece's loss is multiplied by. pieces: the flat leaves of each call."""
        weights = [self.weigh(leaves) for leaves in pieces]
        if not self.mean:
            return weights
        total = sum(weights[1:], weights[0])
        return [w / total for w in weights]

    def shares_to_use(self, pieces: Sequence[Any]) -> Any:
        """The same, with None for a piece in which nothing counts: its own loss is 0 / 0, and no
        number makes that right. One transfer from the device.
        """
        shares = self.shares(pieces)
        if not any(isinstance(s, torch.Tensor) for s in shares):
            return shares
        empty = (torch.stack([torch.as_tensor(s) for s in shares]) == 0).tolist()
        return [None if nothing else s for s, nothing in zip(shares, empty)]


class Padded(Rule):
    """A mean over what is not padding, whatever number stands for that: it ends, or begins, many
    rows of a batch.
    """

    def shares(self, pieces: Sequence[Any]) -> Any:
        """The number is looked for in all pieces together."""
        how: Any = self.weigh  # an _Unpadded
        value = _padding([leaves[how.at] for leaves in pieces], how.left)
        weights = [_count(leaves[how.at], value, how.start) for leaves in pieces]
        total = sum(weights[1:], weights[0])
        return [w / total for w in weights]


class _Unpadded:
    """Counts what is not padding in one piece by itself."""

    def __init__(self, at: Any, start: Any, left: Any) -> None:
        self.at, self.start, self.left = at, start, left

    def __call__(self, leaves: Any) -> Any:
        return _count(leaves[self.at], _padding([leaves[self.at]], self.left), self.start)


SEEN = 4  # elements that must end rows alike to be taken for padding: two words may be the same


def _padding(parts: Any, left: Any) -> Any:
    """The number that fills the ends of most rows, as a 0-dim tensor; None where none does. One
    transfer from the device.
    """
    ends = [part.flatten(1) if left else part.flatten(1).flip(1) for part in parts]
    ends = [end for end in ends if end.numel()]
    if not ends:
        return None
    runs = torch.cat([(end == end[:, :1]).cumprod(1).sum(1) for end in ends])
    values = torch.cat([end[:, 0] for end in ends])
    known, which = values.unique(return_inverse=True)
    filled = torch.zeros(len(known), dtype=runs.dtype, device=runs.device)
    filled.index_add_(0, which, runs * (runs > 1))
    most = filled.argmax()
    return known[most] if int(filled[most]) >= SEEN else None


def _count(labels: Any, value: Any, start: Any) -> Any:
    labels = labels[:, start:] if start else labels
    if value is None:
        return torch.tensor(labels.numel(), dtype=torch.float64, device=labels.device)
    return (labels != value).sum(dtype=torch.float64)


def weighted(loss: torch.Tensor, share: Any) -> Any:
    """A piece's part of the whole loss."""
    if share is None:
        return torch.zeros_like(loss).detach()
    return loss * (share.to(loss.dtype) if isinstance(share, torch.Tensor) else share)


def rules(inputs: Any, ignored: Any) -> Any:
    """Every rule that these arguments allow. ignored: label values that the model was seen to
    ignore.
    """
    found = [Rule("rows", inputs.row_counter()), Rule("sum", lambda leaves: 1.0, mean=False)]
    for at, (name, leaf, dim) in enumerate(zip(inputs.names, inputs.leaves, inputs.dims)):
        if dim is None or leaf.is_complex():
            continue
        if not leaf.is_floating_point() and leaf.dtype != torch.bool:
            for value in sorted({-100, -1, 0} | set(ignored)):
                guessed = value == 0 and value not in ignored
                for start in (0, 1) if leaf.dim() >= 2 else (0,):
                    words = "%s%s != %d" % (name, "[:, 1:]" if start else "", value)
                    found.append(Rule(words, _counter(at, value, start), guessed=guessed))
            if leaf.dim() >= 2 and dim == 0:
                found.extend(_without_padding(name, at))
        if "mask" in name or leaf.dtype == torch.bool:
            found.append(Rule("sum of " + name, _summer(at)))
        elif leaf.is_floating_point() and ("weight" in name or leaf.dim() == 1):
            if bool((leaf > 0).all()):
                found.append(Rule("sum of " + name, _summer(at), guessed=True))
    return found


def _without_padding(name: str, at: Any) -> Iterator[Any]:
    for left in (False, True):
        words = "%s%%s without what its rows %s with" % (name, "begin" if left else "end")
        for start in (0, 1):
            shown = words % ("[:, 1:]" if start else "")
            yield Padded(shown, _Unpadded(at, start, left), guessed=True)


def _summer(at: int) -> Callable[[Sequence[Any]], Weight]:
    return lambda leaves: leaves[at].sum(dtype=torch.float64)


def _counter(at: Any, value: Any, start: Any) -> Any:
    def weigh(leaves: Any) -> Any:
        labels = leaves[at]
        labels = labels[:, start:] if start else labels
        return (labels != value).sum(dtype=torch.float64)

    return weigh


ROUNDING = 2e-6  # relative error that two kernels of different shapes may make of one loss in fp32


def survivors(candidates: Any, trial_pieces: Any, apart: Any, together: Any, tolerance: Any) -> Any:
    """The rules that explain one trial. apart: losses of the pieces, together: the loss of all rows
    at once, as floats.

    Rows of an untrained model have almost the same loss, so a wrong rule may be off by very little:
    what is ten times further off than the best rule, and further than rounding goes, is ruled out.
    """
    scale = max(abs(together), max(abs(v) for v in apart), 1e-12)
    errors = []
    for rule in candidates:
        shares = [float(s) for s in rule.shares(trial_pieces)]
        error = abs(sum(s * v for s, v in zip(shares, apart)) - together) / scale
        errors.append(error if math.isfinite(error) else math.inf)
    most = min(tolerance, max(ROUNDING, 10 * min(errors, default=0)))
    return [rule for rule, error in zip(candidates, errors) if error <= most]


def most_telling(candidates: Any, rows: Any) -> Any:
    """Two rows (their flat leaves given) on which the rules differ most: their indices. One
    transfer from the device a rule.
    """
    best, pair = 0.0, (0, 1)
    tables = [
        [float(w) for w in (rule.weigh(leaves) for leaves in rows)]
        for rule in candidates
        if rule.mean
    ]
    for a in range(len(rows)):
        for b in range(a + 1, len(rows)):
            shares = [t[a] / (t[a] + t[b]) for t in tables if t[a] + t[b] > 0]
            spread = max(shares, default=0) - min(shares, default=0)
            if spread > best and all(min(t[a], t[b]) > 0 for t in tables):
                best, pair = spread, (a, b)
    return pair


def agree(candidates: Any, pieces: int) -> bool:
    """Whether all rules give these pieces the same shares, so that it does not matter which one is
    right. One transfer from the device at most.
    """
    if len(candidates) < 2:
        return True
    table = [rule.shares(pieces) for rule in candidates]
    rows = [
        torch.stack(
            [torch.as_tensor(s, dtype=torch.float64, device=_device(pieces)) for s in shares]
        )
        for shares in table
    ]
    first = rows[0]
    return not bool(torch.stack([(r - first).abs().max() > 1e-9 for r in rows[1:]]).any())


def decided(candidates: Any, pieces: int) -> Any:
    """The rules by which these pieces are weighed, where they agree, or those agree that are not
    only guessed; none otherwise.
    """
    known = [rule for rule in candidates if not rule.guessed]
    return next((some for some in (candidates, known) if some and agree(some, pieces)), [])


def _device(pieces: Any) -> Any:
    return next(
        (leaf.device for leaf in pieces[0] if isinstance(leaf, torch.Tensor)), torch.device("cpu")
    )
