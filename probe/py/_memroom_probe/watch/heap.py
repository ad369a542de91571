"""What grows on the Python heap: objects by type and tensors by shape, and which variable holds those that grew.

Asked for by the monitor when the floor rises and no allocator stacks can be had (host memory), or by the user. The first
count is the baseline, the second tells the difference. Walking the heap takes a while: it is never done unasked.
"""

import collections
import gc
import sys

from .. import link
from . import steps

MAX_TYPES = 20
MAX_REFERRERS = 200

_torch = None
_before = None  # type name -> count at the last request


def install(torch):
    global _torch
    _torch = torch


def tell(asked):
    """Counts; tells what grew since the last count. Gives a sentence for the answer."""
    global _before
    counts, sizes, examples = _count()
    first, _before, before = _before is None, counts, _before or {}
    if first:
        return "counted %d types; ask again for what grew" % len(counts)
    grown = sorted(((count - before.get(name, 0), name) for name, count in counts.items()), reverse=True)
    grown = [(growth, name) for growth, name in grown if growth > 0]
    grown.sort(key=lambda g: (-g[0] * sizes.get(g[1], 0) // counts[g[1]], -g[0]))  # most bytes first, then most objects
    types = [{"type": name, "count": counts[name], "growth": growth, "bytes": sizes.get(name, 0),
              "holder": _holder(examples.get(name, ()))} for growth, name in grown[:MAX_TYPES]]
    link.send("heap", {"step": steps.step, "types": types})
    return "%d types grew" % len(grown)


def _count():
    """Objects by type name, bytes of tensors by shape, and the tensors themselves. Types are compared, never instances:
    asking a proxy for its class would run the program's code."""
    things = gc.get_objects()
    by_type = collections.Counter(map(type, things))
    counts, sizes, examples = {}, {}, {}
    tensors = set()
    for kind, count in by_type.items():
        if _torch is not None and issubclass(kind, _torch.Tensor):
            tensors.add(kind)
        else:
            name = "%s.%s" % (kind.__module__, kind.__qualname__)
            counts[name] = counts.get(name, 0) + count
    for thing in (t for t in things if type(t) in tensors):
        try:
            name = "%s %s %s %s" % (type(thing).__name__, list(thing.shape), str(thing.dtype)[6:], thing.device.type)
            sizes[name] = sizes.get(name, 0) + thing.numel() * thing.element_size()
        except Exception:  # a tensor subclass that does not answer
            continue
        counts[name] = counts.get(name, 0) + 1
        examples.setdefault(name, []).append(thing)
    return counts, sizes, examples


def _holder(things):
    """The variable that holds most of these objects, such as `losses (list of 120) in train.py`; "" if none is found."""
    containers = {}
    for thing in things[-MAX_REFERRERS:]:
        for referrer in gc.get_referrers(thing):
            if referrer is not things and isinstance(referrer, (list, dict, set, tuple)) and len(referrer) > 1:
                containers[id(referrer)] = (containers.get(id(referrer), (0,))[0] + 1, referrer)
    held = sorted(containers.values(), key=lambda c: -c[0])
    for count, container in held[:3]:
        if count * 2 >= min(len(things), MAX_REFERRERS):
            name = _name(container)
            if name:
                return "%s (%s of %d)" % (name, type(container).__name__, len(container))
    return ""


def _name(container):
    """A name the program knows the container by: a global of a module, a local of a running function, an attribute."""
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is container:
                return "%s in %s" % (name, getattr(module, "__file__", None) or module.__name__)
    frame = sys._getframe()
    while frame is not None:
        if "_memroom_probe" not in frame.f_code.co_filename:
            for name, value in list(frame.f_locals.items()):
                if value is container:
                    return "%s in %s:%d" % (name, frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    for referrer in gc.get_referrers(container):
        if isinstance(referrer, dict):
            for name, value in list(referrer.items()):
                if value is container and isinstance(name, str):
                    return "." + name
    return ""
