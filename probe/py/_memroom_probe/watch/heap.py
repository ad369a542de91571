"""What grows on the Python heap: objects by type and tensors by shape, and which variables hold
what grew.

Asked for by the monitor when the floor rises, on a card or in host memory, or by the user. The
first count is the baseline, the second tells the difference. Walking the heap takes a while: it is
never done unasked.
"""

import collections
import gc
from typing import Any, Dict, List, Optional, Tuple

from .. import link
from . import holders, host, models, steps

MAX_TYPES = 20
MAX_HOLDERS = 3
APART = 12  # steps between two counts, at least
SHARE = 0.1  # of the growth, below which a variable is not worth naming
MOST = 0.4  # of the growth that variables hold by themselves; below it graphs come first
LEAST = 1 << 15  # bytes of growth: less is no leak
GRAPH = 8  # nodes: the parts of one operation

_torch: Any = None
_before: Optional[Dict[str, int]] = None  # type name -> count at the last request
_held_before: holders.Found = {}  # what the variables held then
_looked = -1  # step of the last count
_level = (0, 0)  # bytes of the heap and of the card's allocator then


def install(torch: Any) -> None:
    global _torch
    _torch = torch


def tell(asked: Dict[str, Any]) -> str:
    """Counts; tells what grew since the last count. Gives a sentence for the answer. A second count
    that is asked for too soon is made some steps later: the monitor hears of many steps at once.
    """
    if _looked <= steps.step < _looked + APART and steps.step > 0:
        steps.at(_looked + APART, lambda step: _tell(), wake=True)
        return "at step %d" % (_looked + APART)
    return _tell()


def _tell() -> str:
    global _before, _held_before, _level, _looked
    _looked = steps.step
    held_before, _held_before = _held_before, holders.look()
    level, _level = _level, (host.heap(), _on_card())
    held = _grown(held_before, _held_before, [now - then for now, then in zip(_level, level)])
    counts, sizes = _count()
    first, _before, before = _before is None, counts, _before or {}
    if first:
        _send([], [])
        return "counted %d types; ask again for what grew" % len(counts)
    grown = sorted(
        ((count - before.get(name, 0), name) for name, count in counts.items()), reverse=True
    )
    grown = [(growth, name) for growth, name in grown if growth > 0]
    grown.sort(
        key=lambda g: (-g[0] * sizes.get(g[1], 0) // counts[g[1]], -g[0])
    )  # most bytes first, then most objects
    types = [
        {"type": name, "count": counts[name], "growth": growth, "bytes": sizes.get(name, 0)}
        for growth, name in grown[:MAX_TYPES]
    ]
    _send(types, held)
    return "%d types grew" % len(grown)


def _send(types: List[Dict[str, Any]], held: List[Dict[str, Any]]) -> None:
    answer = {"step": steps.step, "types": types, "holders": held, "built": models.built()}
    link.send("heap", answer)


def _on_card() -> int:
    """Bytes of the current card's allocator, 0 where CUDA is not in use."""
    if _torch is None or not _torch.cuda.is_initialized():
        return 0
    return _torch.cuda.memory_allocated()


def _grown(before: holders.Found, now: holders.Found, level: List[int]) -> List[Dict[str, Any]]:
    """What to tell of the variables that hold more than before, what matters most first: those
    that hold most of the growth themselves, or those whose graphs keep what nobody else holds.
    """
    more = [(h, h.grown(before[key])) for key, h in now.items() if key in before]
    direct = [h for _, h in more if max(_shares(h, level)) >= SHARE]
    # a variable that was not there before, such as that of another call
    direct += [h for key, h in now.items() if key not in before and max(_shares(h, level)) >= MOST]
    direct.sort(key=lambda h: -(h.card or h.host))
    graphs = [h for whole, h in more if h.nodes > max(GRAPH, whole.nodes * whole.graphs // 10)]
    graphs.sort(key=lambda h: (-h.nodes, h.kind == "tensor"))
    by_themselves = max([_shares(h, level)[0 if level[1] <= 0 else 1] for h in direct] or [0])
    ranked = direct + graphs if by_themselves >= MOST else graphs + direct
    return [_told(h) for h in _once(ranked)[:MAX_HOLDERS]]


def _shares(held: holders.Holder, level: List[int]) -> List[float]:
    """A variable's share of what the heap and the card's allocator grew by."""
    return [
        size / growth if growth > 0 and size > LEAST else 0
        for size, growth in zip((held.host, held.card), level)
    ]


def _once(ranked: List[holders.Holder]) -> List[holders.Holder]:
    kept: List[holders.Holder] = []
    for holder in ranked:
        if not any(holder is other for other in kept):
            kept.append(holder)
    return kept


def _told(holder: holders.Holder) -> Dict[str, Any]:
    return {
        "name": holder.name,
        "kind": holder.kind,
        "file": holder.file,
        "line": holders.line_of(holder),
        "host": max(0, holder.host),
        "card": max(0, holder.card),
        "count": max(0, holder.count),
        "nodes": max(0, holder.nodes),
        "models": max(0, holder.models),
        "fills": holder.fills,
    }


def _count() -> Tuple[Dict[str, int], Dict[str, int]]:
    """Objects by type name, and bytes of tensors by shape. Types are compared, never instances:
    asking a proxy for its class would run the program's code.
    """
    things = gc.get_objects()
    by_type = collections.Counter(map(type, things))
    counts: Dict[str, int] = {}
    sizes: Dict[str, int] = {}
    tensors = set()
    for kind, count in by_type.items():
        if _torch is not None and issubclass(kind, _torch.Tensor):
            tensors.add(kind)
        else:
            name = "%s.%s" % (kind.__module__, kind.__qualname__)
            counts[name] = counts.get(name, 0) + count
    for thing in (t for t in things if type(t) in tensors):
        try:
            name = "%s %s %s %s" % (
                type(thing).__name__,
                list(thing.shape),
                str(thing.dtype)[6:],
                thing.device.type,
            )
            sizes[name] = sizes.get(name, 0) + thing.numel() * thing.element_size()
        except Exception:  # a tensor subclass that does not answer
            continue
        counts[name] = counts.get(name, 0) + 1
    return counts, sizes
