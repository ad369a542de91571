"""What a module's calls leave behind in its attributes: counters, lists that grow, tensors that the
loop may use afterwards.

A trial must leave none of it; a call in pieces would leave only the last piece's; a second run
would leave it twice.
"""

import collections
from typing import Any, Iterator

import torch

from . import refers

_OWN = {"_parameters", "_buffers", "_modules"}  # torch's own bookkeeping, looked after elsewhere
_CONTAINERS = (list, dict, set, collections.deque)


class Snapshot:
    """The numbers, flags, containers and tensors among the attributes and buffers of a module and
    all below it as they are now, and those among the variables that their code names, to be put
    back. Many a first call sets weights by its batch and says so in a flag, or keeps what it
    computed of it: the first call of the training must be the first one again. Other attributes are
    left alone. So are flags where the call has added hooks, which it would add twice, and tensors
    that were not there, where a flag stays changed.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        kinds = {type(m) for m in module.modules()}
        self.numbers = [
            (m, {key: value for key, value in vars(m).items() if _is_number(value)})
            for m in module.modules()
        ]
        self.flags = [(m, _flags(vars(m))) for m in module.modules() if not _is_of_torch(m)]
        self.module, self.hooks = module, _hooks(module)
        self.tensors = [_Tensors(m) for m in module.modules()]
        self.variables = [
            place for kind in kinds for place in refers.variables(kind) if _is_number(place[2])
        ]
        inside = [
            value
            for m in module.modules()
            for key, value in vars(m).items()
            if _is_container(key, value)
        ]
        outside = [
            value for kind in kinds for value in refers.values(kind) if type(value) in _CONTAINERS
        ]
        self.containers = [(value, value.copy()) for value in inside + outside]

    def put_back(self) -> None:
        for namespace, name, value in self.variables:
            namespace[name] = value
        for m, numbers in self.numbers:
            for key in [
                key for key, value in vars(m).items() if _is_number(value) and key not in numbers
            ]:
                del vars(m)[key]
            vars(m).update(numbers)
        for m, flags in self.flags if _hooks(self.module) == self.hooks else []:
            for key in _flags(vars(m)).keys() - flags.keys():
                del vars(m)[key]
            vars(m).update(flags)
        for value, content in self.containers:
            if _differs(value, content):
                _refill(value, content)
        for tensors in self.tensors:
            tensors.put_back()

    def added(self) -> Any:
        """{name: [a copy of the tensor]} of those that were not there."""
        names = [name for name, _ in self.module.named_modules()]
        return {
            "%s.%s" % (name, key) if name else key: [tensor.detach().clone()]
            for name, tensors in zip(names, self.tensors)
            for key, tensor in tensors.added()
        }


SMALL = 1 << 16  # elements up to which a tensor among the attributes is copied


class _Tensors:
    """The buffers and the tensors among the attributes of one module. What a call replaces is put
    back, and what it adds is gone; what it changes in place too, where the tensor is small (buffers
    are copied elsewhere).
    """

    def __init__(self, module: torch.nn.Module) -> None:
        own = vars(module)
        self.own, self.buffers, self.replaced = own, module._buffers, dict(module._buffers)
        self.known = set(own)
        self.flags = _flags(own)
        self.before = {
            key: value
            for key, value in own.items()
            if value is None or isinstance(value, torch.Tensor)
        }
        self.copies = [
            (value, value._version, value.detach().clone())
            for value in self.before.values()
            if value is not None and not value.is_inference() and value.numel() <= SMALL
        ]

    def put_back(self) -> None:
        for key, value in self.replaced.items():
            if key in self.buffers and self.buffers[key] is not value:
                self.buffers[key] = value
        same = _flags(self.own) == self.flags
        for key, value in self.before.items():
            now = self.own.get(key)
            if now is not value and isinstance(now, torch.Tensor) and (same or value is not None):
                self.own[key] = value
        if same:
            self._drop_added()
        with torch.no_grad():
            for value, version, content in self.copies:
                if value._version != version and value.shape == content.shape:
                    value.copy_(content)

    def added(self) -> Iterator[Any]:
        """(key, tensor) of what was not there, or was None."""
        for names, there in ((self.own, self.before), (self.buffers, self.replaced)):
            for key, value in names.items():
                if isinstance(value, torch.Tensor) and there.get(key) is None:
                    yield key, value

    def _drop_added(self) -> None:
        for names, there in ((self.own, self.known), (self.buffers, self.replaced)):
            tensors = [key for key, value in names.items() if isinstance(value, torch.Tensor)]
            for key in tensors:
                if key not in there:
                    del names[key]


def _hooks(module: torch.nn.Module) -> Any:
    """How many hooks there are, of all kinds."""
    return sum(
        len(value)
        for m in module.modules()
        for key, value in vars(m).items()
        if key.endswith("_hooks") and isinstance(value, dict)
    )


def _is_of_torch(module: torch.nn.Module) -> bool:
    """Whether the module's class is one of torch's: the flags of wrappers are about what they have
    set up elsewhere.
    """
    return type(module).__module__.split(".")[0] == "torch"


def _flags(own: Any) -> Any:
    return {key: value for key, value in own.items() if isinstance(value, bool)}


def _is_number(value: Any) -> Any:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_container(key: Any, value: Any) -> Any:
    return (
        key not in _OWN
        and type(value) in _CONTAINERS
        and not key.endswith("_hooks")
        and not key.startswith("_non_persistent")
    )


def _differs(value: Any, content: Any) -> bool:
    if len(value) != len(content):
        return True
    if isinstance(value, dict):
        return any(key not in value or value[key] is not it for key, it in content.items())
    return any(a is not b for a, b in zip(value, content))


def _refill(value: Any, content: Any) -> None:
    value.clear()
    value.update(content) if isinstance(value, (dict, set)) else value.extend(content)


def numbers(module: torch.nn.Module) -> Any:
    """{name: value} of every number among the modules' own attributes."""
    return {
        "%s.%s" % (name, key): value
        for name, m in module.named_modules()
        for key, value in vars(m).items()
        if _is_number(value)
    }


def tensors(module: torch.nn.Module) -> Any:
    """{name: [tensors]} of the attributes that are tensors, or hold some: neither parameters nor
    buffers.
    """
    found = {}
    for name, m in module.named_modules():
        for key, value in vars(m).items():
            inside = [value] if isinstance(value, torch.Tensor) else _inside(key, value)
            inside = [t for t in inside if isinstance(t, torch.Tensor)]
            if inside:
                found["%s.%s" % (name, key) if name else key] = inside
    return found


def _inside(key: Any, value: Any) -> Any:
    if key in _OWN or not isinstance(value, _CONTAINERS + (tuple,)):
        return []
    return list(value.values()) if isinstance(value, dict) else list(value)


def lengths(module: torch.nn.Module) -> Any:
    """How long the containers among a module's own attributes are."""
    return {key: len(value) for key, value in vars(module).items() if _is_container(key, value)}


def left_behind(before: Any, after: Any) -> Any:
    """The name of an attribute that two calls left differently, or None. before, after: of
    tensors().
    """
    for name, those in after.items():
        these = before.get(name)
        if (
            these is None
            or len(these) != len(those)
            or any(a.shape != b.shape or not torch.equal(a, b) for a, b in zip(these, those))
        ):
            return name
    return None
