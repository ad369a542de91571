"""What CUDA allocates inside an operation, besides or instead of its results.

A rule is a function of a Call; it notes the results and the scratch in the order in which the CUDA
kernels ask for them. Operations without a rule allocate their results in order and nothing else.
The sizes were read off allocator recordings of torch 2.11 on an H200, operation by operation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Collection, Iterable

import torch

from . import attention, convolution, recurrent, syncnorm
from . import recorder as record
from .reduction import scratch as reduction_scratch
from .stage import Call
from .workspace import blas_workspace

if TYPE_CHECKING:
    from torch._ops import OpOverload

    from .card import Card
    from .stage import Rule, Stage


class Rules:
    """The rules for one card."""

    def __init__(self, card: Card) -> None:
        p = card.properties
        self.sms, self.threads = p.multi_processor_count, p.max_threads_per_multi_processor
        self.blas_bytes, self.lt_bytes = card.card["blas"], card.card["blaslt"]
        # whose library handles have their workspaces
        self.blas: set[str | int] = set()
        self.lt: set[str | int] = set()
        self.hopper = p.major >= 9

    def table(self) -> dict[str, Rule]:
        names: dict[str, Rule] = {
            "mm": self.matmul,
            "bmm": self.matmul,
            "addmm": self.addmm,
            "baddbmm": self.matmul,
            "_addmm_activation": self.addmm,
            "mv": self.matmul,
            "addmv": self.matmul,
            "dot": self.matmul,
            "vdot": self.matmul,
            "addbmm": self.matmul,
            "_grouped_mm": self.grouped,
            "roll": self.roll,
            "native_layer_norm": self.layer_norm,
            "_softmax": self.softmax,
            "native_layer_norm_backward": self.layer_norm_backward,
            "native_group_norm": self.group_norm,
            "native_group_norm_backward": self.group_norm_backward,
            "masked_select": self.masked_select,
            "index_put": self.index_put,
            "sum": self.reduce,
            "mean": self.reduce,
            "amax": self.reduce,
            "amin": self.reduce,
            "linalg_vector_norm": self.reduce,
            "norm": self.reduce,
            "prod": self.reduce,
            "any": self.reduce,
            "all": self.reduce,
            "max": self.reduce,
            "min": self.reduce,
            "argmax": self.reduce,
            "argmin": self.reduce,
            "nansum": self.reduce,
            "_softmax_backward_data": self.softmax_backward,
            "_log_softmax_backward_data": self.log_softmax_backward,
            "_safe_softmax": self.safe_softmax,
            "mse_loss": self.elementwise_loss,
            "smooth_l1_loss": self.elementwise_loss,
            "huber_loss": self.elementwise_loss,
            "binary_cross_entropy": self.elementwise_loss,
            "native_dropout": self.mask_first,
            "embedding": self.embedding,
            "embedding_dense_backward": self.embedding_backward,
            "nonzero": self.nonzero,
            "sort": self.sort,
            "_foreach_norm": self.foreach_norm,
            "cumsum": self.cumsum,
            "index": self.index,
            "index_put_": self.index_put,
            "_index_put_impl_": self.index_put,
            "_unique2": self.unique,
            "logsumexp": self.logsumexp,
            "multinomial": self.multinomial,
            "nll_loss_forward": self.loss,
            "_log_softmax": self.softmax,
            "nll_loss_backward": self.loss,
            "nll_loss2d_forward": self.loss,
        }
        for part in (attention, convolution, recurrent):
            names.update(part.rules(self))
        return names

    # -- matrix products
    # ------------------------------------------------------------

    def results(self, call: Call, category: int = record.UNKNOWN) -> None:
        for t in call.outs:
            call.stage.result(t, call, category)

    def owner(self, call: Call) -> str | int:
        """Whose library handle is used: each thread that multiplies has its own, and backward runs
        on the engine's.
        """
        return "engine" if torch._C._current_autograd_node() is not None else call.thread

    def use_blas(self, call: Call) -> None:
        owner = self.owner(call)
        if owner not in self.blas:
            self.blas.add(owner)
            call.stage.recorder.facts["cublas"] = True
            size = blas_workspace(self.blas_bytes)
            if size:
                call.stage.take(size, call, record.WORKSPACE)

    def matmul(self, call: Call) -> None:
        self.results(call)
        if any(t.numel() for t in call.outs):
            self.use_blas(call)

    def addmm(self, call: Call) -> None:
        """The bias is added by cuBLASLt, which has a workspace of its own."""
        self.results(call)
        self.use_blas(call)
        bias = call.args[0]
        owner = self.owner(call)
        if isinstance(bias, torch.Tensor) and bias.dim() == 1 and owner not in self.lt:
            self.lt.add(owner)
            call.stage.take(self.lt_bytes, call, record.WORKSPACE)

    # -- reductions
    # ------------------------------------------------------------

    def reduce(self, call: Call) -> None:
        source = call.args[0]
        before = 0
        if (
            call.name in ("sum", "prod")
            and not source.dtype.is_floating_point
            and source.dtype in (torch.bool, torch.int32, torch.uint8)
        ):
            before = 8 * source.numel() if source.dtype is torch.bool else 0
        if (
            len(call.outs) == 2
            or call.name in ("max", "min")
            and len(call.args) > 1
            and isinstance(call.args[1], torch.Tensor)
        ):
            return self.results(
                call
            )  # values with indices, or the elementwise maximum of two tensors
        ident = 0
        self.results(call)
        if before:
            ident = call.stage.take(before, call)
        self.reduction(call, source, dims_of(call, source), accumulator(call.name, source.dtype))
        if ident:
            call.stage.recorder.free(ident)

    def reduction(self, call: Call, source: torch.Tensor, dims: Collection[int], size: int) -> None:
        partial, counters = reduction_scratch(
            source.shape, source.stride(), dims, size, self.sms, self.threads
        )
        if partial:
            a, b = call.stage.take(partial, call), call.stage.take(counters, call)
            call.stage.recorder.free(b)
            call.stage.recorder.free(a)

    def foreach_norm(self, call: Call) -> None:
        """One list of partial sums for all tensors: 320 chunks of 65536 values at most a launch."""
        tensors = call.args[0]
        chunks = max((-(-t.numel() // 65536) for t in tensors), default=0)
        size = len(tensors) * chunks * 4
        ident = call.stage.take(size, call)
        self.results(call)
        call.stage.recorder.free(ident)

    def cumsum(self, call: Call) -> None:
        self.results(call)
        if call.outs[0].dtype is not call.args[0].dtype:  # the input is converted first
            call.stage.scratch(call, nbytes(call.outs[0]))
        if call.args[0].dim() == 1:
            call.stage.scratch(call, 1279 + max(0, call.args[0].numel() - 3000) // 64)

    # -- normalization
    # ------------------------------------------------------------

    def copies(self, call: Call, *tensors: object) -> list[int]:
        """Contiguous copies that a kernel makes of these arguments first; give them to `drop`."""
        return [
            call.stage.take(nbytes(t, full=True), call)
            for t in tensors
            if isinstance(t, torch.Tensor) and not t.is_contiguous()
        ]

    def drop(self, call: Call, idents: Iterable[int]) -> None:
        for ident in idents:
            call.stage.recorder.free(ident)

    def layer_norm(self, call: Call) -> None:
        held = self.copies(call, call.args[0])
        self.results(call)
        self.drop(call, held)

    def layer_norm_backward(self, call: Call) -> None:
        held = self.copies(call, call.args[0], call.args[1])
        self.results(call)
        self.drop(call, held)

    def group_norm(self, call: Call) -> None:
        held = self.copies(call, call.args[0])
        self.results(call)
        each = 4 * call.args[3] * call.args[4]  # fp32 for every sample and channel
        call.stage.scratch(call, each, each)
        self.drop(call, held)

    def group_norm_backward(self, call: Call) -> None:
        held = self.copies(call, call.args[0], call.args[1])
        self.results(call)
        each = 4 * call.args[5] * call.args[6]
        call.stage.scratch(call, each, each, each, each, each)
        self.drop(call, held)

    def roll(self, call: Call) -> None:
        """Several dimensions are rolled one after the other."""
        steps = (
            len(call.args[2])
            if len(call.args) > 2 and isinstance(call.args[2], (list, tuple))
            else 1
        )
        held = [call.stage.take(nbytes(call.outs[0]), call)] if steps > 1 else []
        self.results(call)
        self.drop(call, held)

    def grouped(self, call: Call) -> None:
        self.results(call)
        call.stage.scratch(
            call,
            60 * call.args[-1].numel() if isinstance(call.args[-1], torch.Tensor) else 240,
            67584,
        )

    # -- softmax and losses
    # ------------------------------------------------------------

    def loss(self, call: Call) -> None:
        self.results(call, record.LOSS)

    def softmax(self, call: Call) -> None:
        self.results(call, record.LOSS if call.name == "_log_softmax" else record.UNKNOWN)
        self.drop(call, self.copies(call, call.args[0]))

    def softmax_backward(self, call: Call) -> None:
        """The product of gradient and result is kept in between."""
        self.results(call)
        call.stage.scratch(call, nbytes(call.outs[0]))

    def log_softmax_backward(self, call: Call) -> None:
        self.results(call, record.LOSS)
        if not call.args[0].is_contiguous():
            call.stage.scratch(call, nbytes(call.args[0], full=True))

    def safe_softmax(self, call: Call) -> None:
        """Rows that are masked throughout are looked for: a comparison, its row-wise conjunction, a
        zero.
        """
        self.results(call)
        out = call.outs[0]
        ids = [
            call.stage.take(n, call) for n in (out.numel(), out.numel() // max(1, out.shape[-1]), 4)
        ]
        for ident in reversed(ids):
            call.stage.recorder.free(ident)

    def elementwise_loss(self, call: Call) -> None:
        """The loss of each element is computed into a buffer of its own; the scalar lies in another
        of that size.
        """
        out, source = call.outs[0], call.args[0]
        if out.dim() or not source.dim():
            return self.results(call)
        size = source.numel() * out.element_size()
        if call.name == "mse_loss" or call.name == "smooth_l1_loss" or call.name == "huber_loss":
            call.stage.hold_as(out, size, call, record.LOSS)
            ident = call.stage.take(size, call)
        else:
            self.results(call)
            ident = call.stage.take(size, call)
        self.reduction(call, source, range(source.dim()), 4)
        call.stage.recorder.free(ident)

    def logsumexp(self, call: Call) -> None:
        """The row's maximum is taken out first, infinite ones are replaced; then a copy of the
        whole input is made to be summed.
        """
        stage, source = call.stage, call.args[0]
        rows = call.outs[0].numel()
        top = stage.take(rows * source.element_size(), call)
        stage.scratch(call, rows * source.element_size(), rows)
        shifted = stage.take(nbytes(source, full=True), call)
        self.results(call)
        self.drop(call, [shifted, top])

    def multinomial(self, call: Call) -> None:
        """Weights are checked, then divided by noise of their size."""
        self.results(call)
        call.stage.scratch(call, nbytes(call.args[0], full=True))

    def mask_first(self, call: Call) -> None:
        for t in reversed(call.outs):
            call.stage.result(t, call)

    # -- indices
    # ------------------------------------------------------------

    def embedding(self, call: Call) -> None:
        """Indices that are not contiguous are copied first."""
        indices = call.args[1]
        copy = (
            0
            if indices.is_contiguous()
            else call.stage.take(indices.numel() * indices.element_size(), call)
        )
        self.results(call)
        call.stage.recorder.free(copy)

    def embedding_backward(self, call: Call) -> None:
        """Up to 3072 indices one kernel adds rows; more are sorted, and rows are summed in
        segments.
        """
        grad, indices, rows = call.args[0], call.args[1], call.args[2]
        n, width, stage = indices.numel(), grad.shape[-1], call.stage
        free = stage.recorder.free
        copies = [
            stage.take(t.numel() * t.element_size(), call)
            for t in (indices, grad)
            if not t.is_contiguous()
        ]
        if n <= 3072:
            self.results(call)
            for ident in copies:
                free(ident)
            return
        each, segments = 8 * n, min(n, rows)
        parts = n // 10 + segments
        keep = [stage.take(each, call), stage.take(each, call)]
        extra = stage.take(each, call)
        stage.scratch(call, radix_bytes(n))
        free(extra)
        self.results(call)
        keep += [stage.take(each, call), stage.take(8, call)]
        extra = stage.take(each, call)
        stage.scratch(call, 1279)
        free(extra)
        keep += [stage.take(8 * segments, call), stage.take(8 * segments, call)]
        stage.scratch(call, 1279)
        keep += [
            stage.take(8, call),
            stage.take(8 * parts, call),
            stage.take(4 * parts * width, call),
        ]
        for ident in [*reversed(keep), *copies]:
            free(ident)

    def nonzero(self, call: Call) -> None:
        stage, n = call.stage, call.args[0].numel()
        count = stage.take(4, call)
        stage.scratch(call, 21503 if n > 4096 else 1)
        self.results(call)
        stage.scratch(call, 1023)
        stage.recorder.free(count)

    def sort(self, call: Call) -> None:
        self.results(call)
        t = call.args[0]
        n = t.numel()
        if t.dim() == 1:
            ident = call.stage.take(8 * n, call)
            if n > 4096:
                call.stage.scratch(call, radix_bytes(n))
            call.stage.recorder.free(ident)

    def unique(self, call: Call) -> None:
        n, stage = call.args[0].numel(), call.stage
        ident = stage.take(8 * n, call)
        stage.scratch(call, radix_bytes(n) // 2)
        self.results(call)
        stage.scratch(call, 8, 1023)
        stage.recorder.free(ident)

    def masked_select(self, call: Call) -> None:
        stage, rows = call.stage, call.outs[0].numel()
        count = stage.take(4, call)
        stage.scratch(call, 21503 if call.args[1].numel() > 4096 else 1)
        positions = stage.take(8 * rows * max(1, call.args[1].dim()), call)
        stage.scratch(call, 1023)
        stage.recorder.free(count)
        self.results(call)
        stage.recorder.free(positions)

    def index(self, call: Call) -> None:
        """A mask among the indices is turned into positions first."""
        held = []
        for i in call.args[1]:
            if isinstance(i, torch.Tensor) and i.dtype in (torch.bool, torch.uint8):
                stage = call.stage
                count = stage.take(4, call)
                stage.scratch(call, 21503 if i.numel() > 4096 else 1)
                rows = call.outs[0].shape[0] if call.outs[0].dim() else 0
                held.append(stage.take(8 * rows * i.dim(), call))
                stage.scratch(call, 1023)
                stage.recorder.free(count)
        self.results(call)
        for ident in held:
            call.stage.recorder.free(ident)

    def index_put(self, call: Call) -> None:
        """Adding with repeated indices sorts them."""
        self.results(call)
        accumulate = call.arg(3, "accumulate", False)
        indices = [i for i in call.args[1] if isinstance(i, torch.Tensor)]
        if not accumulate or not indices or indices[0].dtype in (torch.bool, torch.uint8):
            return
        stage, n = call.stage, 1
        for size in torch.broadcast_shapes(*[i.shape for i in indices]):
            n *= size
        for _ in range(2):
            stage.scratch(call, 8, 1)
        free = stage.recorder.free
        first = stage.take(8 * n, call)
        stage.scratch(call, 8 * n)
        held = [first] + [stage.take(8 * n, call) for _ in range(3)]
        stage.scratch(call, radix_bytes(n) - 12288 if n > 2000 else 1)
        for ident in held:
            free(ident)


def dims_of(call: Call, source: torch.Tensor) -> set[int]:
    """The dimensions a reduction reduces: the first list among its arguments, or an int, or all."""
    for a in list(call.args[1:]) + [call.kwargs.get("dim")]:
        if isinstance(a, (list, tuple)) and a:
            return {d % max(1, source.dim()) for d in a}
        if type(a) is int and call.name not in ("linalg_vector_norm", "norm"):
            return {a % max(1, source.dim())}
    return set(range(source.dim()))


def accumulator(name: str, dtype: torch.dtype) -> int:
    if name in ("any", "all"):
        return 1
    if name in ("argmax", "argmin"):
        return 16
    if name in ("amax", "amin", "max", "min") or not dtype.is_floating_point:
        return dtype.itemsize if dtype is not torch.bool or name != "sum" else 8
    answer: int = max(4, dtype.itemsize)
    return answer


def radix_bytes(n: int) -> int:
    """cub's scratch for sorting n pairs of 8-byte keys and values."""
    return int(16 * n + 17650 + 0.2176 * n)


