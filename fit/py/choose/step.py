"""One training step as it is watched: which calls wait for their backward pass at the same time,
and the peak.
"""

import weakref
from typing import Any, Callable, List, Optional

import torch

from ... import made
from ..batch.inputs import is_tensor
from ..calls import tree
from ..remedies.unread import is_unread
from .case import Case
from .company import Companies, Counts
from .search import AGAIN, largest, together


class Step:
    """What happens between two steps: which calls wait for their backward pass at the same time,
    and the peak.
    """

    def __init__(self) -> None:
        self.marks: List[_Mark] = []
        self.together: Counts = {}
        self.companies = Companies()
        _steps.add(self)
        # The marks of the calls that wait together, where they take most.
        self._most: List[_Mark] = []
        self.around: Any = None  # the room that is watched
        self.held_before = 0.0  # bytes, without what is counted with the choices
        self._peak: Optional[int] = None
        self.gradients = 0.0  # bytes of them that were there when it began
        self.outside = 0.0  # bytes saved between calls that are counted apart

    def observe(self, around: Any, gradients: float = 0) -> None:
        """From now on the peak is read. gradients: bytes that are held and counted with the
        choices, as those of calls are which wait already.
        """
        around.start_peak()
        if self.around is None:
            stay = sum(m.choice.stays for m in self.marks if m.waits())
            self.around, self.held_before = around, around.held() - gradients - stay
            self.gradients = gradients
            _watching.add(self)

    def begins(self, case: Case) -> "_Mark":
        self.marks = [m for m in self.marks if m.waits()]
        mark = _Mark(case)
        self.marks.append(mark)
        counts = self._counts()
        self.companies.saw([counts])
        if together(counts, largest) >= together(self.together, largest):
            self.together = counts
            self._most = list(self.marks)
        return mark

    def _counts(self) -> Counts:
        counts: Counts = {}
        for m in (m for m in self.marks if m.waits()):
            counts[m.case] = counts.get(m.case, 0) + 1
        return counts

    def company(self, case: Case) -> Counts:
        """The calls that wait for their backward pass, and one more of this module."""
        counts = self._counts()
        counts[case] = counts.get(case, 0) + 1
        return counts

    def waiting(self, case: Case) -> int:
        """How many calls of the module wait for their backward pass."""
        return sum(m.case is case and m.waits() for m in self.marks)

    def predicted(self) -> float:
        """Bytes that the calls which wait together were predicted to need."""
        chosen = [m.choice for m in self._most]
        needed = [c.needs - c.stays for c in chosen]
        return sum(c.stays for c in chosen) + max(needed, default=0)

    def kinds(self) -> str:
        """Of the choices that they were made with."""
        return ", ".join(sorted({m.choice.kind for m in self._most}))

    def forget(self, mark: "_Mark") -> None:
        """The call is not what it was taken for."""
        self.marks.remove(mark)
        self.together.pop(mark.case, None)

    def is_over(self) -> bool:
        """Whether calls have been seen and none of them waits any longer."""
        return bool(self.marks) and not any(m.waits() for m in self.marks)

    def results_alive(self) -> int:
        """Bytes of the calls' results that the loop still holds."""
        alive = {
            id(t): t for m in self.marks for t in (ref() for ref in m.results) if t is not None
        }
        there = [t for t in alive.values() if not is_unread(t)]
        return sum(t.numel() * t.element_size() for t in there)

    def optimizer_begins(self) -> None:
        """Whatever was differentiated again has been by now, even where its graph is still held."""
        for mark in self.marks:
            mark.done = mark.done or mark.again

    def before_optimizer(self) -> None:
        self._peak = max(self._peak or 0, self.around.peak())

    def peak_of_passes(self) -> int:
        """Of forward and backward passes; what the optimizer needs for itself comes when
        activations are gone.
        """
        _watching.discard(self)
        return self._peak if self._peak is not None else self.around.peak()


_steps: "weakref.WeakSet[Step]" = weakref.WeakSet()  # all of them
_watching: "weakref.WeakSet[Step]" = (
    weakref.WeakSet()
)  # those whose peak is read when an optimizer begins


def _optimizer_begins(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    made.optimizers.add(optimizer)
    for step in list(_steps):
        step.optimizer_begins()
    for step in list(_watching):
        step.before_optimizer()


_listens: List[Any] = []  # the hook, once it is there


def listen_to_optimizers() -> None:
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    if not _listens:
        _listens.append(register_optimizer_step_pre_hook(_optimizer_begins))


class _Mark:
    """One training call, from its begin until its backward pass begins or its graph is gone."""

    def __init__(self, case: Case) -> None:
        self.case, self.done = case, False
        self.graph: Optional[Callable[[], Optional[_Here]]] = None  # a weak reference
        self.results: List[Callable[[], Optional[torch.Tensor]]] = []  # and these
        self.again = False  # its gradients are differentiated again, so its graph is still needed
        self.choice = case.choice  # of this call

    def watch(self, result: Any) -> None:
        results = [t for t in tree.flatten(result)[0] if is_tensor(t) and t.grad_fn is not None]
        if not results:
            self.done = True
            return
        here = _Here()
        results[0].grad_fn.metadata["memroom"] = here  # lives as long as the graph does
        self.graph = weakref.ref(here)
        self.results = [weakref.ref(t) for t in results]
        for t in results:  # the loop may differentiate any of them
            t.register_hook(self._arrived)

    def _arrived(self, grad: torch.Tensor) -> None:
        self.again = torch.is_grad_enabled()  # in a backward pass with create_graph only
        self.done = not self.again
        if self.again:
            self.case.amplifies = AGAIN

    def waits(self) -> bool:
        return not self.done and (self.graph is None or self.graph() is not None)


class _Here:
    pass
