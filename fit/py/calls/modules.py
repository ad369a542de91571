"""Which modules remedies look at, and how users are told about them."""

import weakref
from typing import Any

import torch

_worth_it: "weakref.WeakSet[Any]" = weakref.WeakSet()  # modules that were found to be


def worth_it(module: Any) -> bool:
    """Loss functions, metrics and augmentations have no parameters; scripted modules cannot be
    looked into; lazy ones get their shape from their first call, which must be the script's own. A
    parametrization computes a weight, and the batch is not in it.
    """
    if module in _worth_it:
        return True
    if isinstance(module, torch.jit.ScriptModule) or next(module.parameters(), None) is None:
        return False
    if isinstance(module, torch.nn.utils.parametrize.ParametrizationList):
        return False
    if any(torch.nn.parameter.is_lazy(p) for p in module.parameters()):
        return False
    _worth_it.add(module)
    return True


def name_of(module: Any) -> str:
    return type(module).__name__


def one_line(error: BaseException) -> str:
    """The first line of what an exception says, for a sentence."""
    text = str(error).strip().split("\n")[0]
    return text if len(text) <= 160 else text[:157] + "..."
