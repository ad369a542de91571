"""LSTM, GRU and RNN layers as cuDNN runs them.

Their fused operation asks a library handle, which needs a card; so the layer is played here: the
same allocations in the same order, one node in the graph, the weights in one flat buffer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional, Sequence, Tuple

import torch

from ..kernels import FACTS
from . import recorder as record
from .stage import Call

if TYPE_CHECKING:
    from torch._ops import OpOverload

    from .rules import Rules
    from .stage import Rule, Stage

# kind of layer, layers, directions, whether dropout is on, whether it trains, and for sequences
# without padding (sequences, steps of the longest)
Shape = Tuple[str, int, int, bool, bool, Optional[Tuple[int, int]]]

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
RESERVE = {
    "lstm": 5,
    "gru": 6,
    "rnn_tanh": 1,
    "rnn_relu": 1,
}  # values kept for the backward pass, a hidden unit, layer and step
PACKED_STATES = 8
DROPOUT_STATE = FACTS["cudnn_dropout_state"]
LAYER = FACTS["cudnn_rnn_layer"]


def rules(base: Rules) -> dict[str, Rule]:
    return {}


def install(stage: Stage) -> None:
    stage.recorder.facts.setdefault("recurrent", False)
    torch._cudnn_rnn_flatten_weight = flatten
    library = torch.library.Library("aten", "IMPL")
    for name in GATES:
        library.impl(name + ".input", Layer(stage, name), "AutogradCUDA")
        library.impl(name + ".data", Layer(stage, name, packed=True), "AutogradCUDA")
    library.impl("gru_cell", gru_cell, "AutogradCUDA")  # has no fake kernel; that of LSTM has
    stage.recurrent = library
    stage.played["_pack_padded_sequence"] = pack


def flatten(
    weights: list[torch.Tensor],
    stride: int,
    input_size: int,
    mode: int,
    hidden_size: int,
    proj_size: int,
    num_layers: int,
    batch_first: bool,
    bidirectional: bool,
) -> torch.Tensor:
    """Moves all weights into one buffer and lets them point into it."""
    flat = torch.empty(
        sum(w.numel() for w in weights), dtype=weights[0].dtype, device=weights[0].device
    )
    at = 0
    for w in weights:
        w.data = flat[at : at + w.numel()].view(w.shape)
        at += w.numel()
    return flat


def pack(
    stage: Stage, func: OpOverload, padded: torch.Tensor, lengths: torch.Tensor, batch_first: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences without their padding, step by step: a run of steps with equally many sequences is
    copied where it is not contiguous, then the runs are joined. How many sequences a step has is
    kept on the host.
    """
    each = stage.values.real(lengths).tolist()
    sizes = [sum(n > step for n in each) for step in range(each[0])]
    with stage.fake:
        steps = padded.transpose(0, 1) if batch_first else padded
        data = torch.empty((sum(each), *steps.shape[2:]), dtype=padded.dtype, device=padded.device)
        runs, at = [], 0
        for n in sorted(set(sizes), reverse=True):
            runs.append(steps[at : at + sizes.count(n), :n])
            at += sizes.count(n)
    if data.fake_device.type == "cuda":
        call = Call(stage, func, "_pack_padded_sequence", (padded,), {}, data)
        copies = [
            stage.take(run.numel() * run.element_size(), call)
            for run in runs
            if not run.is_contiguous()
        ]
        stage.result(data, call)
        for ident in copies:
            stage.recorder.free(ident)
    return data, torch.tensor(sizes)


def packed_workspace(
    name: str,
    sequences: int,
    rows: int,
    hidden: int,
    layers: int,
    directions: int,
    dtype: torch.dtype,
    weights: int,
) -> int:
    """The same for sequences without padding, `rows` steps in all. From three recordings of one
    bidirectional LSTM, exact.
    """
    item = dtype.itemsize
    size = weights * item + layers * directions * (
        LAYER + PACKED_STATES * sequences * hidden * item
    )
    answer: int = (
        size
        + rows * hidden * item * directions * (GATES[name] + (layers > 1) + (directions > 1))
        + 256
    )
    return answer


