"""Gradients of sparse tables, with one entry for each row instead of one for each look-up.

Autograd gives a table's gradient an entry for every look-up of the batch, and all tables' gradients
wait for their optimizer. Optimizers whose step is no sum add up the entries of a row first. Here
that is done as soon as a gradient comes: the same function on the same numbers, so that results are
equal to the bit where a step has one backward pass.
"""

import contextlib
import weakref
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple

import torch

# torch's optimizers that begin with grad.coalesce()
BEGIN_SO = ("SparseAdam", "Adagrad")


class SparseGradients:
    """Says once that it did something."""

    def __init__(self, say: Callable[..., None]) -> None:
        self.say, self._told = say, False
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()  # optimizers
        self._nodes: List[
            Any
        ] = []  # of the graph; a node's hook lives as long as somebody holds it

    def watch(self, optimizers: Iterable[Any]) -> None:
        """Parameters of these optimizers, from now on."""
        for optimizer in optimizers:
            kind = type(optimizer)
            if optimizer in self._known or kind.__name__ not in BEGIN_SO:
                continue
            if kind.__module__.split(".")[:2] != ["torch", "optim"]:
                continue
            self._known.add(optimizer)
            for p in (p for group in optimizer.param_groups for p in group["params"]):
                if p.requires_grad and p.is_leaf and not p._backward_hooks:
                    with torch.enable_grad():
                        node = p.view_as(p).grad_fn.next_functions[0][0]
                    node.register_prehook(self._comes)
                    self._nodes.append(node)
                    _summed[id(p)] = weakref.ref(p)

    def _comes(self, gradients: Tuple[Optional[torch.Tensor], ...]) -> Any:
        return tuple(self._summed(g) for g in gradients)

    def _summed(self, gradient: Optional[torch.Tensor]) -> Optional[torch.Tensor]:
        if gradient is None or not gradient.is_sparse or gradient.is_coalesced():
            return gradient
        whole = gradient.coalesce()
        if not self._told and whole._nnz() < gradient._nnz():
            self._told = True
            self.say(
                "applied",
                "gradients of sparse tables: %d entries of a table summed up to %d as they come"
                % (gradient._nnz(), whole._nnz()),
                id="optimizer_fused",
                equivalence="exact",
            )
        return whole


# Parameters for which that is done, by their ids: tensors do not say whether they are equal.
_summed: Dict[int, Any] = {}


def _is_summed(parameter: torch.Tensor) -> bool:
    known = _summed.get(id(parameter))
    return known is not None and known() is parameter


@contextlib.contextmanager
def as_in_training(parameters: Iterable[torch.Tensor]) -> Iterator[None]:
    """The same where gradients are taken for a trial, which does not come to the nodes."""
    handles = [p.register_hook(_coalesced) for p in parameters if _is_summed(p)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _coalesced(gradient: torch.Tensor) -> Optional[torch.Tensor]:
    return gradient.coalesce() if gradient.is_sparse else None
