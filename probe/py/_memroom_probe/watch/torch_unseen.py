"""Steps that no hook tells of: those of optimizers that torch.compile has made part of a compiled
program, and those that a program writes by hand, without an optimizer.

Inside a compiled program no hook of ours runs: a call would break its graph. What a step leaves can
be seen from outside, when the next backward pass begins, so such a step ends for us a forward pass
later than it does. Nothing is looked at where steps arrive by their hooks, and a look reads a few
counters, however many parameters and objects there are.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Iterable

from .. import guard

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

SOME = 32  # parameters of an optimizer whose versions are read


class Unseen:
    """The optimizers of a process, and those among them that step without a hook: their parameters'
    version counters are moved on by every change in place, also one by compiled code.
    """

    __slots__ = ("_due", "_optimizers", "_passes", "_silent", "_versions")

    def __init__(self) -> None:
        self._optimizers: dict[int, weakref.ref[Optimizer]] = {}  # by id
        self._versions: dict[int, int] = {}  # id -> version when last looked
        self._silent: set[int] = set()  # ids of those that were found to step without a hook
        self._passes = 0  # backward passes since the last step that arrived by a hook
        self._due = 1  # the pass at which all are looked at; see stepped

    def made(self, optimizer: Optimizer) -> None:
        """Notes an optimizer that was constructed, copied or loaded."""
        key = id(optimizer)

        def gone(_: object) -> None:
            for table in (self._optimizers, self._versions):
                table.pop(key, None)
            self._silent.discard(key)

        self._optimizers[key] = weakref.ref(optimizer, gone)
        self._passes, self._due = 0, 1

    def told(self, optimizer: Optimizer) -> None:
        """A step of it arrived by a hook: it is not to be found a second time. So many passes a
        step are this program's way, and twice as many without one are not.
        """
        self._passes, self._due = 0, max(self._due, 2 * self._passes)
        if self._versions:
            self._versions.pop(id(optimizer), None)
            self._silent.discard(id(optimizer))

    def stepped(self) -> list[Optimizer]:
        """The optimizers that changed their parameters since the last call, without a hook. All are
        looked at when steps are late, and those found to be silent at each call.
        """
        self._passes += 1
        looked = self._silent
        if self._passes >= self._due:
            self._due = 2 * self._passes
            looked = set(self._optimizers)
        found = []
        for key in sorted(looked):
            optimizer = self._optimizers[key]()
            if optimizer is None:
                continue
            now = _version(optimizer)
            if now != self._versions.setdefault(key, now):
                self._versions[key] = now
                self._silent.add(key)
                found.append(optimizer)
        return found


def _version(optimizer: Optimizer) -> int:
    """A number that a step changes and accumulation of gradients does not."""
    groups = optimizer.param_groups
    groups = groups[:: 1 + len(groups) // SOME]
    each = max(1, SOME // max(1, len(groups)))
    return sum(
        p._version
        for group in groups
        for p in group["params"][:: 1 + len(group["params"]) // each]
        if p.requires_grad
    )


class ByHand:
    """Steps of a program without an optimizer, such as `p.data -= lr * p.grad`, seen by some leaves
    of the graph that backward() walks.

    Between two passes that belong to one step nothing happens to a parameter and its gradient. A
    step changes the parameter in place, makes another in its stead, or at least has the gradient
    cleared. Gradients are cleared by those who only look at them too, and changes by way of `.data`
    leave no trace; so in the first passes the values themselves are compared, and after that at
    the second, fourth, eighth pass.
    """

    __slots__ = (
        "__weakref__",
        "_before",
        "_leaves",
        "_moved",
        "_passes",
        "_period",
        "_trusted",
        "on",
    )

    LEAVES, NODES, VALUES, TRIED = 4, 256, 16, 16

    def __init__(self) -> None:
        self.on = True
        self._passes = 0
        self._leaves: list[tuple[weakref.ref[Tensor], tuple[Any, ...]]] = []  # and their marks
        self._before: list[list[float]] = []  # values of the leaves at the pass before
        self._moved = 0  # the pass before which the values had changed
        self._trusted = False  # what marks show are steps
        self._period = 0  # passes of a step, where marks show nothing and values do

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The leaves, as an optimizer has them."""
        return [
            {"params": [leaf for leaf in (ref() for ref, _ in self._leaves) if leaf is not None]}
        ]

    @property
    def state(self) -> dict[Any, Any]:
        return {}

    def begins(self, outputs: Any) -> bool:
        """A pass begins. Returns whether a step ended since the pass before."""
        self._passes += 1
        marked, renewed = False, False
        live = [(ref(), marks) for ref, marks in self._leaves]
        live = [(leaf, marks) for leaf, marks in live if leaf is not None]
        if live:
            marked = any(_marks(leaf) != marks for leaf, marks in live)
        if not marked and not self._period:
            renewed = self._renew(outputs, [leaf for leaf, _ in live])
        if self._tries():
            return self._compare(marked or renewed, renewed)
        if self._period:
            return (self._passes - self._moved) % self._period == 0
        return self._trusted and (marked or renewed)

    def ends(self) -> None:
        """A pass has ended: what comes until the next one is not its doing."""
        self._leaves = [
            (ref, _marks(leaf))
            for ref, leaf in ((r, r()) for r, _ in self._leaves)
            if leaf is not None
        ]

    def _renew(self, outputs: Any, known: list[Tensor]) -> bool:
        """Looks for the leaves of the graph. Returns whether all are others than before."""
        found = _leaves_of(outputs)
        other = bool(self._leaves) and not any(leaf is k for leaf in found for k in known)
        kept = [leaf for leaf in found if any(leaf is k for k in known)]
        if found:
            self._leaves = [(weakref.ref(leaf), _marks(leaf)) for leaf in kept or found]
        return other and bool(found)

    def _tries(self) -> bool:
        near = self._passes & (self._passes - 1), (self._passes - 1) & (self._passes - 2)
        return not self._period and not self._trusted and (self._passes <= self.TRIED or 0 in near)

    def _compare(self, seen: bool, renewed: bool) -> bool:
        """Returns whether a step changed the values since the pass before."""
        leaves = self.param_groups[0]["params"]
        for device in {leaf.device for leaf in leaves if leaf.is_cuda}:
            _wait(device)
        now = [_values(leaf) for leaf in leaves]
        before, self._before = self._before, now
        moved = any(_updated(old, new, renewed) for old, new in zip(before, now))
        if moved and seen:
            self._trusted = True
        elif moved and self._moved:
            self._period = self._passes - self._moved
        if moved:
            self._moved = self._passes
        return moved


