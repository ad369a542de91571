"""Which variables of the program hold how much: tensors, arrays and other objects, on every device.

The walk goes down from what the program has names for: variables of running functions, globals of
its modules, closures, class attributes. So whatever is found has a name. Each object counts for the
first name that leads to it, the shortest. What is ours has no name: hooks of ours hang in lists of
the frameworks, and lead to all that we keep. The walk is bounded in time, runs none of the
program's code, and what it returns are names and numbers: nothing of the program is kept alive.
"""

from __future__ import annotations

import collections
import functools
import gc
import re
import sys
import time
import types
import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, Optional, Tuple

if TYPE_CHECKING:
    import numpy
    import torch

# file, line and code of the function that has a name for something; the line is 0 and the code None
# where it is no function
Place = Tuple[str, int, Optional[types.CodeType]]
Root = Tuple[str, object, Place]  # a name, what it names, where
Found = Dict[Tuple[str, str], "Holder"]  # a variable's name and file -> what it holds

SECONDS = 0.1  # for which a program may stand still
CHECK = 64  # objects between two looks at the clock
MOST_ELEMENTS = 4000  # of a container that are looked at; of longer ones a sample
SMALL_LIST, SMALL_DICT = 4, 32  # up to so many elements are structure, and named one by one
MOST_NODES = 4000  # of the graph behind one tensor
LARGE_TEXT = 1024
MOST_MODULES = 32  # of the program's own classes that are known
MOST_LINES = 5000  # of a file whose loops are looked at
ERRORS = "exceptions with the variables of their functions"

_ATOMS = frozenset((int, float, bool, complex, type(None), type(Ellipsis), range, slice))
_SKIPPED = (types.ModuleType, types.CodeType, types.BuiltinFunctionType, type(type.__call__))
_FUNCTIONS = (types.FunctionType, types.MethodType)
_MODULE_PARTS = ("_modules", "_parameters", "_buffers")
_PYTHONS = 1 << 9  # of a class's flags: it was made by a class statement
_OPTIMIZED = 1  # of a code object's flags: its frame's variables are not a dictionary by themselves


# modules and data sets of the program's own classes
_modules: list[weakref.ref[Any]] = []
_own: dict[type, bool] = {}  # class of one -> whether the program has written it


class Holder:
    """What one name holds."""

    __slots__ = (
        "name",
        "kind",
        "file",
        "code",
        "line",
        "host",
        "card",
        "count",
        "graphs",
        "nodes",
        "models",
        "fills",
    )

    def __init__(self, name: str, place: Place) -> None:
        self.name = name
        self.kind = ""  # such as "list of 12"
        self.file, self.line, self.code = place
        self.host = self.card = 0  # bytes
        self.count = 0  # tensors and arrays
        self.graphs = self.nodes = 0  # tensors with a graph, and nodes of the last one's
        self.models = 0  # modules and optimizers
        self.fills = False  # it has an end, reached or not: a cache

    def grown(self, before: Holder) -> Holder:
        """The same, less what was there before."""
        more = Holder(self.name, (self.file, self.line, self.code))
        more.kind = self.kind
        more.host, more.card = self.host - before.host, self.card - before.card
        more.count = self.count - before.count
        more.graphs = self.graphs - before.graphs
        more.models = self.models - before.models
        more.fills = self.fills
        if self.graphs and before.graphs:
            more.nodes = self.nodes * self.graphs - before.nodes * before.graphs
        return more


def look(
    seconds: float = SECONDS, wanted: set[int] | None = None, roots: list[Root] | None = None
) -> Found:
    """What the variables hold. With wanted, a set of ids, only those objects count, and the walk
    does not go into them. Without roots it begins at all that the program has names for.
    """
    walk = _Walk(seconds, wanted)
    try:
        for group in [roots] if roots is not None else _roots(walk):
            for root in group:
                walk.root(*root)
            walk.go()
        return {key: h for key, h in walk.holders.items() if h.count or h.host or h.card}
    finally:
        walk.forget()