def nbytes(t: torch.Tensor, full: bool = False) -> int:
    """Bytes of a tensor's own storage, or of a dense copy of it."""
    answer: int = t.numel() * t.element_size() if full else t.untyped_storage().nbytes()
    return answer


def table(card: Card) -> dict[str, Rule]:
    return Rules(card).table()


def grouped_mm(
    stage: Stage,
    func: OpOverload,
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """A product for each group of rows. torch's fake version knows bfloat16 alone; other types take
    a loop over the groups, which needs no scratch.
    """
    if a.dtype is torch.bfloat16:
        with stage.fake:
            out = func(a, b, offs, bias, out_dtype)
        stage.note(Call(stage, func, "_grouped_mm", (a, b, offs), {}, out))
        return out
    groups = offs.numel() if offs is not None else a.shape[0]
    if a.dim() == 2 and b.dim() == 2:
        shape = [groups, a.shape[0], b.shape[1]]
    elif a.dim() == 2:
        shape = [a.shape[0], b.shape[-1]]
    elif b.dim() == 2:
        shape = [a.shape[1], b.shape[1]]
    else:
        shape = [a.shape[0], a.shape[1], b.shape[2]]
    with stage.fake:
        out = torch.empty(shape, dtype=out_dtype or a.dtype, device=a.device)
    stage.result(out, Call(stage, func, "_grouped_mm", (a, b), {}, out))
    return out


def install(stage: Stage) -> None:
    stage.played["_grouped_mm"] = grouped_mm
    attention.install(stage)
    recurrent.install(stage)
    convolution.install(stage)
    syncnorm.install(stage)
