"""Parameters that a call itself changes, as the key encoder of momentum contrast is: a trial must
leave them as they were.

Most models never do that, and a copy of all their parameters is not to be had. So what a call
changes is learnt at its first trial, where every operation is looked at and what it is about to
write to is copied. Later trials copy what is known to change.
"""

import contextlib
import weakref
from typing import Any, Dict, Iterator, Optional, Set, Tuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# module -> names of the parameters that its calls change
_changed: "weakref.WeakKeyDictionary[torch.nn.Module, Set[Any]]" = weakref.WeakKeyDictionary()


def changed(module: torch.nn.Module) -> Any:
    """Names of the parameters that the module's calls were seen to change."""
    return _changed.get(module, set())


class Kept:
    """The parameters of a module, to be put back after a trial."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        # An alias keeps what lay there even if `p.data` is given something else.
        self.before = [(name, p, p.data) for name, p in module.named_parameters()]
        self.copies = {
            data.data_ptr(): data.clone()
            for name, _, data in self.before
            if name in changed(module)
        }

    @contextlib.contextmanager
    def learn(self) -> Iterator[Any]:
        """While this is entered, what is about to be written to is copied first."""
        if self.module in _changed or not all(
            type(p.data) is torch.Tensor for _, p, _ in self.before
        ):
            yield
            return
        with _CopyOnWrite({data.data_ptr(): data for _, _, data in self.before}, self.copies):
            yield
        _changed[self.module] = {name for name, p, data in self.before if self._moved(p, data)}

    def _moved(self, p: Any, data: Any) -> Any:
        return p.data_ptr() != data.data_ptr() or data.data_ptr() in self.copies

    def put_back(self) -> None:
        with torch.no_grad():
            for _, p, data in self.before:
                if p.data_ptr() != data.data_ptr():
                    p.data = data
                if data.data_ptr() in self.copies:
                    data.copy_(self.copies[data.data_ptr()])
        self.before, self.copies = [], {}


class _CopyOnWrite(TorchDispatchMode):
    def __init__(self, guarded: Any, copies: Any) -> None:
        super().__init__()
        self.guarded, self.copies = guarded, copies

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Tuple[Any, ...] = (),
        kwargs: Optional[Dict[str, Any]] = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            for i, argument in enumerate(func._schema.arguments):
                if argument.alias_info is None or not argument.alias_info.is_write:
                    continue
                value = args[i] if i < len(args) else kwargs.get(argument.name)
                for t in value if isinstance(value, (list, tuple)) else [value]:
                    self._about_to_change(t)
        return func(*args, **kwargs)

    def _about_to_change(self, tensor: torch.Tensor) -> None:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            return
        at = tensor.untyped_storage().data_ptr()
        if at in self.guarded and at not in self.copies:
            self.copies[at] = self.guarded[at].clone()
