"""What grows on the Python heap: objects by type and tensors by shape, and which variable holds
those that grew.

Asked for by the monitor when the floor rises and no allocator stacks can be had (host memory), or
by the user. The first count is the baseline, the second tells the difference. Walking the heap
takes a while: it is never done unasked.
"""

import collections
import gc
import sys
import types

from .. import link
from . import steps

MAX_TYPES = 20
MAX_SEARCHED = 3  # types whose holders are looked for
SAMPLE = 8  # objects of a type, spread over its age; every one makes the walk over the heap longer
MAX_RESULTS = 64  # attributes of an object that are looked at
MAX_NODES = 50000  # of all graphs together

_torch = None
_before = None  # type name -> count at the last request
_graphs_before: dict = {}  # variable -> nodes of the graph it keeps, at the last request


def install(torch):
    global _torch
    _torch = torch


def tell(asked):
    """Counts; tells what grew since the last count. Gives a sentence for the answer."""
    global _before, _graphs_before
    counts, sizes, examples = _count()
    graphs_before, _graphs_before = _graphs_before, _graphs()
    first, _before, before = _before is None, counts, _before or {}
    if first:
        return "counted %d types; ask again for what grew" % len(counts)
    grown = sorted(
        ((count - before.get(name, 0), name) for name, count in counts.items()), reverse=True
    )
    grown = [(growth, name) for growth, name in grown if growth > 0]
    grown.sort(
        key=lambda g: (-g[0] * sizes.get(g[1], 0) // counts[g[1]], -g[0])
    )  # most bytes first, then most objects
    holders = _holders({name: examples[name] for _, name in grown if name in examples})
    types = [
        {
            "type": name,
            "count": counts[name],
            "growth": growth,
            "bytes": sizes.get(name, 0),
            "holder": holders.get(name, ""),
        }
        for growth, name in grown[:MAX_TYPES]
    ]
    types[:0] = _grown_graphs(graphs_before, _graphs_before)
    link.send("heap", {"step": steps.step, "types": types})
    return "%d types grew" % len(grown)


def _count():
    """Objects by type name, bytes of tensors by shape, and the tensors themselves. Types are
    compared, never instances: asking a proxy for its class would run the program's code.
    """
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
        examples.setdefault(name, []).append(thing)
    return counts, sizes, examples


def _graphs():
    """Variable -> nodes of the autograd graph behind its tensor. A running sum of losses is one
    number to Python, and keeps the graph of every step.
    """
    found, left = {}, MAX_NODES
    for name, where, line, tensor in _results():
        nodes, waiting = set(), [tensor.grad_fn]
        while waiting and left > 0:
            node = waiting.pop()
            if node is not None and node not in nodes:
                nodes.add(node)
                left -= 1
                waiting.extend(before for before, _ in node.next_functions)
        found[name, where] = len(nodes), "%s in %s:%d" % (name, where, line)
    return found


def _results():
    """(name, file, line, tensor) of tensors with a graph that functions at work know, by a variable
    or as an attribute of one.
    """
    known: set = set()
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        if "_memroom_probe" not in frame.f_code.co_filename:
            for name, value in list(frame.f_locals.items()):
                inside = [(name, value)] + [
                    (name + "." + str(key), thing)
                    for key, thing in _attributes(value)[:MAX_RESULTS]
                ]
                for path, thing in inside:
                    if (
                        id(thing) not in known
                        and _torch is not None
                        and type(thing) is _torch.Tensor
                        and thing.grad_fn is not None
                    ):
                        known.add(id(thing))
                        yield path, frame.f_code.co_filename, frame.f_lineno, thing
        frame = frame.f_back


def _grown_graphs(before, now):
    """What to tell of graphs that have become larger by a tenth and more than the parts of one
    operation.
    """
    grown = [
        (nodes - before[key][0], nodes, variable)
        for key, (nodes, variable) in now.items()
        if key in before
    ]
    return [
        {"type": "autograd graph", "count": nodes, "growth": growth, "bytes": 0, "holder": variable}
        for growth, nodes, variable in sorted(grown, reverse=True)
        if growth > max(8, nodes // 10)
    ]


def _holders(examples):
    """Name of a type -> the variable that holds most of its objects, such as `losses (list of 120)
    in train.py`. The heap is walked once for all of them: a walk takes a tenth of a second, for
    which the program stands still.
    """
    sampled = {
        name: things[:: -(-len(things) // SAMPLE)]
        for name, things in list(examples.items())[:MAX_SEARCHED]
    }
    best, small = _common(sampled, set(map(id, examples.values())))
    if small:  # each in a tuple or dictionary of its own: who holds those?
        best.update(_common(small, set(map(id, examples.values())))[0])
    found = {}
    for name, container in best.items():
        variable = _name(container)
        if variable:
            found[name] = "%s (%s of %d)" % (variable, type(container).__name__, len(container))
    return found


def _common(sampled, ours):
    """Name -> the container that holds most of its objects; and name -> the containers of single
    ones where there is none.
    """
    wanted = [thing for things in sampled.values() for thing in things]
    ours = ours | {id(wanted), id(sampled)} | set(map(id, sampled.values()))
    best, single = {}, {}
    for container in gc.get_referrers(*wanted) if wanted else ():
        if (
            type(container) not in (list, dict, set, tuple, collections.deque)
            or id(container) in ours
        ):
            continue
        inside = set(map(id, container.values() if type(container) is dict else container))
        for name, things in sampled.items():
            held = sum(id(thing) in inside for thing in things)
            if held > 1 and 2 * held >= len(things) and held > best.get(name, (0,))[0]:
                best[name] = held, container
            elif held == 1:
                single.setdefault(name, []).append(container)
    return {name: container for name, (_, container) in best.items()}, {
        name: containers[: 2 * SAMPLE] for name, containers in single.items() if name not in best
    }


def _name(container):
    """A name the program knows the container by: a global of a module, a local of a running
    function, an attribute.
    """
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is container:
                return "%s in %s" % (name, getattr(module, "__file__", None) or module.__name__)
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        if "_memroom_probe" not in frame.f_code.co_filename:
            for name, value in list(frame.f_locals.items()):
                if value is container:
                    return "%s in %s:%d" % (name, frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    for referrer in gc.get_referrers(container):
        for name, value in _attributes(referrer):
            if value is container and isinstance(name, str) and name.isidentifier():
                return "." + name
    return ""


def _attributes(thing):
    """(name, value) of an object's attributes, or of a dictionary that may be an object's. None of
    the program's code runs.
    """
    if type(thing) is not dict:
        try:
            thing = object.__getattribute__(thing, "__dict__")
        except Exception:
            return []
    return list(thing.items()) if type(thing) is dict else []
