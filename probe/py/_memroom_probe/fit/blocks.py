"""Gradient checkpointing of the blocks of a model: what lies inside a block is computed again during backward.

Blocks are found, not named: the composite children of ModuleLists and Sequentials (transformer layers, residual blocks),
as long as they are called as modules. Checkpointing is non-reentrant, random generators and autocast are as they were,
and running statistics of BatchNorm are moved on once, not twice.
"""
import contextlib

import torch
from torch.utils.checkpoint import checkpoint

from . import outermost, tree
from .rows import is_tensor


def find(module):
    """The outermost blocks of module, in the order of definition: [(name, block)]."""
    found = []
    _collect("", module, found)
    return found


def _collect(name, module, found):
    inside_container = isinstance(module, (torch.nn.Sequential, torch.nn.ModuleList))
    for key, child in module.named_children():
        path = name + "." + key if name else key
        if inside_container and _is_block(child):
            found.append((path, child))
        else:
            _collect(path, child, found)


def _is_block(child):
    """A block is worth a recompute: it has parts of its own, and is no list that is never called."""
    if isinstance(child, (torch.nn.ModuleList, torch.nn.ModuleDict)) and type(child).forward is torch.nn.Module.forward:
        return False
    parts = list(child.children())
    if len(parts) < 2 or next(child.parameters(), None) is None:
        return False
    # A stage is a Sequential of blocks: its blocks are the better grain.
    return not (isinstance(child, torch.nn.Sequential) and sum(len(list(p.children())) > 1 for p in parts) >= 1)


def fit_for_recompute(block):
    """Why a block must not run twice, or None."""
    for name, m in block.named_modules():
        if list(m._forward_hooks.values()) + list(m._forward_pre_hooks.values()):
            return "a forward hook on %s would run twice" % (name or "it")
        if "SpectralNorm" in type(m).__name__ or any("SpectralNorm" in type(p).__name__ for p in m.children()):
            return "spectral norm moves on with every call"
    return None


class Checkpointing:
    """The blocks that are checkpointed; the handler of their calls."""

    def use(self, module, chosen):
        """From now on these blocks of the module, and no others of it."""
        outermost.leave_inner(list(module.modules()))
        outermost.handle_inner(chosen, self)

    def __call__(self, block, call, args, kwargs):
        if not torch.is_grad_enabled():
            return call(*args, **kwargs)
        return checkpointed(call, (args, kwargs), _norms(block))


def _norms(block):
    return [m for m in block.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm) and m.training and m.track_running_stats]


def checkpointed(call, args_kwargs, norms=()):
    """Runs call under non-reentrant checkpointing. The tensors go in as positional arguments because checkpoint looks
    only there for the devices whose generators it has to put back; a key-value cache, which a second run would fill
    twice, is left out."""
    leaves, rebuild = tree.flatten(args_kwargs)
    leaves = [None if type(leaf).__name__.endswith("Cache") else leaf for leaf in leaves]
    at = [i for i, leaf in enumerate(leaves) if is_tensor(leaf)]
    tensors = [leaves[i] for i in at]
    for i in at:
        leaves[i] = None  # the graph holds them; a second reference would keep them for longer

    def run(*given):
        filled = list(leaves)
        for i, tensor in zip(at, given):
            filled[i] = tensor
        args, kwargs = rebuild(filled)
        with outermost.inside():
            return call(*args, **kwargs)

    return checkpoint(run, *tensors, use_reentrant=False, context_fn=lambda: (contextlib.nullcontext(), _Quiet(norms)))


class _Quiet:
    """During the recompute BatchNorm moves on copies of its running statistics, which are then thrown away. A retained graph
    is recomputed more than once, so this can be entered again."""

    def __init__(self, norms):
        self.norms, self.kept = norms, []

    def __enter__(self):
        self.kept = [m._buffers for m in self.norms]
        for m in self.norms:
            m._buffers = {key: b if b is None else b.clone() for key, b in m._buffers.items()}

    def __exit__(self, *_):
        for m, buffers in zip(self.norms, self.kept):
            m._buffers = buffers
