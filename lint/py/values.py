"""What the abstract run knows of a value.

A value is a set of atoms, one for each thing it may be. Tensors, and all that a call of unknown
code gives, are nodes of a tape: a node knows what it was computed from, whether it carries an
autograd graph, where it lies and in which iterations of which loops it was made. Containers,
objects, functions and modules are objects of a heap with an identity, as in Python. Two lists are
never confused, and one list under two names stays one.
"""

import ast
from typing import Any, Dict, FrozenSet, Iterator, List, Optional, Set, Tuple


class Round:
    """One pass of the abstract run through the body of a loop."""

    __slots__ = ("loop", "number", "touched", "assigned")

    def __init__(self, loop: "Loop", number: int) -> None:
        self.loop, self.number = loop, number
        self.touched: Dict[Obj, None] = {}  # containers that got something, in order
        self.assigned: Dict[Tuple[int, str], Slot] = {}


class Loop:
    """One time that a loop is run, from its start to its end."""

    __slots__ = ("node", "backward", "conditional", "frame", "over", "cleared", "kind", "trained")

    def __init__(self, node: ast.AST, frame: Any, kind: str = "") -> None:
        self.node, self.frame = node, frame
        self.kind = kind  # "" for a loop of the file, else what calls again and again
        self.backward = False  # gradients are computed in it
        self.conditional = False  # ... but only under a condition
        self.over: Value = NOTHING  # what is iterated
        self.cleared = False  # Keras' global state is
        self.trained = False  # a whole training runs in it: fit()


Rounds = Tuple[Round, ...]


class Slot:
    """A variable or attribute that got a value in a round."""

    __slots__ = ("holder", "name", "born", "where", "label", "value")

    def __init__(
        self, holder: Dict[str, "Value"], name: str, born: Rounds, where: "Where", label: str
    ) -> None:
        self.holder, self.name, self.born, self.where, self.label = holder, name, born, where, label
        self.value: Value = NOTHING  # at the end of the round


# The statements that are running, outermost first: (function or None, statement, call number).
Where = Tuple[Tuple[Any, ast.stmt, int], ...]


class Atom:
    """Something a value may be."""

    __slots__ = ()


class Number(Atom):
    """A Python number, string or the like: small, and it refers to nothing."""

    __slots__ = ("varies",)

    def __init__(self, varies: bool = False) -> None:
        self.varies = varies  # another one in every round of a loop


class Const(Atom):
    """A value that is known."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Const)
            and type(self.value) is type(other.value)
            and self.value == other.value
        )

    def __hash__(self) -> int:
        return hash((type(self.value), self.value))


class Foreign(Atom):
    """A name of somebody else's code: torch.nn.Linear."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Foreign) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)


class Callable(Atom):
    """Anything that can be a model: what modules know of themselves."""

    __slots__ = ("module", "training", "frozen", "hooks", "updated", "attrs", "card")

    def __init__(self) -> None:
        self.module = False
        self.training: Optional[bool] = None  # None: not known
        self.frozen = False  # its parameters need no gradients
        self.updated = False  # an optimizer was given its parameters
        self.card = False  # it lies on the card
        self.hooks: List[Value] = []
        self.attrs: Dict[str, Value] = {}


class Node(Callable):
    """A tensor, or what unknown code gave."""

    __slots__ = (
        "graph",
        "tensor",
        "scalar",
        "weight",
        "whole",
        "batched",
        "data",
        "inputs",
        "via",
        "born",
        "used",
        "where",
        "owner",
        "cut_from",
        "label",
        "output",
        "used_in",
        "kind",
        "joined",
        "of_weights",
        "quiet",
        "doubtful",
        "maker",
    )

    def __init__(
        self,
        born: Rounds,
        where: Where,
        graph: Optional[bool] = None,
        inputs: Tuple["Node", ...] = (),
        label: str = "",
    ) -> None:
        super().__init__()
        # True: it carries a graph. False: it carries none. None: nothing is known, but what it
        # was made from may.
        self.graph = graph
        self.tensor = graph is not None
        self.scalar = False
        self.weight = False  # a parameter: arithmetic on it makes a graph
        self.whole = ""  # a whole file's content: by which call it was read
        self.batched = False  # a loop takes batches of it
        self.data = False  # comes from a loader
        self.inputs: Tuple[Node, ...] = inputs
        self.via: FrozenSet[Obj] = frozenset()  # containers it was taken out of
        self.born, self.where = born, where
        self.used = False  # a backward pass went through it
        self.owner: Optional[Callable] = None  # of a weight: its module
        self.cut_from: FrozenSet[Node] = frozenset()  # what it is a detached form of
        self.label = label
        self.output = False  # a model gave it, or it is reckoned from what a model gave
        self.used_in: Set[Round] = set()  # rounds in which a backward pass went through it
        self.kind = ""  # sum, alias, pair, exception, checkpoint, ...
        self.joined: Tuple[Node, ...] = ()  # torch.cat: it is as large as all of these together
        self.of_weights = False  # holds a model's weights, or a copy of them
        self.quiet = False  # a model in eval mode gave it, in grad mode
        self.doubtful = False  # may be a number as well
        self.maker: Optional[Callable] = None  # the model that gave it


class Put:
    """A value in a container, and where it was put in."""

    __slots__ = ("value", "where", "rounds", "how", "under")

    def __init__(self, value: "Value", where: Where, rounds: Rounds, how: str, under: bool) -> None:
        self.value, self.where, self.rounds, self.how = value, where, rounds, how
        self.under = under  # inside a hook


