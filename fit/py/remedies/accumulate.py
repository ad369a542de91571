"""Forward and backward of each piece at once, where the module returns the loss itself.

By the chain rule the gradient of whatever the loop makes of the loss is the gradient of the loss
times one number, which arrives when the loop calls backward(). So each piece's gradients are taken
right after its forward pass, summed, and handed on, multiplied by that number, when the loop asks.
Other outputs (logits) are returned without their graph; if the loop differentiates them after all,
their part is computed by running the pieces again.
"""

import contextlib
import dataclasses
from typing import Any, Callable, Dict, Iterator, List, Tuple

import torch

from ..batch.inputs import is_tensor
from ..batch.joined import Joined, parts_of
from ..batch.losses import weighted
from ..batch.outputs import LOSS, ROWS, SAME
from ..calls import generators, outermost, tree
from ..calls.again import bears_no_grad
from . import unread

LARGE = 16 << 20  # bytes from which on a result is put together only when somebody reads it


class NotHere(Exception):
    """This call cannot be run this way; recomputation can."""


class Scale:
    """The number that arrives at backward, as it was last time. Gradients are taken with it from
    the start, so that fp16 gradients under a GradScaler do not vanish before they are scaled. A
    0-dim tensor, never read on the host.
    """

    def __init__(self) -> None:
        self.last = None

    def remember(self, grad: torch.Tensor) -> None:
        good = torch.isfinite(grad) & (grad != 0)
        self.last = torch.where(good, grad, torch.ones_like(grad)).detach()

    def is_needed_first(self) -> Any:
        """Under fp16 autocast the first call must not take gradients before the scale has been seen
        once.
        """
        return (
            self.last is None
            and torch.is_autocast_enabled()
            and torch.get_autocast_gpu_dtype() == torch.float16
        )


def run(work: "Pieces", before_piece: Any) -> Any:
    if any(is_tensor(leaf) and leaf.requires_grad for leaf in work.pieces[0][0]):
        raise NotHere("an argument of the model needs a gradient of its own")
    begin, total, plan = _sequence_number(), None, work.plan
    names: List[str] = []
    sums: Dict[Any, Any] = {}
    slots: List[Any] = [o.joined(sum(work.sizes)) for o in plan.outputs]
    late = _Late(plan, len(work.sizes))
    for i, rows in enumerate(work.sizes):
        if before_piece:
            before_piece()
        out, rebuild = work.forward(i)
        loss = out[work.index]
        _add_gradients(sums, loss, plan.scale.last, begin)
        total = loss.detach() if total is None else total + loss.detach()
        _collect(slots, plan.outputs, late.leave_out(out), rows)
        names = names or tree.paths(rebuild(out))
        del out, loss
    slots = [
        late.result(at, names[at], work, total) if at in late.kinds else _joined(s)
        for at, s in enumerate(slots)
    ]
    slots[work.index] = total
    if sums:
        _attach(slots, work, plan, sums)
    return rebuild(slots)


def _joined(slot: Any) -> Any:
    return slot.result() if isinstance(slot, Joined) else slot


class _Late:
    """The results that are put together only if somebody reads them."""

    def __init__(self, plan: Any, pieces: int) -> None:
        self.plan, self.pieces = plan, pieces
        self.kinds: Dict[int, Any] = {}  # place among the results -> (dtype and device, shape)

    def leave_out(self, out: Any) -> Any:
        """The results of a piece, with None for those that come late."""
        if self.plan.assembles:
            return out
        kept = list(out)
        for at, (output, value) in enumerate(zip(self.plan.outputs, out)):
            if output.kind == ROWS and self._is_large(at, value):
                length = value.shape[output.dim] + (
                    self.kinds[at][1][output.dim] if at in self.kinds else 0
                )
                shape = [*value.shape[: output.dim], length, *value.shape[output.dim + 1 :]]
                self.kinds[at] = value.new_empty(0), shape
                kept[at] = None
        return kept

    def _is_large(self, at: int, value: torch.Tensor) -> bool:
        return at in self.kinds or value.numel() * value.element_size() * self.pieces >= LARGE

    def result(self, at: int, name: str, work: Any, loss: torch.Tensor) -> torch.Tensor:
        like, shape = self.kinds[at]
        self.plan.left_out += 1
        source = unread.Source(
            lambda: work.again(at), loss, self.plan.note_read, unread.may_be_read(name)
        )
        made: torch.Tensor = unread.Unread(source, like, shape)
        return made


def _collect(slots: Any, outputs: Any, out: Any, rows: int) -> None:
    for at, (output, value) in enumerate(zip(outputs, out)):
        if output.kind == ROWS:
            if value is not None:
                slots[at].add(value.detach(), rows)
        elif output.kind == SAME:
            if is_tensor(value) and value.grad_fn is not None:
                raise NotHere("output %s needs its graph" % output.name)
            slots[at] = value


