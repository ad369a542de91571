"""Whether a module's call can be run a second time, as activation checkpointing does."""

import contextlib
import weakref
from typing import Any, Iterator, List, Optional

import torch

from . import refers

# recurrent modules whose dropout is laid aside for a trial; they are still ones that drop
_quiet: Any = weakref.WeakSet()


def hooks(module: Any) -> List[Any]:
    return list(module._forward_hooks.values()) + list(module._forward_pre_hooks.values())


def fit_for_recompute(block: Any) -> Optional[str]:
    """Why a block must not run twice, or None."""
    if isinstance(block, torch.jit.ScriptModule):
        return "it is scripted"
    for name, m in block.named_modules():
        if sees_calls(m):
            return "a forward hook on %s would run twice" % (name or "it")
        if "SpectralNorm" in type(m).__name__ or any(
            "SpectralNorm" in type(p).__name__ for p in m.children()
        ):
            return "spectral norm moves on with every call"
        if drops_by_itself(m):
            return "%s drops values by cuDNN's own generator, which cannot be put back" % (
                name or "it"
            )
    return None


def sees_calls(m: Any) -> bool:
    """Whether a forward hook of the script's stands around the calls of a module: it would see a
    second run.
    """
    return not all(is_recorder(hook) or _bears_second_runs(hook) for hook in hooks(m))


def is_recorder(hook: Any) -> bool:
    """transformers notes hidden states by hooks of its own, for the call that is under way and no
    other.
    """
    return (getattr(hook, "__module__", None) or "").startswith("transformers.utils.")


def _bears_second_runs(hook: Any) -> bool:
    """FSDP gathers and frees parameters by hooks that know second runs of a backward pass. Weight
    norm computes a weight of two parameters, and nothing moves.
    """
    name = getattr(hook, "__module__", None) or ""
    return name.startswith(("torch.distributed.fsdp.", "torch.distributed._composable.")) or (
        name == "torch.nn.utils.weight_norm"
    )


def checkpoints_itself(module: Any) -> bool:
    """Whether the script has parts of a module checkpointed: by a switch of that name, or by a call
    in its code that no switch goes before.
    """
    for m in module.modules():
        switches = [
            on for name, on in vars(m).items() if "checkpoint" in name and isinstance(on, bool)
        ]
        named = {name for f in refers.functions(type(m)) for name in f.__code__.co_names}
        if any(switches) or not switches and not _CHECKPOINT.isdisjoint(named):
            return True
    return False


_CHECKPOINT = {"checkpoint", "checkpoint_sequential", "checkpoint_seq"}


def drops_by_itself(m: Any) -> bool:
    """The dropout between the layers of a recurrent network on a card: a second run drops
    others.
    """
    return (
        isinstance(m, torch.nn.RNNBase)
        and (m.dropout > 0 or m in _quiet)
        and m.num_layers > 1
        and m.training
        and any(p.is_cuda for p in m.parameters())
    )


@contextlib.contextmanager
def without_own_drops(module: Any) -> Iterator[None]:
    """For a trial: cuDNN's generator moves on with every run and nobody can put it back, so a trial
    with dropout would change what the training itself drops. The masks are a small part of what
    such a layer saves.
    """
    changed = [(m, m.dropout) for m in module.modules() if drops_by_itself(m) and m.dropout > 0]
    for m, _ in changed:
        _quiet.add(m)
        m.dropout = 0.0
    try:
        yield
    finally:
        for m, share in changed:
            m.dropout = share
            _quiet.discard(m)


def bears_no_grad(error: BaseException) -> bool:
    """torch's reentrant checkpointing refuses torch.autograd.grad."""
    return "compatible with .grad()" in str(error)
