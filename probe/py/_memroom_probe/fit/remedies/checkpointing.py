"""Gradient checkpointing of parts of a model: what lies inside a part is computed again during
backward.

Parts are found by measuring, not by name: modules, or runs of a Sequential's children, that save
more than goes into them, each small enough to be computed again without filling the room it made.
Checkpointing is non-reentrant, random generators and autocast are as they were, and running
statistics of BatchNorm are moved on once, not twice.
"""

import contextlib
import dataclasses
from typing import Optional

import torch
from torch.utils.checkpoint import checkpoint

from ..batch.inputs import is_tensor
from ..calls import generators, outermost, tree


@dataclasses.dataclass(eq=False)
class Part:
    """Something that can be checkpointed on its own: a module, or some children of a Sequential."""

    name: str
    module: torch.nn.Module
    saved: float = 0  # bytes that its calls keep for backward
    given: float = 0  # bytes that go into it
    begin: Optional[int] = None  # of a Sequential's children, the first
    end: Optional[int] = None  # and the one behind the last
    order: int = 0  # of its first call

    @property
    def gain(self) -> float:
        return self.saved - self.given


class Checkpointing:
    """The parts that are checkpointed; the handler of their calls."""

    def use(self, module, parts):
        """From now on these parts of the module, and no others of it."""
        outermost.leave_inner(list(module.modules()))
        runs = {}
        for part in parts:
            if part.begin is None:
                outermost.handle_inner([part.module], self)
            else:
                runs.setdefault(id(part.module), []).append(part)
        for some in runs.values():
            outermost.handle_inner([some[0].module], _Runs(some))

    def __call__(self, block, call, args, kwargs):
        if not torch.is_grad_enabled():
            return call(*args, **kwargs)
        return checkpointed(call, (args, kwargs), norms_of([block]))


class _Runs:
    """A Sequential, some runs of whose children are checkpointed."""

    def __init__(self, parts):
        self.ends = {part.begin: part.end for part in parts}

    def __call__(self, sequential, call, args, kwargs):
        if not torch.is_grad_enabled() or len(args) != 1 or kwargs:
            return call(*args, **kwargs)
        children, value, i = list(sequential), args[0], 0
        while i < len(children):
            end = self.ends.get(i)
            if end is None:
                value, i = children[i](value), i + 1
                continue
            run = children[i:end]
            value, i = (
                checkpointed(lambda x, run=run: _in_turn(run, x), ((value,), {}), norms_of(run)),
                end,
            )
        return value


def _in_turn(modules, value):
    for m in modules:
        value = m(value)
    return value


def norms_of(modules):
    return [
        m
        for top in modules
        for m in top.modules()
        if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)
        and m.training
        and m.track_running_stats
    ]


def checkpointed(call, args_kwargs, norms=()):
    """Runs call under non-reentrant checkpointing. The tensors go in as positional arguments
    because checkpoint looks only there for the devices whose generators it has to put back; a
    key-value cache, which a second run would fill twice, is left out.
    """
    leaves, rebuild = tree.flatten(args_kwargs)
    leaves = [None if type(leaf).__name__.endswith("Cache") else leaf for leaf in leaves]
    tensors = list({id(leaf): leaf for leaf in leaves if is_tensor(leaf)}.values())
    # One argument that is given twice must be one in the second run too: attention asks whether its
    # keys are its values.
    at = {id(tensor): i for i, tensor in enumerate(tensors)}
    places = [(i, at[id(leaf)]) for i, leaf in enumerate(leaves) if is_tensor(leaf)]
    for i, _ in places:
        leaves[i] = None  # the graph holds them; a second reference would keep them for longer

    def run(*given):
        filled = list(leaves)
        for i, which in places:
            filled[i] = given[which]
        args, kwargs = rebuild(filled)
        with outermost.inside():
            return call(*args, **kwargs)

    quiet = _Quiet(norms, generators.drawn())
    return checkpoint(
        run, *tensors, use_reentrant=False, context_fn=lambda: (contextlib.nullcontext(), quiet)
    )


class _Quiet:
    """During the recompute BatchNorm moves on copies of its running statistics, which are then
    thrown away, and random generators besides torch's own draw what they drew the first time. A
    retained graph is recomputed more than once, so this can be entered again.
    """

    def __init__(self, norms, draws):
        self.norms, self.draws, self.kept, self.later = norms, draws, [], []

    def __enter__(self):
        self.later = generators.drawn()
        generators.put_back_besides(self.draws)
        self.kept = [m._buffers for m in self.norms]
        for m in self.norms:
            m._buffers = {key: b if b is None else b.clone() for key, b in m._buffers.items()}

    def __exit__(self, *_):
        generators.put_back_besides(self.later)
        for m, buffers in zip(self.norms, self.kept):
            m._buffers = buffers
