"""Process groups and DistributedDataParallel as one rank of one, or of as many as --ranks says.

The group is torch's own pretended one, whose collectives do nothing. The reducer, which keeps
gradients in buckets, is C++ and times itself with events of the card; its buckets are played here
instead, by the same assignment of parameters.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Callable

from . import objects

if TYPE_CHECKING:
    import torch

    from .install import Rehearsal

SEVERAL = (
    "the command starts %d ranks: add --ranks %d to rehearse it as one of them, or rehearse one "
    "process (python train.py, or --nproc_per_node 1) with the batch of one rank"
)
PLAYED = "the process group is played with one rank: NCCL's buffers for more are not counted"
PLAYED_MANY = (
    "the process group is played: rank %d of %d; what collectives would bring is not there"
)
# forward passes for which old buckets outlive new ones: NCCL's watchdog lets go ten times a second
HELD = 2
IN_FLIGHT = 2  # flattened buckets of parameters that are broadcast at a time


def install(module: Any, rehearsal: Rehearsal) -> None:
    """`module` is torch.distributed.distributed_c10d, imported a moment ago."""
    begin = module.init_process_group

    def init(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        size = int(kwargs.get("world_size") or os.environ.get("WORLD_SIZE", "1") or 1)
        rank, world = asked(rehearsal)
        if size > 1 and world == 1:
            rehearsal.fail(SEVERAL % (size, size))
        from torch.testing._internal.distributed.fake_pg import FakeStore

        rehearsal.recorder.warn(PLAYED if world == 1 else PLAYED_MANY % (rank, world))
        rehearsal.recorder.facts["collectives"] = True
        begin("fake", store=FakeStore(), rank=rank, world_size=world)
        _answer_fsdp(rehearsal.torch)
        _reduce_in_python(sys.modules["torch.distributed"])

    module.init_process_group = init
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and hasattr(distributed, "init_process_group"):
        distributed.init_process_group = init
    objects.install(module, distributed, rehearsal)


def _answer_fsdp(torch: Any) -> None:
    """What FSDP asks of a card: that it is the accelerator, and that memory used on another stream
    is kept until that stream has caught up. The host of a rehearsal is never ahead.
    """
    torch._C._get_accelerator = lambda *args: torch.device("cuda")
    torch.Tensor.record_stream = lambda self, stream: None


def flat_parameters(module: Any) -> None:
    """`module` is FSDP1's: it asks by address whether weights are gathered."""
    module._data_ptr_allocated = lambda tensor: tensor.untyped_storage().nbytes() > 0


def shapes_apart(module: Any) -> None:
    """`module` is DTensor's: it works out the forms of whole results on fake tensors of its own,
    which take no memory on any card.
    """
    from torch.utils._python_dispatch import _disable_current_modes

    kind = module.ShardingPropagator
    work_out = getattr(kind, "_propagate_tensor_meta_non_cached", None)
    if work_out is None:
        return

    def apart(self: Any, schema: Any) -> Any:
        with _disable_current_modes():
            return work_out(self, schema)

    kind._propagate_tensor_meta_non_cached = apart


def asked(rehearsal: Rehearsal) -> tuple[int, int]:
    """The rank that is played, and of how many."""
    return int(rehearsal.target.get("rank") or 0), int(rehearsal.target.get("ranks") or 1)


def _reduce_in_python(distributed: Any) -> None:
    distributed.Reducer, distributed.Logger = Reducer, Logger
    distributed._verify_params_across_processes = lambda *args: None
    distributed._broadcast_coalesced = broadcast


def broadcast(group: Any, tensors: list[torch.Tensor], size: int, source: int = 0) -> None:
    """Parameters travel in flat copies of about `size` bytes."""
    import torch

    flying: list[torch.Tensor] = []
    for bucket in _chunks(tensors, size):
        if len(flying) == IN_FLIGHT:
            del flying[0]
        flying.append(torch.cat([t.reshape(-1) for t in bucket]))


def _chunks(tensors: list[torch.Tensor], size: int) -> list[list[torch.Tensor]]:
    import torch.distributed as distributed

    buckets, _ = distributed._compute_bucket_assignment_by_size(tensors, [size])
    return [[tensors[i] for i in bucket] for bucket in buckets]


class Logger:
    """Keeps no log."""

    def __init__(self, reducer: Reducer) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None


class Reducer:
    """The buckets: made with the model, and once more after the first backward pass in the order in
    which gradients came.
    """

    def __init__(
        self,
        parameters: list[torch.nn.Parameter],
        buckets: list[list[int]],
        limits: list[int],
        group: Any,
        sparse: list[bool],
        cap: int,
        find_unused: bool,
        as_views: bool,
        names: dict[int, str] | None = None,
        first_cap: int = 1 << 20,
        *rest: Any,
    ) -> None:
        import torch

        self.parameters, self.sparse, self.as_views = parameters, sparse, as_views
        self.caps = [first_cap, cap]
        self.rebuilds = not find_unused
        self.came: list[int] = []  # parameters in the order in which their gradients came
        self.expected = False
        # parameter -> its bucket, where it begins there, how many elements it has
        self.views: dict[int, tuple[torch.Tensor, int, int]] = {}
        self.buckets: list[torch.Tensor] = []
        self.old: list[torch.Tensor] = []
        self.forwards = 0
        self.make(buckets)
        self.used = torch.empty(len(parameters), dtype=torch.int32, device=parameters[0].device)
        self.hooks = [
            p.register_post_accumulate_grad_hook(self.hook(i)) for i, p in enumerate(parameters)
        ]

    def make(self, buckets: list[list[int]]) -> None:
        import torch

        self.views.clear()
        self.old, self.buckets, self.forwards = self.buckets, [], 0
        for bucket in buckets:
            first = self.parameters[bucket[0]]
            flat = torch.empty(
                sum(self.parameters[i].numel() for i in bucket),
                dtype=first.dtype,
                device=first.device,
            )
            self.buckets.append(flat)
            at = 0
            for i in bucket:
                n = self.parameters[i].numel()
                self.views[i] = (flat, at, n)
                at += n

    def hook(self, index: int) -> Callable[[torch.nn.Parameter], None]:
        def ready(p: torch.nn.Parameter) -> None:
            if not self.expected:
                return
            if len(self.came) < len(self.parameters):
                self.came.append(index)
            if self.as_views:
                flat, at, n = self.views[index]
                p.grad = flat[at : at + n].view(p.shape)

        return ready

    def _rebuild_buckets(self) -> bool:
        import torch.distributed as distributed

        if not self.rebuilds or len(self.came) < len(self.parameters):
            return False
        self.rebuilds = False
        buckets, _ = distributed._compute_bucket_assignment_by_size(
            [self.parameters[i] for i in self.came], self.caps, self.sparse, self.came
        )
        self.make(buckets)
        return True

    def prepare_for_forward(self) -> None:
        self.expected = False
        self.forwards += 1
        if self.forwards == HELD:
            self.old = []

    def prepare_for_backward(self, outputs: list[torch.Tensor]) -> None:
        self.expected = True

    def _set_static_graph(self) -> None:
        self.rebuilds = True

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None