def _attach(slots: Any, work: Any, plan: Any, sums: Any) -> None:
    """Makes the loss and the other outputs depend on the variables again."""
    at = [work.index] + work.differentiable(slots)
    variables, grads = zip(*sums.values())
    sums.clear()
    connected = _Ready.apply(work, plan.scale, list(grads), [slots[i] for i in at], *variables)
    for i, value in zip(at, connected):
        slots[i] = value


def _add_gradients(sums: Any, loss: torch.Tensor, scale: Any, begin: Any) -> None:
    """Adds the gradients of loss to sums: {id of a variable: (variable, gradient)}."""
    if loss.grad_fn is None:
        return
    variables = _leaf_variables(loss.grad_fn, begin)
    with _autocast_off():  # backward belongs outside of autocast, and the loop is still inside
        grads = _gradients(loss, variables, None if scale is None else scale.to(loss.dtype))
    known, fresh, taken = [], [], {g.untyped_storage().data_ptr() for _, g in sums.values()}
    for variable, grad in zip(variables, grads):
        if grad is None:
            continue
        if id(variable) in sums:
            known.append(sums[id(variable)][1])
            fresh.append(grad)
        else:
            sums[id(variable)] = (variable, _own(grad, taken))
    if known:
        with torch.no_grad():
            torch._foreach_add_(known, fresh)


def _gradients(loss: torch.Tensor, variables: Any, scale: Any) -> Any:
    try:
        return torch.autograd.grad(loss, variables, scale, allow_unused=True)
    except RuntimeError as why:
        if bears_no_grad(why):
            raise NotHere(
                "the model checkpoints with use_reentrant=True, which needs a backward pass "
                "of its own"
            ) from None
        raise


def _own(grad: torch.Tensor, taken: Any) -> Any:
    """A gradient that can be added to in place. Two variables may be given one tensor, or a view of
    one (with one row the gradient of a class token is a part of that of the position embeddings),
    or one number for all elements.
    """
    storage = grad.untyped_storage()
    if storage.nbytes() != grad.numel() * grad.element_size() or storage.data_ptr() in taken:
        grad = grad.clone(memory_format=torch.contiguous_format)
    taken.add(grad.untyped_storage().data_ptr())
    return grad


def _leaf_variables(root: torch.nn.Module, begin: Any) -> Any:
    """The leaves of the graph below root. Everything between must be newer than the call: an older
    node belongs to the loop's own graph, which a second piece would need again.
    """
    seen, stack, found = {root}, [root], []
    while stack:
        node = stack.pop()
        if type(node).__name__ == "AccumulateGrad":
            if node.variable._backward_hooks:
                raise NotHere(
                    "a parameter has a gradient hook, which must see the whole gradient once"
                )
            found.append(node.variable)
            continue
        if node._sequence_nr() < begin and not _is_cast_weight(node):
            raise NotHere("the model uses tensors that the loop computed with gradients before")
        for below, _ in node.next_functions:
            if below is not None and below not in seen:
                seen.add(below)
                stack.append(below)
    return found


def _is_cast_weight(node: Any) -> Any:
    """Autocast keeps the half copy of a weight for the whole region; its node holds nothing that
    could be used up.
    """
    return type(node).__name__ == "ToCopyBackward0" and all(
        below is None or type(below).__name__ == "AccumulateGrad"
        for below, _ in node.next_functions
    )


def _sequence_number() -> Any:
    with torch.enable_grad():
        return torch.ones((), requires_grad=True).clone().grad_fn._sequence_nr()


