"""SyncBatchNorm's operations, which torch has for cards only: what each of them returns."""

from typing import Any

import torch

from .stage import Call

WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


def install(stage: Any) -> None:
    stage.played.update(
        batch_norm_stats=stats,
        batch_norm_gather_stats_with_counts=gathered,
        batch_norm_elemt=like_input,
        batch_norm_backward_reduce=reduced,
        batch_norm_backward_elemt=like_second,
    )


def _noted(stage: Any, func: Any, args: Any, out: Any) -> Any:
    stage.note(Call(stage, func, func._schema.name.split("::")[-1], args, {}, out))
    return out


def _channels(stage: Any, t: Any, *dtypes: Any) -> Any:
    """A value a channel, of each type; sums of half-precision values are fp32."""
    with stage.fake:
        return tuple(
            torch.empty(t.shape[1], dtype=d or WIDER.get(t.dtype, t.dtype), device=t.device)
            for d in dtypes
        )


def stats(stage: Any, func: Any, *args: Any) -> Any:
    return _noted(stage, func, args, _channels(stage, args[0], None, None))


def gathered(stage: Any, func: Any, *args: Any) -> Any:
    return _noted(stage, func, args, _channels(stage, args[0], None, None))


def like_input(stage: Any, func: Any, *args: Any) -> Any:
    with stage.fake:
        out = torch.empty_like(args[0])
    return _noted(stage, func, args, out)


def like_second(stage: Any, func: Any, *args: Any) -> Any:
    with stage.fake:
        out = torch.empty_like(args[1])
    return _noted(stage, func, args, out)


def reduced(stage: Any, func: Any, *args: Any) -> Any:
    """Two sums that all ranks need, and the gradients of scale and shift."""
    weight = args[4]
    kind = weight.dtype if weight is not None else None
    return _noted(stage, func, args, _channels(stage, args[1], None, None, kind, kind))
