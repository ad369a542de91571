"""Which variables hold what grows, in host memory or on a card.

Asked for by the monitor when the floor rises, or by the user. The first look is the baseline, the
second tells the difference. A look takes a while: it is never made unasked.
"""

import linecache
import sys
from typing import Any, Dict, List

from .. import link
from . import holders, host, models, steps

MAX_HOLDERS = 3
APART = 12  # steps between two looks, at least
SHARE = 0.1  # of the growth, below which a variable is not worth naming
MOST = 0.4  # of the growth that variables hold by themselves; below it graphs come first
LEAST = 1 << 15  # bytes of growth: less is no leak
GRAPH = 8  # nodes: the parts of one operation


class Looks:
    """The looks at what the program holds, and what the last one saw."""

    __slots__ = ("_before", "_builds", "_level", "_looked", "_loop")

    def __init__(self, loop: steps.Loop, builds: models.Builds) -> None:
        self._loop, self._builds = loop, builds
        self._before: holders.Found = {}  # what the variables held at the last look
        self._looked = -1  # step of the last look
        self._level = (0, 0)  # bytes of the heap and of the card's allocator then

    def tell(self, asked: Dict[str, Any]) -> str:
        """Looks; tells what grew since the last look. Returns a sentence for the answer. A second
        look that is asked for too soon is made some steps later: the monitor hears of many steps at
        once.
        """
        if self._looked <= self._loop.step < self._looked + APART and self._loop.step > 0:
            self._loop.at(self._looked + APART, lambda step: self._tell(), wake=True)
            return "at step %d" % (self._looked + APART)
        return self._tell()

    def _tell(self) -> str:
        first, self._looked = self._looked < 0, self._loop.step
        before, self._before = self._before, holders.look()
        level, self._level = self._level, (host.heap(), _on_card())
        held = _grown(before, self._before, [now - then for now, then in zip(self._level, level)])
        if first:
            held = []
        link.send("heap", {"step": self._loop.step, "holders": held, "built": self._builds.built})
        return "looked; ask again for what grew" if first else "%d variables grew" % len(held)


def _on_card() -> int:
    """Bytes of the current card's allocator, 0 where CUDA is not in use."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    answer: int = torch.cuda.memory_allocated()
    return answer


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
    line = holders.line_of(holder)
    emptied = holders.emptied(holder.name, holder.file, line)
    return {
        "name": holder.name,
        "kind": holder.kind + (", emptied at line %d" % emptied if emptied else ""),
        "file": holder.file,
        "line": line,
        "code": linecache.getline(holder.file, line).split("  #")[0].strip()[:120],
        "host": max(0, holder.host),
        "card": max(0, holder.card),
        "count": max(0, holder.count),
        "nodes": max(0, holder.nodes),
        "models": max(0, holder.models),
        "fills": holder.fills or emptied > 0,
    }