class _Walk:
    def __init__(self, seconds: float, wanted: set[int] | None) -> None:
        self.deadline = time.thread_time() + seconds  # of ours: others may use the processor too
        self.wanted = wanted
        self.torch = sys.modules.get("torch")
        self.tensor = getattr(self.torch, "Tensor", None)
        self.array = getattr(sys.modules.get("numpy"), "ndarray", None)
        self.eager = getattr(
            sys.modules.get("tensorflow.python.framework.ops"), "EagerTensor", None
        )
        self.variable = getattr(
            sys.modules.get("tensorflow.python.ops.resource_variable_ops"),
            "BaseResourceVariable",
            None,
        )
        self.module = getattr(getattr(self.torch, "nn", None), "Module", None)
        self.models = tuple(
            c
            for c in (
                self.module,
                getattr(getattr(self.torch, "optim", None), "Optimizer", None),
                getattr(sys.modules.get("keras"), "Model", None),
            )
            if c
        )
        self.seen: set[int] = set()
        self.storages: set[object] = set()  # what tells the memory of tensors and arrays apart
        self.holders: Found = {}
        self.frames: list[types.FrameType] = []  # whose variables were looked at
        # an object, whom it counts for, whether the name leads to itself
        self.waiting: collections.deque[tuple[object, Holder, bool]] = collections.deque()

    def forget(self) -> None:
        """Lets go of everything, the snapshots of variables that older Pythons keep in frames
        among them.
        """
        self.waiting.clear()
        for frame in self.frames:
            if sys.version_info < (3, 13) and frame.f_code.co_flags & _OPTIMIZED:
                frame.f_locals.clear()
        del self.frames[:]

    def late(self) -> bool:
        return time.thread_time() > self.deadline

    def root(self, name: str, thing: object, place: Place) -> None:
        self.waiting.append((thing, self.holder(name, place), True))

    def holder(self, name: str, place: Place) -> Holder:
        key = (name, place[0])
        found = self.holders.get(key)
        if found is None:
            found = self.holders[key] = Holder(name, place)
        return found

    def go(self) -> None:
        steps = 0
        while self.waiting:
            thing, owner, named = self.waiting.popleft()
            steps += 1
            if steps % CHECK == 0 and self.late():
                self.waiting.clear()
                return
            try:
                self.visit(thing, owner, named)
            except Exception:  # an object that does not answer
                continue

    def visit(self, thing: Any, owner: Holder, named: bool) -> None:
        kind = type(thing)
        if kind in _ATOMS or id(thing) in self.seen or issubclass(kind, _SKIPPED):
            return
        self.seen.add(id(thing))
        if _is_probes(kind.__module__):
            return
        if self.wanted is not None and id(thing) in self.wanted:
            owner.count += 1
            return
        if self.leaf(thing):
            if self.wanted is None:
                self.adder(kind)(thing, owner, named)
        elif kind in (str, bytes, bytearray):
            owner.host += sys.getsizeof(thing) if len(thing) > LARGE_TEXT else 64
        elif issubclass(kind, dict):
            self.into_dict(thing, owner, named)
        elif issubclass(kind, (list, tuple, set, frozenset, collections.deque)):
            self.into_elements(thing, owner, named)
        elif issubclass(kind, types.FunctionType):
            self.into_function(thing, owner)
        elif issubclass(kind, type):
            self.into_class(thing)
        elif issubclass(kind, (types.FrameType, types.TracebackType)):
            return  # a failed cell's: looked at on its own
        elif issubclass(kind, BaseException):
            self.into_error(thing, owner, named)
        else:
            self.into_object(thing, owner, named)

    def add_tensor(self, tensor: torch.Tensor, owner: Holder, named: bool) -> None:
        if tensor.device.type == "meta":
            return
        try:
            storage = tensor.untyped_storage()
            key: object = (tensor.device, storage.data_ptr())
            size = storage.nbytes()
        except Exception:  # sparse ones, and torch before 2.0
            key, size = id(tensor), tensor.numel() * tensor.element_size()
        if key not in self.storages:
            self.storages.add(key)
            if tensor.device.type == "cpu":
                owner.host += size
            else:
                owner.card += size
        owner.count += 1
        if named and not owner.kind:
            owner.kind = "tensor"
        if tensor.grad_fn is not None:
            owner.graphs += 1
            if owner.graphs in (1, 2) or named:
                owner.nodes = max(owner.nodes, _nodes(tensor))
        attributes = _dict(tensor)
        if attributes:
            self.waiting.append((attributes, owner, False))

    def add_array(self, array: numpy.ndarray[Any, Any], owner: Holder, named: bool) -> None:
        whole = array
        while type(whole.base) is self.array:
            whole = whole.base
        if id(whole) not in self.storages:
            self.storages.add(id(whole))
            owner.host += whole.nbytes
        owner.count += 1
        if named and not owner.kind:
            owner.kind = "array"
        if whole.dtype.hasobject:
            self.elements(gc.get_referents(whole), owner)

    def add_eager(self, tensor: Any, owner: Holder, named: bool) -> None:
        """A tensor or a variable of TensorFlow."""
        size = int(tensor.shape.num_elements() or 0) * tensor.dtype.size
        if "CPU" in tensor.device:
            owner.host += size
        else:
            owner.card += size
        owner.count += 1
        if named and not owner.kind:
            owner.kind = "tensor"

    def adder(self, kind: type) -> Callable[[Any, Holder, bool], None]:
        if hasattr(kind, "grad_fn"):
            return self.add_tensor
        return self.add_array if issubclass(kind, self.array or ()) else self.add_eager

    def into_dict(self, thing: dict[Any, Any], owner: Holder, named: bool) -> None:
        size = dict.__len__(thing)
        if named and not owner.kind:
            owner.kind = "%s of %d" % (type(thing).__name__, size)
        owner.host += 64 + 100 * size
        keys = list(dict.keys(thing)) if size <= SMALL_DICT else ()
        if named and keys and all(type(key) is str for key in keys):
            for key, value in list(dict.items(thing)):
                name = '%s["%s"]' % (owner.name, key[:40])
                self.waiting.append((value, self.child(owner, name), True))
        else:
            self.elements(gc.get_referents(thing), owner)

    def into_elements(self, thing: Any, owner: Holder, named: bool) -> None:
        inside = gc.get_referents(thing)
        if named and not owner.kind:
            owner.kind = "%s of %d" % (type(thing).__name__, len(inside))
        owner.host += 56 + 8 * len(inside)
        if named and kind_is_deque(thing) and thing.maxlen is not None:
            owner.fills = True
        structure = named and len(inside) <= SMALL_LIST and issubclass(type(thing), (list, tuple))
        if structure and not any(self.leaf(element) for element in inside):
            for number, element in enumerate(inside):
                name = "%s[%d]" % (owner.name, number)
                self.waiting.append((element, self.child(owner, name), True))
        else:
            self.elements(inside, owner)

    def leaf(self, thing: object) -> bool:
        kind = type(thing)
        return any(
            leaf is not None and issubclass(kind, leaf)
            for leaf in (self.tensor, self.array, self.eager, self.variable)
        )

    def elements(self, inside: list[Any], owner: Holder) -> None:
        """Elements without a name. Of very many a part is looked at, and stands for the rest."""
        if len(inside) <= MOST_ELEMENTS:
            self.waiting.extend((element, owner, False) for element in inside)
            return
        if type(inside[0]) in _ATOMS and type(inside[-1]) in _ATOMS:
            owner.host += 28 * len(inside)
            return
        every = len(inside) // MOST_ELEMENTS + 1
        part = Holder(owner.name, (owner.file, owner.line, owner.code))
        for element in inside[::every]:
            self.visit(element, part, False)
        for field in ("host", "card", "count", "graphs", "models"):
            setattr(owner, field, getattr(owner, field) + every * getattr(part, field))
        owner.nodes = max(owner.nodes, part.nodes)

    def into_function(self, function: types.FunctionType, owner: Holder) -> None:
        """A function keeps what its closure and its defaults name. One of ours leads on to the
        functions that it wraps.
        """
        code = function.__code__
        if is_ours(code.co_filename):
            inside = [function.__dict__.get("__wrapped__")] + [
                part for cell in function.__closure__ or () for part in gc.get_referents(cell)
            ]
            self.waiting.extend((f, owner, False) for f in inside if type(f) in _FUNCTIONS)
            return
        place = (code.co_filename, code.co_firstlineno, code)
        for name, cell in zip(code.co_freevars, function.__closure__ or ()):
            try:
                value = cell.cell_contents
            except ValueError:  # not set yet
                continue
            self.waiting.append((value, self.holder(name, place), True))
        if function.__defaults__:
            self.waiting.append((function.__defaults__, owner, False))
        if function.__dict__:
            self.waiting.append((function.__dict__, self.holder(function.__name__, place), True))

    def into_class(self, cls: type) -> None:
        file = _file_of(cls.__module__)
        if not is_users(file):
            return
        for name, value in list(type.__getattribute__(cls, "__dict__").items()):
            if not name.startswith("__") or isinstance(value, types.FunctionType):
                place = (file, 0, None)
                self.waiting.append(
                    (value, self.holder("%s.%s" % (cls.__name__, name), place), True)
                )

    def into_error(self, error: BaseException, owner: Holder, named: bool) -> None:
        """An exception that the program keeps holds the frames that it has passed through, with
        all their variables.
        """
        if owner.kind and ERRORS not in owner.kind:
            owner.kind += ", " + ERRORS
        trail = error.__traceback__
        while trail is not None:
            frame = trail.tb_frame
            trail = trail.tb_next
            if id(frame) not in self.seen:
                self.seen.add(id(frame))
                self.frames.append(frame)
                if frame.f_code.co_flags & _OPTIMIZED:
                    self.elements(list(frame.f_locals.values()), owner)
        self.into_object(error, owner, named)

    def into_object(self, thing: Any, owner: Holder, named: bool) -> None:
        owner.host += 64
        kind = type(thing)
        if kind is functools._lru_cache_wrapper:
            cache = thing.cache_info()
            owner.fills = cache.maxsize is not None
        if self.models and issubclass(kind, self.models):
            owner.models += 1
        if kind is functools.partial or kind is types.MethodType:
            self.waiting.extend((part, owner, named) for part in gc.get_referents(thing))
            return
        named = named and not is_ours(_file_of(kind.__module__))
        attributes = (_dict(thing) or _slots(thing)) if named else None
        if attributes:
            is_module = self.module is not None and issubclass(kind, self.module)
            self.seen.add(id(attributes))
            for name, value in list(attributes.items()):
                if is_module and name in _MODULE_PARTS and value is not None:
                    for part, inside in list(value.items()):
                        self.attribute(owner, part, inside, kind)
                else:
                    self.attribute(owner, name, value, kind)
        # the rest has no name, such as what a cache around a function holds; its class comes along
        self.elements(gc.get_referents(thing), owner)

    def attribute(self, owner: Holder, name: str, value: object, kind: type) -> None:
        if type(value) not in _ATOMS:
            file = _file_of(kind.__module__)
            if not is_users(owner.file) and is_users(file):  # the program knows it by its class
                child = self.holder("%s.%s" % (kind.__name__, name), (file, 0, None))
            else:
                child = self.child(owner, "%s.%s" % (owner.name, name))
            self.waiting.append((value, child, True))

    def child(self, owner: Holder, name: str) -> Holder:
        return self.holder(name, (owner.file, owner.line, owner.code))


