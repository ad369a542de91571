"""What generation keeps: caches of keys and values. One grows with every token; those of
generations that are over may live on, where somebody holds them.

A model asks its cache for its length once in each forward pass: that is where caches are looked at,
a few times a second. Only weak references to them are kept.
"""

import functools
import sys
import weakref
from typing import Any, List

from .. import compiled, guard, link
from . import holders, host, models

PAUSE_NS = 250000000  # between two looks, at least
SHARE = 0.003  # of the time that looks may take
LEAST = 8 << 20  # bytes of all caches that are worth telling
STEP = 1.2  # times as much as was told before: told again, so seldom that its cost is no matter
MANY = 4  # caches alive, from which on who holds them is looked for
MOST = 4096  # caches that are known


class Caches:
    """The caches of a program that are known."""

    __slots__ = ("_due_ns", "_known", "_told")

    def __init__(self) -> None:
        self._known: List[Any] = []  # weak references to caches
        self._due_ns = 0
        self._told = (0, 0)  # bytes and caches that were reported

    def hook(self, module: Any) -> None:
        """Hooks transformers.cache_utils."""
        base = getattr(module, "Cache", None)
        for cls in list(vars(module).values()):
            if base is not None and isinstance(cls, type) and issubclass(cls, base):
                if "get_seq_length" in vars(cls):
                    self._wrap_length(cls)
        if base is not None:
            self._wrap_init(base)

    def _wrap_length(self, cls: Any) -> None:
        original = cls.get_seq_length

        @compiled.left_alone
        @functools.wraps(original)
        def get_seq_length(cache: Any, *args: Any, **kwargs: Any) -> Any:
            if not compiled.compiling() and guard.now() > self._due_ns:
                self._look(cache)
            return original(cache, *args, **kwargs)

        cls.get_seq_length = get_seq_length

    def _wrap_init(self, cls: Any) -> None:
        original = cls.__init__

        @compiled.left_alone
        @functools.wraps(original)
        def __init__(cache: Any, *args: Any, **kwargs: Any) -> None:
            original(cache, *args, **kwargs)
            if not compiled.compiling() and len(self._known) < MOST:
                self._known.append(weakref.ref(cache))

        cls.__init__ = __init__

    @guard.hook("caches", heavy=True)
    def _look(self, cache: Any) -> None:
        began = guard.used()
        live = [known for known in (reference() for reference in self._known) if known is not None]
        if not any(known is cache for known in live):  # a copy, made without its constructor
            live.append(cache)
        self._known[:] = [weakref.ref(known) for known in live]
        sizes = [(_size(known), known) for known in live]
        sized = [(sum(size), size[1], known) for size, known in sizes if sum(size)]
        total, count = sum(size for size, _, _ in sized), len(sized)
        self._due_ns = guard.now() + max(PAUSE_NS, int((guard.used() - began) / SHARE))
        if total >= LEAST and (
            total > STEP * self._told[0] or count > STEP * self._told[1] and count >= MANY
        ):
            self._told = (total, count)
            _tell(cache, total, sized)


def _tell(cache: Any, total: int, sized: List[Any]) -> None:
    largest, _, widest = max(sized, key=lambda item: item[0])
    keys = next(iter(_tensors(widest)), None)
    shape = list(getattr(keys, "shape", ()))
    others = [known for _, _, known in sized if known is not cache]
    best = None
    if len(others) >= MANY - 1:
        best = holders.together(holders.look(wanted=set(map(id, others))))
    if best is not None and best.count < MANY // 2:
        best = None
    file, line = models.line()
    link.send(
        "caches",
        {
            "count": len(sized),
            "bytes": total,
            "card": sum(card for _, card, _ in sized),
            "largest": largest,
            "sequences": int(shape[0]) if len(shape) == 4 else 0,
            "tokens": int(shape[-2]) if len(shape) == 4 else 0,
            "anonymous": host.memory()[1],
            "file": file,
            "line": line,
            "holder": best.name if best else "",
            "holder_kind": best.kind if best else "",
            "holder_file": best.file if best else "",
            "holder_line": holders.line_of(best) if best else 0,
        },
    )


def _tensors(cache: Any) -> Any:
    """The keys and values of a cache, as the versions of transformers keep them."""
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    attributes = getattr(cache, "__dict__", {})
    waiting = [
        attributes.get(name)
        for name in ("layers", "key_cache", "value_cache", "self_attention_cache")
    ]
    while waiting:
        thing = waiting.pop()
        if isinstance(thing, (list, tuple)):
            waiting.extend(thing)
        elif tensor is not None and isinstance(thing, tensor):
            yield thing
        elif thing is not None:
            inside = getattr(thing, "__dict__", {})
            waiting.extend(inside.get(name) for name in ("keys", "values", "layers"))


def _size(cache: Any) -> Any:
    """(bytes in host memory, bytes on cards) of a cache."""
    host_bytes = card = 0
    for thing in _tensors(cache):
        size = thing.numel() * thing.element_size()
        if thing.device.type == "cpu":
            host_bytes += size
        elif thing.device.type != "meta":
            card += size
    return host_bytes, card
