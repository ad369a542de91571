"""Forms of arguments and results: enough to say that two calls are alike, and to make a result
without the call.
"""

from typing import Any, List, Optional, Tuple

import torch
from torch.utils import _pytree as pytree

PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device)


def form(values: Any) -> Optional[Tuple[Any, ...]]:
    """Something equal for calls with the same shapes and types, or None where values are involved
    that might matter.
    """
    leaves, spec = pytree.tree_flatten(values)
    parts: List[Any] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            parts.append((tuple(leaf.shape), leaf.stride(), leaf.dtype, str(leaf.device)))
        elif isinstance(leaf, PLAIN):
            parts.append((type(leaf).__name__, str(leaf)))
        else:
            return None
    return tuple(parts), str(spec)


def remember(out: Any) -> Optional[Tuple[List[Any], Any]]:
    """The form of a result that can be made again, or None."""
    leaves, spec = pytree.tree_flatten(out)
    if not all(isinstance(leaf, (torch.Tensor,) + PLAIN) for leaf in leaves):
        return None
    return [
        (leaf.shape, leaf.stride(), leaf.dtype, leaf.device)
        if isinstance(leaf, torch.Tensor)
        else leaf
        for leaf in leaves
    ], spec


def again(made: Tuple[List[Any], Any]) -> Any:
    leaves, spec = made
    new = [
        torch.empty_strided(p[0], p[1], dtype=p[2], device=p[3]) if isinstance(p, tuple) else p
        for p in leaves
    ]
    return pytree.tree_unflatten(new, spec)