def together(found: Found) -> Holder | None:
    """The variable that holds most of what was found, None where nothing was. Elements of short
    lists and dictionaries have names of their own; they count for the variable they are in.
    """
    sums: dict[tuple[str, str], list[Any]] = {}  # (variable, file) -> [objects, a holder of them]
    for (name, file), holder in found.items():
        variable = name.partition("[")[0]
        known = sums.setdefault((variable, file), [0, holder])
        known[0] += holder.count
        if holder.name == variable:
            known[1] = holder
    if not sums:
        return None
    (variable, file), (count, holder) = max(sums.items(), key=lambda item: item[1][0])
    if holder.name == variable:
        holder.count = count
        answer: Holder | None = holder
        return answer
    whole = Holder(variable, (holder.file, holder.line, holder.code))
    whole.count = count
    return whole


def kind_is_deque(thing: object) -> bool:
    return issubclass(type(thing), collections.deque)


def made(module: object) -> None:
    """A module has got a part, or a loader begins to read a data set. Those of the program's own
    classes are where its attributes are looked for: in a large library, or in the head of a loop,
    no variable of the program may lead to them.
    """
    kind = type(module)
    own = _own.get(kind)
    if own is None:
        own = _own[kind] = is_users(_file_of(kind.__module__))
    if own and not any(known() is module for known in _modules[-2:]):
        _modules[:] = [known for known in _modules if known() is not None][-MOST_MODULES + 1 :]
        _modules.append(weakref.ref(module))


