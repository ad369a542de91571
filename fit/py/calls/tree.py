"""Tensors inside nested arguments and results: taken apart into a flat list of leaves and put
together again.
"""

import collections
import dataclasses
from typing import Any, List

PLAIN = (type(None), bool, int, float, complex, str, bytes)


def flatten(value: Any) -> Any:
    """Returns (leaves, rebuild): rebuild(new_leaves) makes the same structure with other leaves."""
    leaves: List[Any] = []
    build = _walk(value, leaves)

    def rebuild(new: Any) -> Any:
        rest = iter(new)
        return build(rest)

    return leaves, rebuild


def storages(value: Any) -> Any:
    """Addresses of the memory that the tensors inside lie in; sparse ones have none."""
    found = set()
    for leaf in flatten(value)[0]:
        try:
            found.add(leaf.untyped_storage().data_ptr())
        except (AttributeError, NotImplementedError, RuntimeError):
            pass  # no tensor, or one without memory of that kind
    return found


def paths(value: Any, at: Any = "") -> Any:
    """Names of the leaves, in the order of flatten: "logits", "0.hidden"."""
    names = []
    for name, child in _children(value) or ():
        names.extend(paths(child, at + "." + str(name) if at else str(name)))
    return names if _children(value) is not None else [at]


def _children(value: Any) -> Any:
    """(name, child) pairs of a container, None for a leaf."""
    if isinstance(value, collections.abc.Mapping):
        return list(value.items())
    if isinstance(value, (list, tuple)) and not _is_packed(value):
        fields = getattr(value, "_fields", None)
        return list(zip(fields or range(len(value)), value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
    return None


def _is_packed(value: Any) -> bool:
    """A PackedSequence is a tuple whose tensors belong together in a way that cutting rows would
    break.
    """
    return type(value).__name__ == "PackedSequence"


def _walk(value: Any, leaves: Any) -> Any:
    children = _children(value)
    if children is None:
        leaves.append(value)
        return next
    parts = [(name, _walk(child, leaves)) for name, child in children]
    make = _maker(value)
    return lambda rest: make([(name, part(rest)) for name, part in parts])


def _maker(value: Any) -> Any:
    """Makes a container of the kind of value from (name, content) pairs. It must not hold value: a
    checkpointed call keeps it until its backward pass, and tensors that have gone to host memory
    would stay on the card with it.
    """
    kind = type(value)
    if dataclasses.is_dataclass(value):  # outputs of transformers are dicts at the same time
        return lambda pairs: kind(**dict(pairs))
    if isinstance(value, collections.abc.Mapping):
        if isinstance(value, collections.defaultdict):
            factory = value.default_factory
            return lambda pairs: kind(factory, pairs)
        return lambda pairs: kind(dict(pairs))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return lambda pairs: kind(*[v for _, v in pairs])
    return lambda pairs: kind(v for _, v in pairs)


def holds_tensors(value: Any, is_tensor: Any) -> bool:
    """Whether an opaque object (no container we know) has tensors among its attributes, one level
    and lists deep.
    """
    if isinstance(value, PLAIN) or callable(value):
        return False
    if _is_packed(value):
        return True
    inside = list(getattr(value, "__dict__", {}).values())
    for v in list(inside):
        if isinstance(v, (list, tuple)):
            inside.extend(v)
        elif isinstance(v, dict):
            inside.extend(v.values())
        elif hasattr(v, "__dict__") and not isinstance(v, type) and not callable(v):
            inside.extend(vars(v).values())
    return any(is_tensor(v) for v in inside)