def _leaves_of(outputs: Any) -> list[Tensor]:
    """A few leaves of the graph behind the outputs of a program: those that are near."""
    tensors = outputs if isinstance(outputs, (list, tuple)) else (outputs,)
    waiting = [getattr(tensor, "grad_fn", None) for tensor in tensors]
    seen: set[Any] = set()
    found: list[Tensor] = []
    while waiting and len(seen) < ByHand.NODES and len(found) < ByHand.LEAVES:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if type(node).__name__ == "AccumulateGrad":
            found.append(node.variable)
        else:
            waiting.extend(before for before, _ in node.next_functions)
    return found


def _marks(leaf: Tensor) -> tuple[Any, ...]:
    """What a step changes and accumulation of gradients does not."""
    grad = leaf.grad
    if grad is None:
        return leaf._version, None, 0
    return leaf._version, id(grad), grad._version


def _wait(device: Any) -> None:
    """Waits until a card has done what the program gave it, unless that is being recorded."""
    import torch

    if not torch.cuda.is_current_stream_capturing():
        guard.wait(torch.cuda.current_stream(device).synchronize)


def _values(leaf: Tensor) -> list[float]:
    """Some values of a leaf; none where asking for them could disturb the program."""
    if leaf.device.type == "cuda":
        import torch

        if torch.cuda.is_current_stream_capturing():
            return []
    elif leaf.device.type != "cpu":
        return []
    flat = leaf.detach().reshape(-1) if leaf.is_contiguous() else leaf.detach()[:1].reshape(-1)
    each = max(1, flat.numel() // ByHand.VALUES)
    return [float(value) for value in flat[::each][: ByHand.VALUES].tolist()]


def _updated(old: Iterable[float], new: Iterable[float], renewed: bool) -> bool:
    """Returns whether values were updated. Those of another tensor must resemble the old ones: a
    batch of data does not.
    """
    pairs = list(zip(old, new))
    moved = sum(abs(a - b) for a, b in pairs)
    return moved > 0 and (not renewed or moved < 0.5 * sum(abs(a) for a, _ in pairs))