class Obj(Callable):
    """A container, an object of a class of this file, a module, a function."""

    __slots__ = (
        "kind",
        "born",
        "where",
        "entries",
        "puts",
        "bounded",
        "differentiated",
        "differentiated_later",
        "klass",
        "function",
        "closure",
        "receiver",
        "label",
        "copied",
        "emptied",
        "extra",
        "owner",
        "escaped",
        "trained",
        "last",
        "memo",
        "window",
    )

    def __init__(self, kind: str, born: Rounds, where: Where, label: str = "") -> None:
        super().__init__()
        self.kind, self.born, self.where, self.label = kind, born, where, label
        self.entries: Dict[Any, Put] = {}  # under a known key: a new value replaces the old one
        self.puts: List[Put] = []  # appended, or under a key that is not known
        self.bounded = False
        self.differentiated = False  # a loss was made of what it holds
        self.differentiated_later: Set[Round] = set()  # ... when these rounds of it were over
        self.klass: Optional[Klass] = None
        self.function: Any = None
        self.closure: Any = None
        self.receiver: Optional[Obj] = None
        self.copied = False
        self.emptied = False  # something removes from it somewhere
        self.extra: Any = None
        self.owner: Any = None
        self.escaped = False
        self.trained = False
        self.memo = False  # a new key adds to it, an old one is looked up
        self.window = False  # emptied or begun anew in some rounds only
        self.last: Optional[Put] = None  # what was put in last, also after it was emptied


class Klass(Atom):
    """A class of this file."""

    __slots__ = ("node", "bases", "library", "attrs", "frame", "fields")

    def __init__(self, node: ast.ClassDef, frame: Any) -> None:
        self.node, self.frame = node, frame
        self.bases: List[Klass] = []
        self.library: List[str] = []  # bases of other people's code
        self.attrs: Dict[str, Value] = {}
        self.fields: List[str] = []  # of a dataclass or named tuple, in order

    def find(self, name: str, depth: int = 6) -> Optional["Value"]:
        if name in self.attrs:
            return self.attrs[name]
        for base in self.bases if depth else ():
            found = base.find(name, depth - 1)
            if found is not None:
                return found
        return None

    def comes_from(self, words: Tuple[str, ...], depth: int = 6) -> bool:
        return any(n.split(".")[-1].endswith(words) for n in self.library) or (
            depth > 0 and any(b.comes_from(words, depth - 1) for b in self.bases)
        )


Value = FrozenSet[Atom]
NOTHING: Value = frozenset()
NONE: Value = frozenset([Const(None)])
NUMBER: Value = frozenset([Number()])
VARYING: Value = frozenset([Number(True)])
TRUE: Value = frozenset([Const(True)])
FALSE: Value = frozenset([Const(False)])
MOST = 14  # atoms in a value; more are dropped


def const(value: Any) -> Value:
    return frozenset([Const(value)])


def join(*values: Value) -> Value:
    """One of several values. A tensor that is detached on one way and not on the other counts as
    detached: conditions that cut a graph are there on purpose.
    """
    if len(values) == 1:
        return values[0]
    found: Value = frozenset().union(*values)
    if len(values) == 2 and (found == values[0] or found == values[1]):
        return found
    cut: Set[Atom] = set()
    for atom in found:
        if isinstance(atom, Node) and atom.cut_from:
            cut |= atom.cut_from & found
    if cut:
        found -= cut
    if len(found) > MOST:
        found = frozenset(sorted(found, key=_interest)[:MOST])
    return found


def _interest(atom: Atom) -> int:
    if isinstance(atom, Node):
        return 0 if atom.graph else 2
    return 1 if isinstance(atom, Obj) else 3


def known(value: Value) -> Optional[Const]:
    """The constant that a value surely is."""
    if len(value) == 1:
        for atom in value:
            return atom if isinstance(atom, Const) else None
    return None


def nodes(value: Value) -> List[Node]:
    return [a for a in value if isinstance(a, Node)]


def objects(value: Value) -> List[Obj]:
    return [a for a in value if isinstance(a, Obj)]


def contents(obj: Obj) -> Iterator[Put]:
    yield from obj.entries.values()
    yield from obj.puts


def held(value: Value, depth: int = 4) -> Set[Node]:
    """Every node in a value and in the containers it holds."""
    found: Set[Node] = set()
    seen: Set[Obj] = set()
    todo: List[Tuple[Atom, int]] = [(a, depth) for a in value]
    while todo and len(found) < 60:
        atom, left = todo.pop()
        if isinstance(atom, Node):
            found.add(atom)
        elif isinstance(atom, Obj) and atom not in seen and left > 0:
            seen.add(atom)
            for put in contents(atom):
                todo.extend((a, left - 1) for a in put.value)
    return found


def ancestors(node: Node, limit: int = 400) -> Set[Node]:
    """The node and everything its graph refers to."""
    found = {node}
    todo = [node]
    while todo and len(found) < limit:
        for n in todo.pop().inputs:
            # Unknown code may cut the graph of what it is given; a sum and a view do not.
            if n not in found and (n.graph or n.graph is None and n.kind in ("sum", "alias")):
                found.add(n)
                todo.append(n)
    return found


def pieces(node: Node, limit: int = 100) -> Set[Node]:
    """What a joined tensor is as large as."""
    found = {node}
    todo = [node]
    while todo and len(found) < limit:
        at = todo.pop()
        for n in at.joined + (at.inputs if at.kind == "alias" else ()):
            if n not in found:
                found.add(n)
                todo.append(n)
    return found
