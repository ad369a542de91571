"""Finds the parts of a module that are worth checkpointing, by what their calls were seen to save.

A part is a module, or a run of a Sequential's children, that saves more than goes into it and is
small enough to be computed again without filling the memory that it freed.
"""

import dataclasses
from typing import Any, Iterator, List

import torch

from ..calls.again import fit_for_recompute, hooks
from ..calls.outermost import sharded
from ..remedies.checkpointing import Part


@dataclasses.dataclass
class Record:
    """What was seen of one module's calls."""

    order: int  # of its first call
    saved: int = 0  # bytes that autograd kept inside
    given: int = 0  # bytes that went in
    largest: int = 0  # bytes of the largest tensor among what was kept
    once: bool = (
        False  # it must run only once: it changes what it is given, or something of its own
    )
    twice: bool = False  # its backward pass asked for a saved tensor twice


def take_apart(module: torch.nn.Module, records: Any, most: int) -> Any:
    """Parts of the module that save at most that many bytes each, as far as it can be taken apart;
    in the order of calls. records: {id of a module: Record} for every module that was called
    inside.
    """
    return sorted(_finer("", module, records, most), key=lambda p: p.order)


def by_sight(module: Any) -> Any:
    """The parts that can be seen without a run: composite children of ModuleLists and
    Sequentials, and layers of the script's own of which a module has several, as graph networks do.
    """
    found: List[Any] = []
    _collect("", module, found)
    return found


def _collect(name: str, module: torch.nn.Module, found: Any) -> None:
    inside_container = isinstance(module, (torch.nn.Sequential, torch.nn.ModuleList))
    children = list(module.named_children())
    kinds = [type(child) for _, child in children]
    for key, child in children:
        path = name + "." + key if name else key
        child = getattr(child, "_fsdp_wrapped_module", child)  # what FSDP's older form wraps
        repeated = kinds.count(type(child)) > 1 and _is_own(child)
        if (inside_container or repeated) and _is_block(child) and _bears_it(child):
            found.append(Part(path, child))
        elif not isinstance(child, torch.jit.ScriptModule):
            _collect(path, child, found)


def _bears_it(child: torch.nn.Module) -> Any:
    """Whether a block can run twice. What moves on with every call of a sharded one is not looked
    after, because its parameters come and go.
    """
    moves = any(
        isinstance(m, torch.nn.modules.batchnorm._NormBase) and m.track_running_stats
        for m in child.modules()
    )
    return fit_for_recompute(child) is None and not (moves and sharded(child))


def _is_block(child: torch.nn.Module) -> bool:
    """A block is worth a recompute: it has parts of its own, and is no list that is never
    called.
    """
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


def _computes_itself(module: torch.nn.Module, parts: Any) -> Any:
    """A layer of somebody's own around one of torch's or around weights, as in graph networks: the
    most of what it does is in its forward.
    """
    return len(parts) < 2 and not any(list(p.children()) for p in parts) and _is_own(module)


def _is_own(module: torch.nn.Module) -> bool:
    """Whether its class is none of torch's, nor made of one of its layers."""
    kinds = [c for c in type(module).__mro__ if c is not torch.nn.Module]
    return not any(c.__module__.startswith("torch.") for c in kinds)


def _called(module: torch.nn.Module, records: Any) -> Iterator[Any]:
    """The nearest descendants that were called: a ModuleList is not, what it holds is."""
    for name, child in module.named_children():
        if id(child) in records:
            yield name, child
        elif not isinstance(child, torch.jit.ScriptModule):
            for below, grandchild in _called(child, records):
                yield name + "." + below, grandchild


def _take(name: str, module: torch.nn.Module, records: Any, most: int) -> Any:
    record = records[id(module)]
    if record.saved <= 1.25 * record.given:
        return []
    fit = fit_for_recompute(module) is None and not record.once and not record.twice
    if record.saved > most or not fit:
        finer = _finer(name, module, records, most)
        if not fit or sum(p.saved for p in finer) > 0.5 * record.saved:
            return finer
    part = Part(name, module, record.saved, record.given)
    part.order, part.largest = record.order, record.largest
    return [part]


def _finer(name: str, module: torch.nn.Module, records: Any, most: int) -> Any:
    if isinstance(module, torch.jit.ScriptModule):
        return []
    if (
        type(module).forward is torch.nn.Sequential.forward
        and not hooks(module)
        and all(id(c) in records for c in module)
    ):
        return _runs(name, module, records, most)
    return [
        p
        for below, child in _called(module, records)
        for p in _take(_below(name, below), child, records, most)
    ]


def _below(name: str, child: torch.nn.Module) -> Any:
    return name + "." + child if name else child


def _runs(name: str, sequential: torch.nn.Module, records: Any, most: int) -> Any:
    """Neighbours of a Sequential taken together up to the size wanted. What changes its input in
    place cannot begin a run: the input is needed again.
    """
    parts, begin, saved = [], 0, 0
    children = list(sequential)

    def close(end: Any) -> None:
        part = _run(name, sequential, children, records, begin, end)
        if part is not None:
            parts.append(part)

    for i, child in enumerate(children):
        record = records[id(child)]
        if fit_for_recompute(child) is not None or record.twice or record.saved > most:
            close(i)
            parts.extend(_take(_below(name, str(i)), child, records, most))
            begin, saved = i + 1, 0
        elif saved and saved + record.saved > most and not record.once:
            close(i)
            begin, saved = i, record.saved
        else:
            saved += record.saved
    close(len(children))
    return parts


def _run(
    name: str, sequential: torch.nn.Module, children: Any, records: Any, begin: Any, end: Any
) -> Any:
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
    part.largest = max(records[id(c)].largest for c in children[begin:end])
    return part if part.gain > 0.25 * part.given else None
