"""Scaled dot-product attention as CUDA runs it.

torch chooses among four implementations by asking the card; on fake tensors the question cannot be
asked, so the choice is made here by the same conditions (ATen's sdp_utils) and the chosen operation
is called. The math implementation is torch's own composite: its parts pass the stage one by one.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from .rules import Rules
    from .stage import Call, Rule, Stage

aten = torch.ops.aten
HALF = (torch.float16, torch.bfloat16)
LARGE = ((8, 0), (9, 0), (10, 0), (10, 3))  # cards with 160 KiB of shared memory a block and more


def install(stage: Stage) -> None:
    library = torch.library.Library("aten", "IMPL")
    library.impl("scaled_dot_product_attention", functools.partial(attend, stage), "AutogradCUDA")
    stage.attention = library  # registrations last as long as the library object


def attend(
    stage: Stage,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    backend = choose(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )
    mask = attn_mask
    if mask is not None and mask.dtype is torch.bool:
        mask = torch.where(
            mask,
            torch.scalar_tensor(0.0, dtype=query.dtype, device=query.device),
            torch.scalar_tensor(float("-inf"), dtype=query.dtype, device=query.device),
        )
    keep = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    if backend == "cudnn":
        return aten._scaled_dot_product_cudnn_attention(
            query, key, value, mask, keep, dropout_p, is_causal, False, scale=scale
        )[0]
    if backend == "flash":
        return flash(query, key, value, dropout_p, is_causal, scale)
    if backend == "efficient":
        if mask is not None:
            mask = aligned(mask).expand(
                query.shape[0], query.shape[1], query.shape[2], key.shape[2]
            )
        return aten._scaled_dot_product_efficient_attention(
            query, key, value, mask, keep, dropout_p, is_causal, scale=scale
        )[0]
    stage.in_math = True
    try:
        return aten._scaled_dot_product_attention_math(
            query, key, value, mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
        )[0]
    finally:
        stage.in_math = False


def flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> torch.Tensor:
    width = query.shape[-1]
    if scale is None:
        scale = 1.0 / width**0.5
    if width % 8:
        query, key, value = (
            torch.nn.functional.pad(t, (0, 8 - width % 8)) for t in (query, key, value)
        )
    out = aten._scaled_dot_product_flash_attention(
        query, key, value, dropout_p, is_causal, False, scale=scale
    )[0]
    return out[..., :width] if out.shape[-1] != width else out


def aligned(mask: torch.Tensor) -> torch.Tensor:
    """The efficient kernel reads a mask in vectors of 8: rows that do not start at such a place are
    padded.
    """
    if all(s % 8 == 0 for s in mask.stride()[:-1]) and mask.stride(-1) == 1:
        return mask
    last = mask.shape[-1]
    return torch.nn.functional.pad(mask, (0, 8 - last % 8))[..., :last]


def choose(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> str:
    """Name of the implementation that torch takes for these arguments on this card."""
    cuda = torch.backends.cuda
    if any(t.dim() != 4 for t in (query, key, value)) or 0 in query.shape + key.shape:
        return "math"
    major = torch.cuda.get_device_capability()[0]
    grouped = query.shape[1] != key.shape[1]
    width = query.shape[-1]
    wide = value.shape[-1]  # DeepSeek's values are narrower than its keys: only flash refuses that
    dense = all(t.stride(-1) == 1 for t in (query, key, value))
    # a compiled ViT gets a mask that is one value for all, and takes the math implementation then
    mask_dense = attn_mask is None or (
        attn_mask.stride(-1) == 1 or (attn_mask.dtype is torch.bool and attn_mask.stride(-1) != 0)
    )
    trained_mask = attn_mask is not None and attn_mask.requires_grad
    half = query.dtype in HALF
    if query.shape[0] != key.shape[0] or (grouped and not enable_gqa):
        return "math"
    if (
        major in (9, 10)
        and cuda.cudnn_sdp_enabled()
        and half
        and dense
        and not trained_mask
        and mask_dense
        and width % 8 == wide % 8 == 0
        and max(width, wide) <= 256
    ):
        return "cudnn"
    if (
        cuda.flash_sdp_enabled()
        and half
        and dense
        and attn_mask is None
        and wide == width <= 256
        and major >= 8
    ):
        return "flash"
    align = 8 if half else 4
    if (
        cuda.mem_efficient_sdp_enabled()
        and not grouped
        and dense
        and mask_dense
        and width % align == wide % align == 0
        and query.dtype in HALF + (torch.float32,)
    ):
        return "efficient"
    return "math"


# -- what the implementations allocate
# ------------------------------------------------------------


def rules(_: Rules) -> dict[str, Rule]:
    return {
        "_scaled_dot_product_cudnn_attention": cudnn_forward,
        "_scaled_dot_product_cudnn_attention_backward": cudnn_backward,
        "_scaled_dot_product_efficient_attention_backward": efficient_backward,
        "_scaled_dot_product_flash_attention": flash_forward,
        "_scaled_dot_product_flash_attention_backward": flash_backward,
        "_scaled_dot_product_efficient_attention": efficient_forward,
    }


def cudnn_forward(call: Call) -> None:
    """Two random-number scalars, the result, the log-sum-exp; a small scratch."""
    out, stage = call.out, call.stage
    for i in (6, 7, 0, 1):
        if isinstance(out[i], torch.Tensor) and out[i].numel():
            stage.result(out[i], call)
    stage.scratch(call, 256)
    stage.recorder.facts["cudnn"] = True


def cudnn_backward(call: Call) -> None:
    """Besides the gradients: the query's gradient in fp32, a sum a row; keys and values a query
    head where heads are grouped.
    """
    query, key = call.args[1], call.args[2]
    for t in call.outs:
        call.stage.result(t, call)
    b, heads, s, d = query.shape
    grouped = key.shape[1] != heads
    call.stage.scratch(call, cudnn_workspace(b * heads, s, key.shape[2], d, grouped))


def cudnn_workspace(heads: int, s: int, t: int, d: int, grouped: bool) -> int:
    """Bytes for so many heads of all samples. tape/ops_attention.go has the same rule;
    tape/testdata/fused_attention.jsonl holds both to one answer.
    """
    return 4 * heads * s * d + 4 * heads * s + 256 + (4 * heads * t * d if grouped else 0)


def efficient_forward(call: Call) -> None:
    out, stage = call.out, call.stage
    stage.result(out[0], call)
    stage.result(out[1], call)
    query = call.args[0]
    if query.dtype in HALF and query.shape[-1] > 128:
        stage.scratch(call, 4 * query.numel())


def efficient_backward(call: Call) -> None:
    query, key, stage = call.args[1], call.args[2], call.stage
    b, heads, s, d = query.shape
    t = key.shape[2]
    for g in call.out[:3]:
        if isinstance(g, torch.Tensor):
            stage.result(g, call)
    if isinstance(call.out[3], torch.Tensor) and call.out[3].numel():
        stage.hold_as(call.out[3], b * heads * s * -(-t // 16) * 16 * query.element_size(), call)
    free = stage.recorder.free
    rows = 4 * b * heads * s
    if query.dtype is torch.float32:
        product, total = stage.take(4 * b * heads * s * d, call), stage.take(rows, call)
        delta = stage.take(rows, call)
        free(total)
        free(product)
    else:
        delta = stage.take(rows, call)
    large = torch.cuda.get_device_capability() in LARGE
    work = stage.take(efficient_workspace(query.dtype in HALF, large, b * heads, s, t, d), call)
    free(delta)
    free(work)


def efficient_workspace(half: bool, large: bool, heads: int, s: int, t: int, d: int) -> int:
    """Bytes for so many heads of all samples: fp32 partial gradients of the query in tiles, each
    with a lock, and those of keys and values where the kernel cannot keep them in registers.
    tape/ops_attention.go has the same rules; tape/testdata/efficient_attention.jsonl holds both to
    one answer.
    """
    i, j, registers = efficient_tile(half, large, d)
    queries = -(-s // i) * -(-d // j) * (4 * i * j + 16)
    if not half or registers:
        return heads * queries
    splits = max(1, min(-(-t // j), 200 // heads))
    return heads * (queries + 2 * 4 * splits * j * -(-d // i) * i)


def efficient_tile(half: bool, large: bool, d: int) -> tuple[int, int, bool]:
    """Rows of queries and of keys that a block works on, and whether the gradients of keys and
    values stay in registers.
    """
    if d <= 64:
        return 64, 64, half
    if half and not large and d <= 96:
        return 128, 64, True
    if not large:
        return 64, 64, False
    if half and d <= 128:
        return 128, 128, True
    return 128, 64, False


def flash_forward(call: Call) -> None:
    for t in call.outs:
        if t.numel():
            call.stage.result(t, call)


def flash_backward(call: Call) -> None:
    query, stage = call.args[1], call.stage
    b, heads, s, d = query.shape
    copies = [
        stage.take(query.numel() * query.element_size(), call)
        for _ in range(0 if d % 8 == 0 else 2)
    ]
    for t in call.outs:
        stage.result(t, call)
    sums, gradient = flash_workspace(b * heads, s, d)
    a, c = stage.take(sums, call), stage.take(gradient, call)
    for ident in (c, a, *copies):
        stage.recorder.free(ident)


def flash_workspace(heads: int, s: int, d: int) -> tuple[int, int]:
    """Bytes of the sums of the queries and of their gradient in fp32, as in tape/ops_attention.go:
    queries are rounded up to 128, the dimension to 32, and to 256 above 192.
    """
    rows = -(-s // 128) * 128
    wide = 256 if d > 192 else -(-d // 32) * 32
    return 4 * heads * rows, 4 * heads * rows * wide
