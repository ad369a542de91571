"""The modules inside of a module, found once: a block that is run again is asked for them several
times in every step, which costs more than a small block's kernels.
"""

import weakref
from typing import Any, Dict, Iterable, List

import torch

# For a module: all that lie below it, held weakly so that none lives on for that, each with a mark
# by which a change of its children is seen.
_known: Any = weakref.WeakKeyDictionary()


def modules(tops: Iterable[torch.nn.Module]) -> List[torch.nn.Module]:
    """All modules inside of these, themselves included, each once."""
    tops = list(tops)
    if len(tops) == 1:
        return _of(tops[0])
    found: Dict[int, torch.nn.Module] = {id(m): m for top in tops for m in _of(top)}
    return list(found.values())


def _of(top: torch.nn.Module) -> List[torch.nn.Module]:
    known = _known.get(top)
    if known is not None:
        found = []
        for ref, mark in known:
            m = ref()
            if m is None or _mark(m) != mark:
                break
            found.append(m)
        else:
            return found
    found = list(top.modules())
    _known[top] = [(weakref.ref(m), _mark(m)) for m in found]
    return found


def _mark(module: torch.nn.Module) -> int:
    """Differs where children came, went or were replaced."""
    return hash(tuple(map(id, module._modules.values())))
