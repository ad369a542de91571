"""All modules of which something is known, and the one way to change what is done about one."""

import weakref
from typing import Dict, Iterable

import torch

from ..memory import room
from ..memory.promises import promises
from ..remedies.checkpointing import Checkpointing
from .case import Case
from .choices import Choice


class Cases:
    """The Case of each module, where it is trained, and where only what it is given is. Models may
    go before we do: nothing here holds one.
    """

    def __init__(self) -> None:
        self.trained: weakref.WeakKeyDictionary[torch.nn.Module, Case] = weakref.WeakKeyDictionary()
        self.frozen: weakref.WeakKeyDictionary[torch.nn.Module, Case] = weakref.WeakKeyDictionary()
        self.checkpointing = Checkpointing()

    def begin(self, module: torch.nn.Module, case: Case) -> None:
        self.trained[module] = case
        self.checkpointing.use(module, case.choice.checkpoint)
        self._promise()

    def begin_frozen(self, module: torch.nn.Module, case: Case) -> None:
        """Where the module is trained by other calls, its parts are checkpointed for those."""
        self.frozen[module] = case
        if module not in self.trained:
            self.checkpointing.use(module, case.choice.checkpoint)
        self._promise()

    def use(self, taken: Dict[Case, Choice]) -> None:
        """From the next call on. A choice that is new has proven nothing yet."""
        for case, choice in taken.items():
            if case.choice is not choice:
                case.choice, case.proven = choice, 0
                self.checkpointing.use(case.module(), choice.checkpoint)
        self._promise()

    def _promise(self) -> None:
        """What the choices send to host memory, where that is known, is spoken for."""
        cases = [*self.trained.values(), *self.frozen.values()]
        promises.promise(sum(case.choice.offload for case in cases))


def gradients_of(cases: Iterable[Case]) -> float:
    """Bytes of the gradients that are there."""
    modules = [case.module() for case in cases]
    answer: float = sum(room.gradients_of(module) for module in modules if module is not None)
    return answer
