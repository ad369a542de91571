"""How large a call is, by the tensors that it is given: a choice holds until a larger one comes."""

import collections.abc
from typing import Any, Dict, Tuple

from ..batch.inputs import is_tensor
from ..calls import tree
from .case import Size


def size_of(args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Size:
    """Elements of the call's largest tensor, and of each that it is given by itself or in a dict: a
    choice holds until a batch comes that is larger. The largest one may be a state that never
    grows, beside sequences that do.
    """
    given = [*args, *kwargs.values()]
    given += [v for one in given if isinstance(one, collections.abc.Mapping) for v in one.values()]
    every = [leaf.numel() for leaf in tree.flatten((args, kwargs))[0] if is_tensor(leaf)]
    return (max(every, default=0), *[one.numel() for one in given if is_tensor(one)])


def growth(before: Size, now: Size) -> float:
    """Times its size that the tensor has which grew most. Calls with other arguments are compared
    by the largest of all.
    """
    if not before:
        return float("inf")
    pairs = list(zip(before, now)) if len(before) == len(now) else [(before[0], now[0])]
    return max((b / a if a else float("inf")) if b else 0.0 for a, b in pairs)


def largest(before: Size, now: Size) -> Size:
    """The larger one of each tensor; of calls with other arguments, the larger call."""
    if len(before) != len(now):
        return now if not before or now[0] > before[0] else before
    return tuple(max(pair) for pair in zip(before, now))
