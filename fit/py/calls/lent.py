"""Parameters that lie in a module for one call only, as functional_call puts them there and loops
that learn to learn replace them between two calls.

A second run, as activation checkpointing makes it, comes when others lie there: without this it
would compute with those, and nobody would notice.
"""

from typing import Any, Dict, List, Tuple

import torch

from . import inside

Places = List[Tuple[Dict[str, Any], str, Any]]  # where parameters lie, with what lay there


class AsCalled:
    """The parameters of some modules as they are now. While this is entered they lie there again.
    The tensors themselves are held, which the graph of a call does too.
    """

    def __init__(self, modules: List[torch.nn.Module]) -> None:
        self.places: Places = [
            (m._parameters, key, p)
            for m in inside.modules(modules)
            for key, p in m._parameters.items()
            if p is not None
        ]
        self.others: List[Places] = []  # a retained graph may run again inside of a second run

    def __enter__(self) -> None:
        others = [(at, key, at.get(key)) for at, key, p in self.places if at.get(key) is not p]
        self.others.append(others)
        if others:
            for at, key, p in self.places:
                at[key] = p

    def __exit__(self, *why: Any) -> None:
        for at, key, p in self.others.pop():
            if p is None:
                at.pop(key)  # nothing of that name was there any longer
            else:
                at[key] = p