@dataclasses.dataclass
class Pieces:
    """The pieces of one call, to be run now and, if need be, once more during backward."""

    plan: Any
    parameters: Any  # that the module has in this call
    sizes: List[int]  # rows of each
    calls: List[Callable[..., Any]]
    pieces: List[Any]  # (leaves, how arguments are made of them)
    shares: Any  # of each in the losses: {place among the outputs: [factor]}
    cut: Callable[[List[int]], "Pieces"]  # the same call in pieces of other sizes

    def __post_init__(self) -> None:
        self.index = next((i for i, o in enumerate(self.plan.outputs) if o.kind == LOSS), -1)
        self.generators: List[Any] = [None] * len(self.pieces)
        self.autocast = _autocast_state()

    def forward(self, piece: Any) -> Any:
        """The flat outputs of one piece, its loss already multiplied by its share."""
        leaves, make = self.pieces[piece]
        if self.plan.random and self.generators[piece] is None:
            self.generators[piece] = (*generators.of_torch(), generators.drawn())
        args, kwargs = make(leaves)
        out, rebuild = tree.flatten(self.calls[piece](*args, **kwargs))
        out[self.index] = weighted(out[self.index], self.shares[self.index][piece])
        return out, rebuild

    def differentiable(self, outputs: Any) -> Any:
        return [
            i
            for i, o in enumerate(self.plan.outputs)
            if o.kind == ROWS and outputs[i].is_floating_point()
        ]

    def again(self, at: int) -> Tuple[torch.Tensor, torch.Tensor]:
        """Runs all pieces again for a result that is read after all: the result and the loss. Where
        they run out beside the whole result, smaller ones do it if nothing is drawn in them.
        """
        work = self
        while True:
            try:
                return work._again(at)
            except torch.cuda.OutOfMemoryError:
                if self.plan.random or max(work.sizes) == 1:
                    raise
            sizes = [(rows - rows // 2, rows // 2) for rows in work.sizes]
            work = self.cut([n for two in sizes for n in two if n])
            work.autocast = self.autocast

    def _again(self, at: int) -> Tuple[torch.Tensor, torch.Tensor]:
        joined, total = self.plan.outputs[at].joined(sum(self.sizes)), None
        for i, rows in enumerate(self.sizes):
            state = _as_it_was(self.generators[i], self.autocast)
            with torch.no_grad(), outermost.inside(), self.parameters, state:
                out, _ = self.forward(i)
            joined.add(out[at], rows)
            total = out[self.index] if total is None else total + out[self.index]
        assert total is not None
        return joined.result(), total

    def gradients(self, variables: Any, arriving: Any, create_graph: Any) -> Any:
        """Runs all pieces again for gradients that arrived at some outputs: {leaf index:
        gradient}.
        """
        sums, parts = (
            [None] * len(variables),
            {at: self._parts(grad, at) for at, grad in arriving.items()},
        )
        for i in range(len(self.pieces)):
            with torch.enable_grad():
                state = _as_it_was(self.generators[i], self.autocast)
                with outermost.inside(), self.parameters, state:
                    out, _ = self.forward(i)
                used = [
                    (out[at], parts[at][i].to(out[at].dtype))
                    for at in arriving
                    if out[at].requires_grad
                ]
                if not used:
                    continue
                more = torch.autograd.grad(
                    [v for v, _ in used],
                    variables,
                    [g for _, g in used],
                    allow_unused=True,
                    create_graph=create_graph,
                )
            sums = [s if m is None else m if s is None else s + m for s, m in zip(sums, more)]
        return sums

    def _parts(self, grad: torch.Tensor, at: Any) -> Any:
        """The gradient that arrived at an output, piece by piece."""
        output = self.plan.outputs[at]
        if at == self.index:
            return [grad] * len(self.sizes)
        a_row = 1 if output.interleaved else grad.shape[output.dim] // sum(self.sizes)
        return parts_of(grad, output.dim, [a_row * rows for rows in self.sizes], output.interleaved)


class _Ready(torch.autograd.Function):
    """A loss whose gradients are already there."""

    @staticmethod
    def forward(
        ctx: Any, work: Callable[..., Any], scale: Any, grads: Any, outputs: Any, *variables: Any
    ) -> Any:
        ctx.work, ctx.scale, ctx.used, ctx.ready, ctx.variables = (
            work,
            scale,
            scale.last,
            grads,
            variables,
        )
        ctx.set_materialize_grads(False)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, *rest: Any) -> Any:
        work, grads, arriving, again = ctx.work, ctx.ready, {}, torch.is_grad_enabled()
        ctx.ready = None  # autograd takes the tensors themselves as .grad if nobody else holds them
        if (
            again
        ):  # create_graph: gradients that are differentiated in turn need a graph of their own
            grads = None
        if grad is not None:
            ctx.scale.remember(grad)
            if grads is None:  # a second backward pass through a retained graph
                arriving[work.index] = grad
            else:
                torch._foreach_mul_(
                    grads, grad if ctx.used is None else grad / ctx.used.to(grad.dtype)
                )
        elif grads is not None:  # the loop did not use the loss
            grads = [None] * len(grads)
        others = [i for i, o in enumerate(work.plan.outputs) if o.kind == ROWS]
        arriving.update((i, g) for i, g in zip(others, rest) if g is not None)
        if arriving:
            work.plan.accumulates = (
                False  # from the next call on by recomputation, which needs one run less
            )
            more = work.gradients(ctx.variables, arriving, create_graph=again)
            grads = [
                m if g is None else g if m is None else g + m
                for g, m in zip(grads or [None] * len(more), more)
            ]
        return (None, None, None, None) + tuple(grads or [None] * len(ctx.variables))


def _autocast_state() -> Any:
    return {
        "cuda": (torch.is_autocast_enabled(), torch.get_autocast_gpu_dtype()),
        "cpu": (torch.is_autocast_cpu_enabled(), torch.get_autocast_cpu_dtype()),
    }


@contextlib.contextmanager
def _autocast_off() -> Iterator[Any]:
    with contextlib.ExitStack() as stack:
        for device, (enabled, _) in _autocast_state().items():
            if enabled:
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


@contextlib.contextmanager
def _as_it_was(drawn: Any, autocast: Any) -> Iterator[Any]:
    """Random generators and autocast as they were when the piece first ran; both put back
    afterwards.
    """
    with contextlib.ExitStack() as stack:
        for device, (enabled, dtype) in autocast.items():
            if enabled:
                stack.enter_context(torch.autocast(device, dtype=dtype))
        if drawn is not None:
            later = *generators.of_torch(), generators.drawn()
            stack.callback(generators.put_back, later)
            generators.put_back(drawn)
        yield
