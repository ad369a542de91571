"""Bytes that rank 0 of a small Llama keeps on many cards, by PyTorch's own means: many.py HOW ...

The process group is PyTorch's fake one: collectives move nothing, tensors have the sizes of that
world. What is counted: weights, gradients and states, and what a forward pass saves for backward.
"""

import json
import sys
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import LlamaConfig, LlamaForCausalLM

WORLD, BATCH, SEQ, VOCAB = 8, 2, 512, 8000


def local(t: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that is on this rank."""
    t = t.detach()
    return t.to_local() if isinstance(t, DTensor) else t


def count(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of tensors on this rank."""
    return sum(local(t).numel() * t.element_size() for t in tensors)


class Saved:
    """What a forward pass saves beside the weights, each memory once."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.held: dict[int, torch.Tensor] = {}
        self.weights = {local(p).untyped_storage().data_ptr() for p in model.parameters()}

    def pack(self, t: torch.Tensor) -> torch.Tensor:
        """Notes a tensor that is saved."""
        mine = local(t)
        at = mine.untyped_storage().data_ptr()
        if at not in self.weights:
            self.held[at] = mine
        return t

    def bytes(self) -> int:
        """Bytes of all memory that is held."""
        return sum(t.untyped_storage().nbytes() for t in self.held.values())


def step(model: torch.nn.Module, **inputs: Any) -> dict[str, int]:
    """A step of training, and what rank 0 keeps of it."""
    optimizer = torch.optim.AdamW(model.parameters())
    saved = Saved(model)
    ids = torch.zeros((BATCH, SEQ), dtype=torch.long)
    with torch.autograd.graph.saved_tensors_hooks(saved.pack, lambda t: t):
        loss = model(input_ids=ids, labels=ids, **inputs).loss
    activations = saved.bytes()
    loss.backward()
    optimizer.step()
    return kept(model, optimizer, activations)


def kept(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, activations: int
) -> dict[str, int]:
    """What rank 0 keeps of a model."""
    params = list(model.parameters())
    states = [s for p in params for s in optimizer.state[p].values() if s.numel() > 1]
    return {
        "weights": count(params),
        "gradients": count(p.grad for p in params if p.grad is not None),
        "optimizer": count(states),
        "activations": activations,
    }


def shard(model: LlamaForCausalLM, **options: Any) -> None:
    """FSDP2 of every block and of the rest, in mixed precision."""
    options["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for block in model.model.layers:
        fully_shard(block, **options)
    fully_shard(model, **options)


def cut(model: LlamaForCausalLM, tokens: bool) -> None:
    """Tensor parallelism of four ranks, with cut tokens between the layers where asked."""
    mesh = init_device_mesh("cpu", (4,))
    between = Shard(1) if tokens else Replicate()
    block: dict[str, Any] = {
        "mlp.gate_proj": ColwiseParallel(),
        "mlp.up_proj": ColwiseParallel(),
        "mlp.down_proj": RowwiseParallel(output_layouts=between),
        "self_attn.q_proj": ColwiseParallel(),
        "self_attn.k_proj": ColwiseParallel(),
        "self_attn.v_proj": ColwiseParallel(),
        "self_attn.o_proj": RowwiseParallel(output_layouts=between),
    }
    whole: dict[str, Any] = {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        "lm_head": ColwiseParallel(input_layouts=between, output_layouts=Replicate()),
    }
    if tokens:
        block["input_layernorm"] = block["post_attention_layernorm"] = SequenceParallel()
        block["self_attn"] = PrepareModuleInput(
            input_kwarg_layouts={"hidden_states": Shard(1)},
            desired_input_kwarg_layouts={"hidden_states": Replicate()},
        )
        block["mlp"] = PrepareModuleInput(
            input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
        )
        whole["model.norm"] = SequenceParallel()
    for one in model.model.layers:
        parallelize_module(one, mesh, block)
    parallelize_module(model, mesh, whole)


class Stage(torch.nn.Module):
    """Some blocks of the model, as a pipeline has them; the first has the embedding too."""

    def __init__(self, model: LlamaForCausalLM, blocks: slice, first: bool) -> None:
        super().__init__()
        self.embed = model.model.embed_tokens if first else None
        self.layers = model.model.layers[blocks]
        self.rotary = model.model.rotary_emb

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The activations that the next stage gets."""
        h = self.embed(x) if self.embed is not None else x
        at = torch.arange(SEQ)[None]
        turns = self.rotary(h, at)
        for layer in self.layers:
            h = layer(h, position_ids=at, position_embeddings=turns)
        return h


def stage(model: LlamaForCausalLM, first: bool) -> dict[str, int]:
    """The first or the second of four stages, with as many micro-batches as it holds."""
    part = Stage(model, slice(0, 2) if first else slice(2, 4), first)
    optimizer = torch.optim.AdamW(part.parameters())
    saved = Saved(part)
    outs = []
    with torch.autograd.graph.saved_tensors_hooks(saved.pack, lambda t: t):
        for _ in range(4 if first else 3):
            x = torch.zeros((BATCH, SEQ), dtype=torch.long)
            if not first:
                x = torch.zeros((BATCH, SEQ, 512), dtype=torch.bfloat16, requires_grad=True)
            outs.append(part(x))
    activations = saved.bytes()
    for out in outs:
        out.backward(torch.zeros_like(out))
    optimizer.step()
    return kept(part, optimizer, activations)


def main(how: str) -> dict[str, int]:
    """One way to spread the model."""
    model = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=512,
            intermediate_size=1408,
            num_hidden_layers=8,
            num_attention_heads=8,
            num_key_value_heads=8,
            vocab_size=VOCAB,
            use_cache=False,
        )
    )
    if how == "hsdp":
        shard(model, mesh=init_device_mesh("cpu", (2, 4), mesh_dim_names=("copies", "parts")))
    elif how == "offload":
        mesh = init_device_mesh("cpu", (WORLD,))
        shard(model, mesh=mesh, offload_policy=CPUOffloadPolicy(pin_memory=False))
    else:
        model = model.to(torch.bfloat16)
    if how in ("tensor", "sequence"):
        cut(model, how == "sequence")
        return step(model, position_ids=torch.arange(SEQ)[None])
    if how in ("stage1", "stage2"):
        return stage(model, how == "stage1")
    return step(model)


dist.init_process_group("fake", rank=0, world_size=WORLD, store=FakeStore())
print(json.dumps({how: main(how) for how in sys.argv[1:]}))