def _nodes(tensor: torch.Tensor) -> int:
    """Nodes of the graph behind a tensor, up to MOST_NODES."""
    nodes: set[Any] = set()
    waiting: list[Any] = [tensor.grad_fn]
    while waiting and len(nodes) < MOST_NODES:
        node = waiting.pop()
        if node is not None and node not in nodes:
            nodes.add(node)
            waiting.extend(before for before, _ in node.next_functions)
    return len(nodes)


def _dict(thing: object) -> dict[str, Any] | None:
    """An object's attributes, None if it has none. None of the program's code runs."""
    try:
        attributes = object.__getattribute__(thing, "__dict__")
    except Exception:
        return None
    return attributes if type(attributes) is dict else None


def _slots(thing: object) -> dict[str, Any]:
    """What an object without attributes of its own has in slots."""
    found = {}
    for cls in type(thing).__mro__:
        for name, member in list(cls.__dict__.items()):
            if type(member) is types.MemberDescriptorType and cls.__flags__ & _PYTHONS:
                try:
                    found[name] = member.__get__(thing)
                except AttributeError:  # not set
                    continue
    return found


def attributes(thing: object) -> list[tuple[Any, Any]]:
    """(name, value) of an object's attributes, or of a dictionary."""
    found = thing if type(thing) is dict else _dict(thing)
    return list(found.items()) if found is not None else []


