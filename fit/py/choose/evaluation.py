"""Calls without gradients, which may be too large for themselves."""

import weakref
from typing import Any, Callable, Dict, Tuple

import torch

from ..batch.inputs import Cannot, any_inputs
from ..memory.floor import Teller
from ..remedies.microbatch import MicroBatch, Share
from .cases import Cases
from .means import Means, make_room


class Evaluation:
    """Runs them as they are, and in smaller and smaller pieces where they run out."""

    def __init__(self, means: Means, cases: Cases, micro: MicroBatch, teller: Teller) -> None:
        self._means, self._cases, self._micro, self._teller = means, cases, micro, teller
        # Rows of the pieces of modules whose batch was too large.
        self._small: weakref.WeakKeyDictionary[torch.nn.Module, int] = weakref.WeakKeyDictionary()
        self._small_pieces = MicroBatch(
            means.say, lambda module, inputs, plan: Share(self._small[module])
        )

    def run(
        self,
        module: torch.nn.Module,
        call: Callable[..., Any],
        args: Tuple[Any, ...],
        kwargs: Dict[str, Any],
    ) -> Any:
        """A call without gradients leaves nothing behind when it runs out, so it can be tried again
        in smaller pieces.
        """
        case = self._cases.trained.get(module)
        if case is not None and case.choice.share is not None and module not in self._small:
            try:
                return self._micro.run(module, call, args, kwargs)
            except Cannot:
                return call(*args, **kwargs)
        while True:
            try:
                return (
                    self._in_small_pieces(module, call, args, kwargs)
                    if module in self._small
                    else call(*args, **kwargs)
                )
            except torch.cuda.OutOfMemoryError as why:
                ran_out = why.with_traceback(None)  # its frames hold what is in the way
                self._teller.forget_missed()
            if not self._fewer(module, args, kwargs):
                raise ran_out
            make_room()

    def _in_small_pieces(
        self,
        module: torch.nn.Module,
        call: Callable[..., Any],
        args: Tuple[Any, ...],
        kwargs: Dict[str, Any],
    ) -> Any:
        try:
            return self._small_pieces.run(module, call, args, kwargs)
        except Cannot as reason:
            self._small_pieces.decline(module, reason)
            self._means.cannot_cut(module)
            return call(*args, **kwargs)

    def _fewer(
        self, module: torch.nn.Module, args: Tuple[Any, ...], kwargs: Dict[str, Any]
    ) -> bool:
        """Halves the rows that an evaluation takes at once. Returns whether that was possible."""
        try:
            rows = self._small.get(module) or any_inputs(args, kwargs).rows
        except Cannot:
            return False
        if rows < 2 or not self._means.may_cut(module):
            return False
        self._small[module] = rows // 2
        return True
