"""A model spread over ranks that are not there: FSDP2 and DDP on torch's pretended group."""

from __future__ import annotations

from typing import Any

from .models import Unbuildable


class Ranks:
    """How one rank holds the model. Without ranks it is simply moved to the card."""

    def __init__(self, model: Any, spec: dict[str, Any], torch: Any) -> None:
        self.model, self.spec, self.torch = model, spec, torch
        self.reducer: Any = None

    def load(self) -> None:
        kind = self.spec["shard"]
        if not kind:
            self.model.to("cuda")
            return
        if kind not in ("fsdp", "ddp"):
            raise Unbuildable(
                "--shard %s is not for models that are planned through Python: use fsdp or ddp"
                % kind
            )
        self.torch.distributed.init_process_group("nccl")
        self.model.to("cuda")
        if kind == "ddp":
            wrapped = self.torch.nn.parallel.DistributedDataParallel(self.model, device_ids=[0])
            self.reducer = wrapped.reducer
            return
        self.spread()

    def spread(self) -> None:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        half = {"amp_bf16": self.torch.bfloat16, "amp_fp16": self.torch.float16}
        precision = self.spec["precision"]
        policy = MixedPrecisionPolicy()
        if precision in half:
            policy = MixedPrecisionPolicy(
                param_dtype=half[precision], reduce_dtype=self.torch.float32
            )
        how = {"mp_policy": policy, "reshard_after_forward": not self.spec["no_reshard"]}
        for block in blocks(self.model, self.torch):
            fully_shard(block, **how)
        fully_shard(self.model, **how)

    def forward(self) -> None:
        if self.reducer is not None:
            self.reducer._rebuild_buckets()
            self.reducer.prepare_for_forward()

    def backward(self) -> None:
        if self.reducer is not None:
            self.reducer.prepare_for_backward([])


def blocks(model: Any, torch: Any) -> list[Any]:
    """The repeated parts: those the model says must not be split, else those of its lists."""
    names = getattr(model, "_no_split_modules", None) or ()
    found = [m for m in model.modules() if type(m).__name__ in names]
    if found:
        return found
    lists = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList)]
    return [block for one in lists for block in one if any(True for _ in block.parameters())]