def _roots(walk: _Walk) -> Iterator[list[Root]]:
    """Groups of (name, thing, place) of all that has a name: variables of the program's functions,
    its globals, then what libraries at work name.
    """
    own: list[types.FrameType] = []
    others: list[types.FrameType] = []
    for frame in _frames():
        walk.frames.append(frame)
        (own if is_users(frame.f_code.co_filename) else others).append(frame)
    yield [variable for frame in own for variable in _variables(frame)]
    yield [variable for frame in own for variable in _globals(frame)]
    yield [
        (type(module).__name__, module, (_file_of(type(module).__module__), 0, None))
        for module in (known() for known in list(_modules))
        if module is not None
    ]
    known = {id(frame.f_globals) for frame in own}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        names = getattr(module, "__dict__", None)
        if (
            type(names) is dict
            and id(names) not in known
            and (is_users(file) if file else name == "__main__")
        ):
            place = (file or "<%s>" % name, 0, None)
            yield [(n, thing, place) for n, thing in list(names.items()) if not n.startswith("__")]
    yield [variable for frame in others for variable in _variables(frame)]
    yield [variable for frame in others for variable in _globals(frame)]


def _variables(frame: types.FrameType) -> Iterator[Root]:
    place = (frame.f_code.co_filename, frame.f_lineno, frame.f_code)
    for name, thing in list(frame.f_locals.items()):
        if not name.startswith("__") and type(thing) not in _ATOMS:
            yield name, thing, place


def _globals(frame: types.FrameType) -> Iterator[Root]:
    place = (frame.f_code.co_filename, 0, None)
    if frame.f_globals is not frame.f_locals:
        for name, thing in list(frame.f_globals.items()):
            if not name.startswith("__") and type(thing) not in _ATOMS:
                yield name, thing, place


def _frames() -> Iterator[types.FrameType]:
    """Frames of all threads, this one's first, without ours."""
    this = sys._getframe()
    starts = [this] + [f for f in sys._current_frames().values() if f is not this]
    known: set[int] = set()
    for start in starts:
        frame: types.FrameType | None = start
        while frame is not None and id(frame) not in known:
            known.add(id(frame))
            if not is_ours(frame.f_code.co_filename):
                yield frame
            frame = frame.f_back


def file_of(cls: type) -> str:
    """The file that a class was written in, empty where it is not known."""
    return _file_of(cls.__module__)


def _file_of(module: object) -> str:
    module = sys.modules.get(module) if isinstance(module, str) else None
    return getattr(module, "__file__", None) or ""


_OURS = re.compile(r"_memroom_probe|[/\\](python|site-packages|dist-packages)[/\\]memroom[/\\]")
_LIBRARIES = re.compile(r"[/\\](site|dist)-packages[/\\]|^<frozen")
_STANDARD = tuple({sys.prefix + "/lib/python", sys.base_prefix + "/lib/python"})


