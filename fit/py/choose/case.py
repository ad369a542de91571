"""What is known of one module's training call, and what is done about it."""

import dataclasses
import weakref
from typing import Any, Callable, List, Optional, Tuple

import torch

from ..calls.modules import name_of
from ..remedies.microbatch import Plan
from .choices import Choice

Size = Tuple[int, ...]  # elements of a call's largest tensor, and of some of them, in order


@dataclasses.dataclass(eq=False)
class Case:
    """A module's training call."""

    module: Callable[[], Optional[torch.nn.Module]]  # a weak reference
    name: str
    choice: Choice  # what is done
    candidates: List[Choice]  # what could be done; none where nothing was measured
    dear: List[Choice] = dataclasses.field(default_factory=list)  # and where none of these fits
    rows: int = 0  # samples of the batch
    plan: Optional[Plan] = None  # how the batch is split, where it can be
    outputs: float = 0  # bytes of what the call returns
    has_loss: bool = False  # the loss is among it: what it needs, it needs inside of the call
    beside: float = 0  # bytes that a loss outside of the module is taken to need
    optional: int = 0  # bytes of a work space that a library takes where it can, not planned with
    wants_spaces: bool = False  # a library wants work spaces in it
    size: Size = ()  # of the call's tensors when the choice was made
    cut: bool = False  # a training call has been run in pieces, be it in the first step only
    proven: int = 0  # calls that got through their forward pass with this choice
    proven_size: Size = ()  # of the largest calls that got through
    ran: List[Choice] = dataclasses.field(default_factory=list)  # whole steps were done with these
    settled: bool = False  # a whole step has been seen with it
    sent: int = 0  # bytes of the last call that waited in host memory
    growing: Optional["Growing"] = None  # how what stays of an unmeasured call depends on the batch
    unmeasured: str = ""  # why nothing is known beforehand
    amplifies: str = ""  # why small differences grow in this training, where they do
    half: bool = False  # it computes in half precision
    precision: str = ""  # what other kernels round by, in words, where that is coarser than fp32
    rounding: str = ""  # how small they are at first, in words, where that is known
    parameters: List["weakref.ref[torch.nn.Parameter]"] = dataclasses.field(default_factory=list)
    trained: int = 0  # of its parameters when the choice was made

    def trains_more(self) -> bool:
        """Whether parameters are trained that were not when the choice was made: what they need
        for that is saved since. It is asked before every call, so the module is not gone through.
        """
        return self._trained() > self.trained

    def _trained(self) -> int:
        return sum(p.requires_grad for p in (ref() for ref in self.parameters) if p is not None)

    def note_trained(self, module: torch.nn.Module) -> None:
        self.parameters = [weakref.ref(p) for p in module.parameters()]
        self.trained = self._trained()


@dataclasses.dataclass
class Growing:
    """What may stay on the card of a call whose batches cannot be measured beforehand."""

    saved: float  # bytes that the call saved which was watched
    room: float  # bytes that may stay of one like it
    beside: float  # bytes that were needed then beside what stays: they grow with the batch
    growth: float = 1.0  # times that call which the longest one was seen to be, or must be

    def keep(self) -> float:
        return max(0.0, self.room - (self.growth - 1) * self.beside)

    def saw(self, saved: float) -> None:
        self.growth = max(self.growth, saved / self.saved if self.saved else 1.0)


def case_of(
    module: torch.nn.Module,
    choice: Choice,
    candidates: Optional[List[Choice]] = None,
    inputs: Any = None,
    plan: Optional[Plan] = None,
) -> Case:
    return Case(
        weakref.ref(module),
        name_of(module),
        choice,
        candidates or [],
        rows=inputs.rows if inputs else 0,
        plan=plan,
    )