def workspace(
    name: str,
    batch: int,
    steps: int,
    width: int,
    hidden: int,
    layers: int,
    directions: int,
    dtype: torch.dtype,
    weights: int,
) -> int:
    """cuDNN's scratch, from 186 shapes measured on an H200 (as in package tape): a copy of the
    weights, 8 MiB and some state a layer and direction, the gates of one layer, its input and some
    outputs. Exact within a few KiB except for tiny layers, where other kernels are chosen.
    """
    item, gates = dtype.itemsize, GATES[name]
    u = batch * steps * hidden * item
    states, outputs = states_and_outputs(name, layers, directions)
    size = (
        weights * item
        + layers * directions * (LAYER + states * batch * hidden * item)
        + batch * steps * width * item
        + 512
    )
    size += u * (directions * gates + outputs)
    if hidden <= 128 and dtype is not torch.bfloat16:
        size += 16 * u - (4 - gates) * 3 * u // 2
    answer: int = size
    return answer


def states_and_outputs(name: str, layers: int, directions: int) -> tuple[int, int]:
    """How many states a layer and direction, and how many outputs, the scratch holds."""
    lstm = name == "lstm"
    states, outputs = (10, min(layers, 2)) if lstm else (5, 2)
    if directions > 1:
        return states + 2, 7 if not lstm and layers > 1 else 6
    if layers > 3:  # seen at four layers only
        return (21, 0) if lstm else (15, 1)
    return states, outputs


def scratch(stage: Stage, size: int, device: torch.device) -> torch.Tensor:
    """A workspace; it carries a name of its own because its size is an estimate."""
    stage.label = ("recurrent", record.WORKSPACE)
    try:
        return torch.empty(size, dtype=torch.uint8, device=device)
    finally:
        stage.label = None


class Layer:
    """aten::lstm.input and its relatives."""

    # made at the first call with dropout, for ever
    dropout_state: torch.Tensor | None = None

    def __init__(self, stage: Stage, name: str, packed: bool = False) -> None:
        self.stage, self.name, self.packed = stage, name, packed

    def __call__(self, x: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, ...]:
        if self.packed:
            sizes, hx, weights, biases, layers, dropout, train, both = rest
            first = False
        else:
            hx, weights, biases, layers, dropout, train, both, first = rest
        states = list(hx) if self.name == "lstm" else [hx]
        self.stage.recorder.facts["cudnn"] = True
        self.stage.recorder.facts["recurrent"] = True
        if torch.is_autocast_enabled("cuda") and x.dtype is torch.float32:
            x, states, weights = self.cast(x, states, weights)
        if dropout and train and Layer.dropout_state is None:
            torch.empty(8, dtype=torch.uint8, device=x.device)
            Layer.dropout_state = torch.empty(DROPOUT_STATE, dtype=torch.uint8, device=x.device)
        if first:
            x = x.transpose(0, 1)
        packed = (int(sizes[0]), len(sizes)) if self.packed else None
        shape = (self.name, layers, 2 if both else 1, bool(dropout and train), train, packed)
        if self.packed:
            x = x.unsqueeze(1)  # one row a time step and sequence: the sizes below count rows
        out, *last = Recurrent.apply(self.stage, shape, x, *states, *weights)
        if first:
            out = out.transpose(0, 1)
        if self.packed:
            out = out.squeeze(1)
        return (out, *last)

    @staticmethod
    def cast(
        x: torch.Tensor, states: list[torch.Tensor], weights: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, list[torch.Tensor], Sequence[torch.Tensor]]:
        """Autocast brings the weights into one half-precision buffer of its own, then states and
        input.
        """
        half = torch.get_autocast_dtype("cuda")
        weights = Flat.apply(half, *weights)
        states = [s.to(half) for s in states]
        return x.to(half), states, weights