@functools.lru_cache(maxsize=4096)
def is_users(file: str) -> bool:
    """Returns whether a file is the program's own. A cell of a notebook and `-c` are."""
    library = _LIBRARIES.search(file) or file.startswith(_STANDARD)
    return bool(file) and not library and not is_ours(file)


@functools.lru_cache(maxsize=4096)
def is_ours(file: str) -> bool:
    """Returns whether a file is the probe's, with what it brings, or of the package memroom."""
    return bool(_OURS.search(file))


def _is_probes(module: object) -> bool:
    return isinstance(module, str) and module.partition(".")[0] == __name__.partition(".")[0]


def line_of(holder: Holder) -> int:
    """The line where a holder grows, as its source has it; else the line its function was at."""
    import linecache

    name = re.findall(r"[A-Za-z_]\w*", re.sub(r"\[[^\]]*\]", "", holder.name))
    lines = linecache.getlines(holder.file)
    if not name or not lines or len(lines) > 50000:
        return holder.line
    first, last = _range(holder.code, len(lines))
    adds = r"(\.\s*(append|appendleft|extend|add|insert|update|put)\s*\(|\+=)"
    word = r"\b%s\b\s*(\[[^\]]*\]\s*)*" % re.escape(name[-1])
    key = re.search(r"\[[\"']([^\[\]\"']+)[\"']\]$", holder.name)
    under = []
    if key:
        place = r"\b%s\b.*[\"']%s[\"']\s*\]\s*" % (re.escape(name[-1]), re.escape(key[1]))
        under.append(place + adds)
    grows = [
        word + adds,
        word + r"\[[^\]]*\]\s*=[^=]|" + word + r"\.\s*setdefault\(",
        word + r"\s*=[^=].*\b%s\b" % re.escape(name[-1]),
    ]
    begins = [word + r"(:[^=]+)?=[^=]", r"\b(def|class)\s+" + word]
    whole = range(1, len(lines) + 1)
    for patterns in (under, grows, begins):
        for numbers in (range(first, last + 1), whole):
            for pattern in patterns:
                found = re.compile(pattern)
                for number in numbers:
                    if found.search(lines[number - 1].split("#")[0]):
                        return number
    return holder.line


def emptied(name: str, file: str, line: int) -> int:
    """The line that empties a variable every so many steps of the loop in which a line adds to it;
    0 for none. One that is emptied outside of that loop grows for as long as the loop runs.
    """
    import ast
    import linecache

    every = (ast.Mod, ast.Lt, ast.LtE, ast.Gt, ast.GtE)  # `step == 0` comes once

    def is_it(node: ast.AST) -> bool:
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.insert(0, node.attr)
            node = node.value
        return isinstance(node, ast.Name) and ".".join([node.id, *parts]) == name

    def empties(part: ast.AST) -> bool:
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute):
            return part.func.attr == "clear" and is_it(part.func.value)
        if not isinstance(part, ast.Assign) or any(map(is_it, ast.walk(part.value))):
            return False
        return any(is_it(node) for target in part.targets for node in ast.walk(target))

    lines = linecache.getlines(file)
    try:
        tree = ast.parse("".join(lines) if len(lines) <= MOST_LINES else "")
    except (SyntaxError, ValueError):  # a cell with commands of the notebook's
        return 0
    loops = [
        node
        for node in ast.walk(tree)
        if isinstance(node, (ast.For, ast.While)) and node.lineno < line <= (node.end_lineno or 0)
    ]
    for test in ast.walk(max(loops, key=lambda loop: loop.lineno)) if loops else ():
        if isinstance(test, ast.If) and any(isinstance(n, every) for n in ast.walk(test.test)):
            for part in (part for statement in test.body for part in ast.walk(statement)):
                if isinstance(part, (ast.Assign, ast.Call)) and empties(part):
                    return part.lineno
    return 0


def _range(code: types.CodeType | None, most: int) -> tuple[int, int]:
    """The lines of a function."""
    if code is None or not code.co_flags & _OPTIMIZED:
        return 1, most
    import dis

    numbers = [line for _, line in dis.findlinestarts(code) if line]
    return max(1, min(numbers or [1])), min(most, max(numbers or [most]))
