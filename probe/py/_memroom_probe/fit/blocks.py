"""Gradient checkpointing of parts of a model: what lies inside a part is computed again during
backward.

Parts are found by measuring, not by name: modules, or runs of a Sequential's children, that save
more than goes into them, each small enough to be computed again without filling the room it made.
Checkpointing is non-reentrant, random generators and autocast are as they were, and running
statistics of BatchNorm are moved on once, not twice.
"""

import contextlib

import torch
from torch.utils.checkpoint import checkpoint

from . import generators, outermost, tree
from .rows import is_tensor


class Part:
    """Something that can be checkpointed on its own: a module, or its children begin to end if it
    is a Sequential. saved, given: bytes that its calls keep for backward, and that go into it.
    """

    def __init__(self, name, module, saved=0, given=0, begin=None, end=None):
        self.name, self.module, self.saved, self.given = name, module, saved, given
        self.begin, self.end = begin, end
        self.order = 0

    @property
    def gain(self):
        return self.saved - self.given


class Record:
    """What was seen of one module's calls: bytes saved inside, bytes given, when it was first
    called, whether it must run only once (it changes what it is given, or a list of its own grows),
    whether its backward pass asked for a saved tensor twice.
    """

    def __init__(self, order):
        self.saved = self.given = 0
        self.order, self.once, self.twice = order, False, False


def take_apart(module, records, most):
    """Parts of the module that save at most that many bytes each, as far as it can be taken apart;
    in the order of calls. records: {id of a module: Record} for every module that was called
    inside.
    """
    parts = []
    for name, child in _called(module, records):
        parts.extend(_take(name, child, records, most))
    return sorted(parts, key=lambda p: p.order)


def by_sight(module):
    """The parts that can be seen without a run: composite children of ModuleLists and Sequentials."""
    found = []
    _collect("", module, found)
    return found


def _collect(name, module, found):
    inside_container = isinstance(module, (torch.nn.Sequential, torch.nn.ModuleList))
    for key, child in module.named_children():
        path = name + "." + key if name else key
        if inside_container and _is_block(child) and fit_for_recompute(child) is None:
            found.append(Part(path, child))
        elif not isinstance(child, torch.jit.ScriptModule):
            _collect(path, child, found)


def _is_block(child):
    """A block is worth a recompute: it has parts of its own, and is no list that is never called."""
    if (
        isinstance(child, (torch.nn.ModuleList, torch.nn.ModuleDict))
        and type(child).forward is torch.nn.Module.forward
    ):
        return False
    parts = list(child.children())
    if (
        next(child.parameters(), None) is None
        or len(parts) < 2
        and not _computes_itself(child, parts)
    ):
        return False
    # A stage is a Sequential of blocks: its blocks are the better grain.
    return not (
        isinstance(child, torch.nn.Sequential)
        and sum(len(list(p.children())) > 1 for p in parts) >= 1
    )


def _computes_itself(module, parts):
    """A layer of somebody's own around one of torch's, as in graph networks: the most of what it
    does is in its forward.
    """
    return (
        len(parts) == 1
        and not list(parts[0].children())
        and not type(module).__module__.startswith("torch.")
    )


def _called(module, records):
    """The nearest descendants that were called: a ModuleList is not, what it holds is."""
    for name, child in module.named_children():
        if id(child) in records:
            yield name, child
        elif not isinstance(child, torch.jit.ScriptModule):
            for below, grandchild in _called(child, records):
                yield name + "." + below, grandchild


def _take(name, module, records, most):
    record = records[id(module)]
    if record.saved <= 1.25 * record.given:
        return []
    fit = fit_for_recompute(module) is None and not record.once and not record.twice
    if record.saved > most or not fit:
        finer = _finer(name, module, records, most)
        if not fit or sum(p.saved for p in finer) > 0.5 * record.saved:
            return finer
    part = Part(name, module, record.saved, record.given)
    part.order = record.order
    return [part]


def _finer(name, module, records, most):
    if isinstance(module, torch.jit.ScriptModule):
        return []
    if (
        type(module).forward is torch.nn.Sequential.forward
        and not _hooks(module)
        and all(id(c) in records for c in module)
    ):
        return _runs(name, module, records, most)
    return [
        p
        for below, child in _called(module, records)
        for p in _take(name + "." + below, child, records, most)
    ]


def _runs(name, sequential, records, most):
    """Neighbours of a Sequential taken together up to the size wanted. What changes its input in
    place cannot begin a run: the input is needed again.
    """
    parts, begin, saved = [], 0, 0
    children = list(sequential)

    def close(end):
        part = _run(name, sequential, children, records, begin, end)
        if part is not None:
            parts.append(part)

    for i, child in enumerate(children):
        record = records[id(child)]
        if fit_for_recompute(child) is not None or record.twice or record.saved > most:
            close(i)
            parts.extend(_take("%s.%d" % (name, i), child, records, most))
            begin, saved = i + 1, 0
        elif saved and saved + record.saved > most and not record.once:
            close(i)
            begin, saved = i, record.saved
        else:
            saved += record.saved
    close(len(children))
    return parts


def _run(name, sequential, children, records, begin, end):
    while begin < end and records[id(children[begin])].once:
        begin += 1
    if begin >= end:
        return None
    first = records[id(children[begin])]
    part = Part(
        "%s[%d:%d]" % (name, begin, end),
        sequential,
        sum(records[id(c)].saved for c in children[begin:end]),
        first.given,
        begin,
        end,
    )
    part.order = first.order
    return part if part.gain > 0.25 * part.given else None


def _hooks(module):
    return list(module._forward_hooks.values()) + list(module._forward_pre_hooks.values())


def fit_for_recompute(block):
    """Why a block must not run twice, or None."""
    if isinstance(block, torch.jit.ScriptModule):
        return "it is scripted"
    for name, m in block.named_modules():
        if not all(is_recorder(hook) for hook in _hooks(m)):
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


def is_recorder(hook):
    """transformers notes hidden states by hooks of its own, for the call that is under way and no
    other.
    """
    return (getattr(hook, "__module__", None) or "").startswith("transformers.utils.")


def drops_by_itself(m):
    """The dropout between the layers of a recurrent network on a card: a second run drops others."""
    return (
        isinstance(m, torch.nn.RNNBase)
        and m.dropout > 0
        and m.num_layers > 1
        and m.training
        and any(p.is_cuda for p in m.parameters())
    )


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
