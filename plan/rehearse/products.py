"""Products whose result has another type than their factors (out_dtype=...). torch's fake version
of the sums among them takes the type for a factor and fails.
"""

from typing import Any, Dict, Tuple

import torch

NAMES = ("mm", "bmm", "addmm", "baddbmm")


def is_widened(func: Any, name: str) -> bool:
    return name in NAMES and func._overloadname in ("dtype", "dtype_out")


def widened(args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> torch.Tensor:
    """The result of such a product; the fake mode is on."""
    if kwargs.get("out") is not None:
        return kwargs["out"]
    *factors, dtype = args
    a, b = factors[-2:]
    return a.new_empty((*a.shape[:-1], b.shape[-1]), dtype=dtype)