class Flat(torch.autograd.Function):
    """Weights copied into one flat buffer of another type; their gradients go back one by one."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.dtype = weights[0].dtype
        flat = torch.empty(sum(w.numel() for w in weights), dtype=dtype, device=weights[0].device)
        out, at = [], 0
        for w in weights:
            out.append(flat[at : at + w.numel()].view(w.shape))
            at += w.numel()
        return tuple(out)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        return (None, *[g.to(ctx.dtype) if g is not None else None for g in grads])


class Recurrent(torch.autograd.Function):
    """All layers and steps as one node."""

    @staticmethod
    def forward(
        ctx: Any, stage: Stage, shape: Shape, x: torch.Tensor, *rest: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.stage = stage
        name, layers, directions, drops, train, packed = shape
        count = 2 if name == "lstm" else 1
        states, weights = rest[:count], rest[count:]
        steps, batch = x.shape[0], x.shape[1]
        hidden = states[0].shape[-1]
        width = directions * hidden

        def new(*size: int) -> torch.Tensor:
            return torch.empty(*size, dtype=x.dtype, device=x.device)

        source = x if x.is_contiguous() else x.contiguous()
        out = new(steps, batch, width)
        last = [new(*s.shape) for s in states]
        u = batch * steps * hidden * x.element_size()
        matrices = sum(w.numel() for w in weights if w.dim() > 1)
        if packed:
            size = packed_workspace(
                name, packed[0], steps, hidden, layers, directions, x.dtype, matrices
            )
        else:
            size = workspace(
                name, batch, steps, x.shape[-1], hidden, layers, directions, x.dtype, matrices
            )
        work = scratch(stage, size, x.device)
        if train:
            kept = (RESERVE[name] * layers + layers - 1) * directions * u
            if drops:
                padded = packed[0] * packed[1] if packed else batch * steps
                kept += (layers - 1) * directions * padded * width // 8
            ctx.reserve = torch.empty(kept + 256, dtype=torch.uint8, device=x.device)
        del work, source
        ctx.shape, ctx.size, ctx.count = shape, size, count
        ctx.save_for_backward(x, out, *states, *weights)
        ctx.set_materialize_grads(False)
        return (out, *last)

    @staticmethod
    def backward(
        ctx: Any, grad: torch.Tensor | None, *rest: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        saved = ctx.saved_tensors
        x, out, states, weights = (
            saved[0],
            saved[1],
            saved[2 : 2 + ctx.count],
            saved[2 + ctx.count :],
        )
        zeros = [torch.zeros_like(s) if g is None else g for s, g in zip(states, rest)]
        if grad is None:
            grad = torch.zeros_like(out)
        source = x if x.is_contiguous() else x.contiguous()
        grad = grad.contiguous()
        dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        dstates = [torch.empty_like(s) for s in states]
        work = scratch(ctx.stage, ctx.size, x.device)
        del work, source
        source = x if x.is_contiguous() else x.contiguous()
        flat = torch.empty(sum(w.numel() for w in weights), dtype=x.dtype, device=x.device)
        work = scratch(ctx.stage, ctx.size, x.device)
        del work, source, zeros
        grads, at = [], 0
        for w in weights:
            grads.append(flat[at : at + w.numel()].view(w.shape))
            at += w.numel()
        ctx.reserve = None
        return (None, None, dx, *dstates, *grads)


def gru_cell(
    x: torch.Tensor,
    h: torch.Tensor,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor | None = None,
    b_hh: torch.Tensor | None = None,
) -> torch.Tensor:
    return Cell.apply(x, h, w_ih, w_hh, b_ih, b_hh)


class Cell(torch.autograd.Function):
    """One step of a GRU: two products, then one kernel that keeps five numbers a unit."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        h: torch.Tensor,
        w_ih: torch.Tensor,
        w_hh: torch.Tensor,
        b_ih: torch.Tensor | None,
        b_hh: torch.Tensor | None,
    ) -> torch.Tensor:
        products = x @ w_ih.t(), h @ w_hh.t()
        out = torch.empty_like(h)
        kept = torch.empty(h.shape[0], 5 * h.shape[1], dtype=h.dtype, device=h.device)
        del products
        ctx.biased = b_ih is not None
        ctx.save_for_backward(x, h, w_ih, w_hh, kept)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, h, w_ih, w_hh, kept = ctx.saved_tensors
        rows, width = h.shape
        of_x = torch.empty(rows, 3 * width, dtype=grad.dtype, device=grad.device)
        of_h = torch.empty_like(of_x)
        through = torch.empty_like(grad)
        biases = (of_x.sum(0), of_h.sum(0)) if ctx.biased else (None, None)
        return (of_x @ w_ih, of_h @ w_hh + through, of_x.t() @ x, of_h.t() @ h, *biases)
