"""Runs a file without its data.

The run follows Python: assignments, calls into functions and methods of the file, closures,
generators, decorators, context managers, inheritance. Both sides of a condition run unless its
answer is known; a loop runs twice, because what grows from the first round to the second grows for
ever. `library.py` says what calls of other people's code do. Nothing is reported here: the run
writes down what happened (`Story`), and `lifetimes.py` judges it.

The run is bounded by a number of steps. A part that does not end within it leaves no trace.
"""

import ast
import functools
import re
from typing import Any, Callable, Dict, Iterator, List, Optional, Protocol, Set, Tuple

from .evidence import few_rounds
from .flow import COUNT
from .names import FUNCTIONS, LOOPS, key, text, walk, walk_here
from .values import (
    FALSE,
    NONE,
    NOTHING,
    NUMBER,
    TRUE,
    VARYING,
    Atom,
    Const,
    Foreign,
    Klass,
    Loop,
    Node,
    Number,
    Obj,
    Put,
    Round,
    Rounds,
    Slot,
    Value,
    Where,
    ancestors,
    const,
    contents,
    held,
    join,
    known,
    nodes,
    objects,
    pieces,
)

NEXT, STOP = 0, 1  # how a block ended: at its end, or by return, break, continue, raise
DEEPEST = 14  # calls within calls
FEW_CALLS = 4  # within which unknown parameters are given objects of the file's own classes
STEPS_OF_PART = 30_000
STEPS_OF_FILE = 90_000
# What a checkpoint calls the parts that are large.
_STATES = re.compile(
    r"state|model|net|optim|weight|param|ema|module|encoder|decoder|gen|disc", re.I
)
SEQUENCES = ("list", "tuple", "set", "deque")


class Exhausted(Exception):
    """The part of the file that runs takes too many steps."""


class Frame:
    """The variables of one call."""

    __slots__ = (
        "vars",
        "parent",
        "function",
        "born",
        "returns",
        "on_yield",
        "number",
        "outside",
        "klass",
        "receiver",
        "statement",
    )

    def __init__(self, parent: Optional["Frame"], function: Any, born: Rounds, number: int) -> None:
        self.vars: Dict[str, Value] = {}
        self.parent, self.function, self.born, self.number = parent, function, born, number
        self.returns: List[Value] = []
        self.on_yield: Optional[Callable[[Value], None]] = None
        self.outside: Dict[str, Frame] = {}  # names declared global or nonlocal
        self.klass: Optional[Klass] = None  # the class whose method runs
        self.receiver: Optional[Obj] = None
        self.statement: Any = None


class Args:
    """What a call is given."""

    __slots__ = ("pos", "kw", "rest")

    def __init__(self, pos: List[Value], kw: Optional[Dict[str, Value]] = None) -> None:
        self.pos, self.kw = pos, kw or {}
        self.rest: Value = NOTHING  # of *x where x is not known

    def all(self) -> List[Value]:
        return self.pos + list(self.kw.values()) + ([self.rest] if self.rest else [])

    def get(self, index: int, name: str = "") -> Value:
        if name and name in self.kw:
            return self.kw[name]
        return self.pos[index] if 0 <= index < len(self.pos) else NOTHING


class Story:
    """What happened in the run."""

    def __init__(self) -> None:
        # (loop, first round, second round, container, what it then held)
        self.grown: List[Tuple[Loop, Round, Round, Obj, List[Put]]] = []
        # (loop, first round, second round, slot, tensor)
        self.chained: List[Tuple[Loop, Round, Round, Slot, Node]] = []
        # (loop, container, what was put in last): emptied from time to time
        self.windows: List[Tuple[Loop, Obj, Put]] = []
        # (loop, slot, tensor): joined to what it was
        self.joined: List[Tuple[Loop, Slot, Node]] = []
        # (loop, slot, tensor): in a record that points to the one before
        self.linked: List[Tuple[Loop, Slot, Node]] = []
        # (where, is the module in eval mode, rounds, nodes it gave), in grad mode
        self.forwards: List[Tuple[Where, bool, Rounds, Set[Node]]] = []
        self.facts: List[Tuple[str, Where, Any]] = []  # what the library saw
        # [where, nodes, did a later backward pass go through them?, rounds] of retain_graph=True
        self.retained: List[List[Any]] = []

    def add(self, other: "Story") -> None:
        self.grown += other.grown
        self.chained += other.chained
        self.windows += other.windows
        self.joined += other.joined
        self.linked += other.linked
        self.forwards += other.forwards
        self.facts += other.facts
        self.retained += other.retained


class Library(Protocol):
    """What calls of other people's code do."""

    card: bool  # whether the file names one

    def decorated(self, d: ast.expr, value: Value, frame: Frame, s: Any) -> Value: ...
    def object_attribute(self, obj: Obj, name: str) -> Value: ...
    def node_attribute(self, n: Node, name: str) -> Value: ...
    def call(self, name: str, args: Args, e: Any) -> Value: ...
    def call_object(self, obj: Obj, args: Args, name: str) -> Value: ...
    def call_node(self, n: Node, args: Args, name: str) -> Value: ...
    def method(self, atom: Any, name: str, args: Args, e: Any) -> Value: ...
    def forward(self, module: Any, args: Args) -> Value: ...
    def exactly(self, it: Obj) -> Optional[List[Value]]: ...
    def element(self, it: Obj) -> Value: ...
    def element_of(self, obj: Obj) -> Value: ...
    def missing(self, obj: Obj, at: Any) -> Value: ...
    def update(self, obj: Obj, args: Args) -> None: ...
    def retained(self, given: Set[Node]) -> None: ...
    def called(self, f: Obj, args: Args) -> None: ...
    def default_field(self, value: Value) -> Value: ...
    def inherited_init(self, made: Obj, args: Args) -> None: ...
    def parameter(self, name: str) -> Value: ...


class Machine:
    def __init__(self, file: Any, library: Callable[["Machine"], Library]) -> None:
        """library: what calls of other people's code do, made for this machine."""
        self.file = file
        self.library = library(self)
        self.story = Story()
        self.grad: Optional[bool] = True
        self.rounds: Rounds = ()
        self.frames: List[Frame] = []
        self.conditions: List[int] = []  # number of rounds around each open unknown condition
        self.steps = self.limit = 0
        self.total = 0
        self.calls = 0
        self.hooked = 0  # hooks that are running
        self.limits: List[Obj] = []  # containers whose length the condition around asks for
        self.forward_depth = 0
        self.making = 0  # objects that are being made up
        self.closing: Dict[ast.If, Set[str]] = {}  # see _closes
        self.ran: Set[ast.AST] = set()  # functions that some call reached
        self.given: Set[Any] = set()  # forward passes whose results unknown code was given
        self.runs: Dict[ast.AST, int] = {}
        self.returned: Set[Node] = set()  # what the functions that nobody here calls give back
        self.globals = Frame(None, None, (), 0)
        for name, full in file.aliases.items():
            self.globals.vars[name] = frozenset([Foreign(full)])

    # parts

    def part(self, run: Callable[[], None]) -> None:
        """Runs a part of the file; keeps its story if it ends within its steps."""
        story, self.story = self.story, Story()
        ran = set(self.ran)
        self.steps, self.limit = 0, min(STEPS_OF_PART, STEPS_OF_FILE - self.total)
        try:
            if self.limit > 0:
                run()
                story.add(self.story)
        except Exhausted:
            self.ran = ran  # what did not end is tried again in smaller parts
        finally:
            self.total += self.steps
            self.story = story
            self.rounds, self.frames, self.conditions = (), [], []
            self.grad, self.hooked, self.forward_depth, self.limits = True, 0, 0, []

    def tick(self) -> None:
        self.steps += 1
        if self.steps > self.limit:
            raise Exhausted

    def where(self) -> Where:
        return tuple((f.function, f.statement, f.number) for f in self.frames)

    # making things

    def node(self, graph: Optional[bool] = None, inputs: Any = (), label: str = "") -> Node:
        return Node(self.rounds, self.where(), graph, tuple(inputs), label)

    def opaque(self, values: List[Value] = [], label: str = "") -> Value:  # noqa: B006
        """What unknown code makes of some values."""
        inputs: List[Node] = []
        for v in values:
            inputs += held_with_via(v)
        for n in inputs:
            if n.graph:  # unknown code may keep it and differentiate it later
                self.given |= {a.where[-1][1] for a in ancestors(n) if a.maker is not None}
        return frozenset([self.node(None, inputs, label)])

    def derive(self, inputs: List[Node], label: str = "", kind: str = "") -> Node:
        """What arithmetic makes of some tensors."""
        on = self.grad is not False
        graph: Optional[bool] = False
        if on and any(n.graph or n.weight for n in inputs):
            graph = True
        elif on and any(n.graph is None for n in inputs):
            graph = None
        made = self.node(graph, inputs if on else (), label)
        made.tensor = graph is not None or any(n.tensor for n in inputs)
        made.card = any(n.card for n in inputs)
        made.output = any(n.output for n in inputs)
        made.quiet = any(n.quiet for n in inputs)
        made.doubtful = any(n.doubtful for n in inputs) and not any(
            n.graph and not n.doubtful for n in inputs
        )
        made.whole = next((n.whole for n in inputs if n.whole), "")
        made.data = bool(inputs) and all(n.data for n in inputs)
        made.kind = kind
        made.of_weights = len(inputs) == 1 and (inputs[0].of_weights or inputs[0].weight)
        if inputs and all(n.scalar for n in inputs if n.tensor) and any(n.tensor for n in inputs):
            made.scalar = True
        return made

    def alias(self, n: Node, label: str = "", via: Optional[Obj] = None) -> Node:
        """Another view of the same memory."""
        made = Node(n.born, n.where, n.graph, (n,), label or n.label)
        made.tensor, made.card, made.weight, made.data = n.tensor, n.card, n.weight, n.data
        made.output, made.scalar, made.kind, made.owner = n.output, n.scalar, "alias", n.owner
        made.whole, made.module, made.of_weights = n.whole, False, n.of_weights
        made.quiet, made.doubtful = n.quiet, n.doubtful
        if n.kind in ("exception", "checkpoint"):
            made.kind = n.kind
        if via is not None:
            made.via = frozenset([via])
        return made

    def cut(self, n: Node) -> Node:
        """A tensor without its graph."""
        made = Node(n.born, self.where(), False, (), n.label)
        made.card, made.output, made.scalar, made.whole = n.card, n.output, n.scalar, n.whole
        made.data, made.joined = n.data, n.joined
        made.of_weights = n.of_weights or n.weight
        made.cut_from = frozenset([n]) | frozenset(a for a in n.inputs if n.kind == "alias")
        return made

    def obj(self, kind: str, label: str = "") -> Obj:
        return Obj(kind, self.rounds, self.where(), label)

    def sequence(self, kind: str, values: List[Value]) -> Value:
        made = self.obj(kind)
        for i, v in enumerate(values[:40]):
            made.entries[i] = Put(v, self.where(), self.rounds, "made", bool(self.hooked))
        return frozenset([made])

    # events

    def put(self, obj: Obj, value: Value, how: str, at: Any = None) -> None:
        """Puts a value into a container, under the key `at` where that is known."""
        put = Put(value, self.where(), self.rounds, how, bool(self.hooked))
        if obj in self.limits:
            obj.bounded = True
        if at is not None:
            obj.entries[at] = put
        elif value:
            obj.last = put
            obj.puts.append(put)
            del obj.puts[:-24]
        for r in self.rounds:
            if r not in obj.born:
                r.touched[obj] = None

    def dropped(self, obj: Obj) -> None:
        """It is emptied, or a new one takes its place: in this round only, perhaps."""
        if self.rounds and any(c >= len(self.rounds) for c in self.conditions):
            obj.window = True
            for p in contents(obj):
                for o in objects(p.value):
                    o.window = True

    def empty(self, obj: Obj) -> None:
        self.dropped(obj)
        obj.entries.clear()
        obj.puts.clear()
        obj.emptied = True

    def assigned(self, holder: Dict[str, Value], name: str, born: Rounds, label: str) -> None:
        value = holder.get(name, NOTHING)
        if not self.rounds or not any(
            isinstance(a, Node)
            and (a.graph is not False or a.joined)
            or isinstance(a, Obj)
            and self.rounds[-1] in a.born
            and any(n.graph for n in held(frozenset([a]), 1))
            for a in value
        ):
            return
        for r in self.rounds:
            if r not in born:
                r.assigned[(id(holder), name)] = Slot(holder, name, born, self.where(), label)

    def in_place(self, n: Node, inputs: List[Node]) -> None:
        """x.add_(y): the tensor stays, its graph grows."""
        if self.grad is False or not any(i.graph or i.weight for i in inputs):
            return
        if n.weight and n.owner is not None:
            return
        op = self.node(True, inputs)
        n.inputs = (n.inputs + (op,))[-6:]
        n.graph = True
        for r in self.rounds:
            if r not in n.born:
                holder: Dict[str, Value] = {"": frozenset([n])}
                r.assigned[(id(n), "")] = Slot(holder, "", n.born, self.where(), n.label)

    def backward(self, value: Value, frees: bool = True, retains: bool = False) -> None:
        """A loss is differentiated; `frees`: its graph is given up; `retains`: retain_graph."""
        if retains:
            self.library.retained(held(value))
        self._retained(value, retains)
        for i, r in enumerate(self.rounds if frees else ()):
            unless = any(c > i for c in self.conditions)
            if not r.loop.backward:
                r.loop.backward, r.loop.conditional = True, unless
            elif not unless:
                r.loop.conditional = False
        seen: Set[Node] = set()
        top = held(value)  # what can be differentiated has a graph, whatever is known of it
        todo: List[Tuple[Node, bool]] = [(n, True) for n in top]
        while todo and len(seen) < 2000:
            n, term = todo.pop()
            if n in seen:
                continue
            seen.add(n)
            if term and not n.graph and not n.data and (n.graph is None or n in top):
                n.graph, n.tensor, n.scalar = True, True, True
            n.used = True
            if frees:
                n.used_in.update(self.rounds)
            for c in n.via:
                c.differentiated = True
                c.differentiated_later.update(r for r in c.born if r not in self.rounds)
            on = term and n.kind in ("sum", "alias")
            todo.extend((i, on) for i in n.inputs if i.graph is not False)

    def _retained(self, value: Value, retains: bool) -> None:
        """Which retained graphs does a later backward pass go through?"""
        graph: Set[Node] = set()
        for n in held(value):
            graph |= {a for a in ancestors(n) if not a.weight and not a.data}
        for entry in self.story.retained:
            entry[2] = entry[2] or bool(entry[1] & graph)
        if retains and self.rounds:
            self.story.retained.append([self.where(), graph, False, self.rounds])

    # loops

    def loop(
        self,
        node: ast.AST,
        frame: Frame,
        body: Callable[[int], None],
        rounds: int = 2,
        kind: str = "",
        over: Value = NOTHING,
    ) -> Loop:
        loop = Loop(node, frame, kind)
        loop.over = over
        last: List[Round] = []
        for number in range(rounds):
            r = Round(loop, number)
            self.rounds = self.rounds + (r,)
            body(number)
            self.rounds = self.rounds[:-1]
            for slot in r.assigned.values():
                slot.value = slot.holder.get(slot.name, NOTHING)
            last = (last + [r])[-2:]
        if len(last) == 2:
            self.judge(loop, last[0], last[1])
        return loop

    def judge(self, loop: Loop, first: Round, second: Round) -> None:
        """Notes what the second round added to what the first one left."""
        for obj in second.touched:
            if first in obj.born or obj.bounded:
                continue
            puts = [p for p in contents(obj) if p.value]
            if any(first in p.rounds for p in puts) and any(second in p.rounds for p in puts):
                self.story.grown.append((loop, first, second, obj, puts))
            for p in puts:
                if second in p.rounds:
                    for n in nodes(p.value):
                        if self._spans(n, first, second) and any(
                            obj in a.via for a in ancestors(n)
                        ):
                            slot = Slot({}, "", obj.born, p.where, obj.label)
                            self.story.chained.append((loop, first, second, slot, n))
        for at, slot in second.assigned.items():
            before = first.assigned.get(at)
            if first in slot.born or before is None:
                continue
            for n in nodes(slot.value):
                if self._spans(n, first, second) and ancestors(n) & before.value:
                    self.story.chained.append((loop, first, second, slot, n))
                elif n.joined or n.kind == "alias":
                    parts = pieces(n)
                    if any(first in p.born for p in parts) and any(
                        second in p.born and not p.joined for p in parts
                    ):
                        self.story.joined.append((loop, slot, n))
            self._remade(loop, first, second, slot, before.value)
        for obj in list(first.touched) + list(second.touched):
            if first in obj.born or second in obj.born or obj.last is None:
                continue
            begun_anew = obj.window and obj.differentiated  # if i % n == 0: losses = []
            if obj.emptied or begun_anew or obj not in second.touched:
                self.story.windows.append((loop, obj, obj.last))

    def _remade(self, loop: Loop, first: Round, second: Round, slot: Slot, before: Value) -> None:
        """shadow = {k: 0.9 * shadow[k] + 0.1 * p ...}, last = Record(loss, last)"""
        earlier = held(before)
        for o in objects(slot.value):
            if second not in o.born:
                continue
            for n in {n for p in contents(o) for n in nodes(p.value)}:
                if self._spans(n, first, second) and ancestors(n) & earlier:
                    self.story.chained.append((loop, first, second, slot, n))
            links = {a for v in o.attrs.values() for a in v if isinstance(a, Obj)}
            if links & set(objects(before)) and o not in links:
                for n in {n for v in o.attrs.values() for n in nodes(v)}:
                    if n.graph and second in n.born:
                        self.story.linked.append((loop, slot, n))

    def _spans(self, n: Node, first: Round, second: Round) -> bool:
        if n.graph is False:
            return False
        older = newer = False
        for a in ancestors(n):
            if a.weight or a.data:
                continue
            older = older or first in a.born
            newer = newer or second in a.born
        return older and newer

    # statements

    def block(self, body: List[ast.stmt], frame: Frame) -> int:
        for s in body:
            if self.statement(s, frame) == STOP:
                return STOP
        return NEXT

    def statement(self, s: ast.stmt, frame: Frame) -> int:
        self.tick()
        frame.statement = s
        run = getattr(self, "_" + s.__class__.__name__, None)
        return run(s, frame) or NEXT if run is not None else NEXT

    def _Expr(self, s: ast.Expr, frame: Frame) -> None:
        value = self.value(s.value, frame)
        for o in objects(value):
            if o.kind == "gradmode" and isinstance(s.value, ast.Call) and o.extra is not True:
                if "set_grad_enabled" in o.label:
                    self.grad = o.extra

    def _Assign(self, s: ast.Assign, frame: Frame) -> None:
        value = self.value(s.value, frame)
        for target in s.targets:
            self.bind(target, value, frame)

    def _AnnAssign(self, s: ast.AnnAssign, frame: Frame) -> None:
        if s.value is not None:
            self.bind(s.target, self.value(s.value, frame), frame)

    def _AugAssign(self, s: ast.AugAssign, frame: Frame) -> None:
        load = ast.copy_location(_loaded(s.target), s.target)
        old, new = self.value(load, frame), self.value(s.value, frame)
        made = NOTHING
        for o in objects(old):
            if o.klass is not None and isinstance(s.op, ast.Add):
                found = o.klass.find("__iadd__")
                if found is not None:
                    made = join(made, self.call_method(o, found, Args([new])))
            elif o.kind in SEQUENCES and isinstance(s.op, ast.Add):
                for element in self.elements(new):
                    self.put(o, element, "append")
                made = join(made, frozenset([o]))
            elif o.kind == "dict" and isinstance(s.op, ast.BitOr):
                self.library.update(o, Args([new]))
                made = join(made, frozenset([o]))
        rest = frozenset(a for a in old if not isinstance(a, Obj))
        if rest or not made:
            made = join(made, self.arithmetic(s.op, rest, new))
        sure = known(made)
        if self.rounds and sure is not None and isinstance(sure.value, (int, float)):
            made = VARYING
        self.bind(s.target, made, frame)

    def _Delete(self, s: ast.Delete, frame: Frame) -> None:
        for t in s.targets:
            if isinstance(t, ast.Name):
                self.home(t.id, frame).vars.pop(t.id, None)
            elif isinstance(t, ast.Attribute):
                for o in objects(self.value(t.value, frame)):
                    o.attrs.pop(t.attr, None)
                    o.entries.pop("." + t.attr, None)
            elif isinstance(t, ast.Subscript):
                for o in objects(self.value(t.value, frame)):
                    self.empty(o)

    def _If(self, s: ast.If, frame: Frame) -> int:
        truth, narrowed = self.test(s.test, frame)
        if truth is not None:
            return self.block(s.body if truth else s.orelse, frame)
        if s not in self.closing:
            self.closing.update(_closes(s))
        self.conditions.append(len(self.rounds))
        before = dict(frame.vars)
        for name, value, _ in narrowed:
            frame.vars[name] = value
        limits = len(self.limits)
        self.limits += self._measured(s.test, frame)
        first = self.block(s.body, frame)
        after = dict(frame.vars)
        frame.vars.clear()
        frame.vars.update(before)
        for name, _, value in narrowed:
            frame.vars[name] = value
        second = self.block(s.orelse, frame)
        del self.limits[limits:]
        self.conditions.pop()
        if first == STOP and second == STOP:
            return STOP
        if second == STOP:
            frame.vars.clear()
            frame.vars.update(after)
        elif first != STOP:
            merge(frame.vars, after)
            for name in self.closing.get(s, ()):
                if name in after:
                    frame.vars[name] = after[name]
        return NEXT

    def _measured(self, test: ast.expr, frame: Frame) -> List[Obj]:
        """The containers in `if len(cache) < limit`."""
        return [
            o
            for c in walk(test)
            if isinstance(c, ast.Compare)
            for n in [c.left, *c.comparators]
            if isinstance(n, ast.Call) and key(n.func) == "len" and len(n.args) == 1
            for o in objects(self.value(n.args[0], frame))
        ]

    def _For(self, s: ast.For, frame: Frame) -> None:
        over = self.value(s.iter, frame)
        self.iterate(s, over, frame, lambda v: self._round(s, v, frame))
        self.block(s.orelse, frame)

    _AsyncFor = _For

    def _round(self, s: ast.For, value: Value, frame: Frame) -> None:
        frame.statement = s
        self.bind(s.target, value, frame, False)
        self.block(s.body, frame)

    def iterate(
        self, node: ast.AST, over: Value, frame: Frame, body: Callable[[Value], None]
    ) -> None:
        """Runs a body for the elements of a value, twice at least."""
        before = dict(frame.vars)
        if any(isinstance(s, (ast.Break, ast.Return)) for s in getattr(node, "body", ())):
            body(self.element(over))  # it ends in its first round
            merge(frame.vars, before)
            return
        generators = [o for o in objects(over) if o.kind == "generator"]
        others = over - frozenset(generators)
        for g in generators:
            round_ = functools.partial(self._round_of, g, frame, body)
            self.loop(node, frame, round_, over=over)
        if others or not generators:
            exact = self.exactly(others)
            if exact is not None and 2 <= len(exact) <= 12:
                self.loop(node, frame, lambda i: body(exact[i]), len(exact), over=over)
            else:
                self.loop(node, frame, lambda _: body(self.element(others)), over=over)
        unless(frame.vars, before)

    def _round_of(
        self, generator: Obj, frame: Frame, body: Callable[[Value], None], _: int
    ) -> None:
        self.generate(generator, frame, body)

    def _While(self, s: ast.While, frame: Frame) -> None:
        before = dict(frame.vars)

        def body(_: int) -> None:
            self.test(s.test, frame)
            self.block(s.body, frame)

        self.loop(s, frame, body)
        merge(frame.vars, before)
        self.block(s.orelse, frame)

    def _With(self, s: ast.With, frame: Frame) -> int:
        return self.entered(s, list(s.items), frame)

    _AsyncWith = _With

    def entered(self, s: ast.With, items: List[ast.withitem], frame: Frame) -> int:
        if not items:
            return self.block(s.body, frame)
        item, rest = items[0], items[1:]
        value = self.value(item.context_expr, frame)
        grad = self.grad
        ends: List[int] = []

        def inside(given: Value) -> None:
            if item.optional_vars is not None:
                self.bind(item.optional_vars, given, frame)
            ends.append(self.entered(s, rest, frame))

        managers = [o for o in objects(value) if o.kind == "generator"]
        if managers:
            self.generate(managers[0], frame, inside)
            return ends[-1] if ends else NEXT
        modes = [o.extra for o in objects(value) if o.kind == "gradmode"]
        if modes:
            self.grad = modes[0] if len(modes) == len(value) == 1 else None
        given, leaving = value, []
        for o in objects(value):
            if o.klass is not None:
                enter, leave = o.klass.find("__enter__"), o.klass.find("__exit__")
                if enter is not None:
                    given = self.call_method(o, enter, Args([]))
                    if self.grad is not grad and o.klass is not None:
                        modes = [self.grad]
                if leave is not None:
                    leaving.append((o, leave))
        inside(given)
        for o, leave in leaving:
            self.call_method(o, leave, Args([NONE, NONE, NONE]))
        self.grad = grad
        return ends[-1]

    def _Try(self, s: ast.Try, frame: Frame) -> int:
        end = self.block(s.body, frame)
        if end == NEXT:
            end = self.block(s.orelse, frame)
        for h in s.handlers:
            before = dict(frame.vars)
            self.conditions.append(len(self.rounds))
            if h.name:
                problem = self.node(False, label=h.name)
                problem.kind, problem.tensor = "exception", False
                frame.vars[h.name] = frozenset([problem])
            handled = self.block(h.body, frame)
            self.conditions.pop()
            if h.name:
                frame.vars.pop(h.name, None)
            if handled == STOP:
                frame.vars.clear()
                frame.vars.update(before)
            else:
                merge(frame.vars, before)
                end = NEXT
        self.block(s.finalbody, frame)
        return end

    _TryStar = _Try

    def _Match(self, s: Any, frame: Frame) -> None:
        self.value(s.subject, frame)
        self.conditions.append(len(self.rounds))
        before = dict(frame.vars)
        for case in s.cases:
            self.block(case.body, frame)
            merge(frame.vars, before)
        self.conditions.pop()

    def _Return(self, s: ast.Return, frame: Frame) -> int:
        frame.returns.append(self.value(s.value, frame) if s.value is not None else NONE)
        return STOP

    def _Raise(self, s: ast.Raise, frame: Frame) -> int:
        return STOP

    def _Break(self, s: ast.Break, frame: Frame) -> int:
        return STOP

    _Continue = _Break

    def _Assert(self, s: ast.Assert, frame: Frame) -> None:
        self.value(s.test, frame)

    def _Global(self, s: ast.Global, frame: Frame) -> None:
        for name in s.names:
            frame.outside[name] = self.globals

    def _Nonlocal(self, s: ast.Nonlocal, frame: Frame) -> None:
        for name in s.names:
            around = frame.parent
            while around is not None and name not in around.vars:
                around = around.parent
            frame.outside[name] = around or self.globals

    def _Import(self, s: ast.Import, frame: Frame) -> None:
        for a in s.names:
            name = a.asname or a.name.split(".")[0]
            full = a.name if a.asname else a.name.split(".")[0]
            frame.vars[name] = frozenset([Foreign(full)])

    def _ImportFrom(self, s: ast.ImportFrom, frame: Frame) -> None:
        for a in s.names:
            full = "%s.%s" % (s.module or "", a.name)
            frame.vars[a.asname or a.name] = frozenset([Foreign("." * s.level + full)])

    def _FunctionDef(self, s: Any, frame: Frame) -> None:
        value = self.function(s, frame)
        for d in reversed(s.decorator_list):
            value = self.library.decorated(d, value, frame, s)
        if value:
            self.home(s.name, frame).vars[s.name] = value

    _AsyncFunctionDef = _FunctionDef

    def function(self, s: Any, frame: Frame) -> Value:
        """A function object: the code, the variables around it, the defaults."""
        made = self.obj("function", getattr(s, "name", "lambda"))
        made.function, made.closure = s, frame
        a = s.args
        plain = getattr(a, "posonlyargs", []) + a.args
        defaults = {}
        for arg, default in zip(plain[len(plain) - len(a.defaults) :], a.defaults):
            defaults[arg.arg] = self.value(default, frame)
        for arg, default in zip(a.kwonlyargs, a.kw_defaults):
            if default is not None:
                defaults[arg.arg] = self.value(default, frame)
        defaults["@at"] = frame.statement
        made.extra = defaults
        made.klass = frame.klass if isinstance(frame.function, ast.ClassDef) else None
        return frozenset([made])

    def _ClassDef(self, s: ast.ClassDef, frame: Frame) -> None:
        made = Klass(s, frame)
        for b in s.bases:
            for atom in self.value(b, frame):
                if isinstance(atom, Klass):
                    made.bases.append(atom)
                elif isinstance(atom, Foreign):
                    made.library.append(atom.name)
                else:
                    made.library.append(key(b) or "?")
        inner = Frame(frame, s, self.rounds, frame.number)
        inner.klass = made
        self.frames.append(inner)
        try:
            self.block(s.body, inner)
        finally:
            self.frames.pop()
        made.attrs = inner.vars
        data = any(
            (key(d.func if isinstance(d, ast.Call) else d) or "").endswith("dataclass")
            for d in s.decorator_list
        ) or any(n.endswith("NamedTuple") for n in made.library)
        if data:
            for base in made.bases:
                made.fields += base.fields
            made.fields += [
                x.target.id
                for x in s.body
                if isinstance(x, ast.AnnAssign) and isinstance(x.target, ast.Name)
            ]
        self.home(s.name, frame).vars[s.name] = frozenset([made])

    # variables

    def home(self, name: str, frame: Frame) -> Frame:
        return frame.outside.get(name, frame)

    def look_up(self, name: str, frame: Frame) -> Value:
        at: Optional[Frame] = self.home(name, frame)
        while at is not None:
            if name in at.vars and not (isinstance(at.function, ast.ClassDef) and at is not frame):
                return at.vars[name]
            at = at.parent
        return frozenset([Foreign(name)])

    def bind(self, target: ast.AST, value: Value, frame: Frame, stays: bool = True) -> None:
        """`stays`: not the variable of a loop, which the next round sets anew."""
        if isinstance(target, ast.Name):
            home = self.home(target.id, frame)
            self._lengthened(home.vars.get(target.id, NOTHING), value)
            home.vars[target.id] = value
            if stays:
                self.assigned(home.vars, target.id, home.born, target.id)
            if len(value) == 1:
                for a in value:
                    if isinstance(a, (Obj, Node)) and (
                        not a.label or a.module and a.label[:1].isupper()
                    ):
                        a.label = target.id
        elif isinstance(target, (ast.Tuple, ast.List)):
            self.unpack(target.elts, value, frame, stays)
        elif isinstance(target, ast.Starred):
            self.bind(target.value, value, frame, stays)
        elif isinstance(target, ast.Attribute):
            for atom in self.value(target.value, frame):
                self.set_attribute(atom, target.attr, value, key(target) or target.attr)
        elif isinstance(target, ast.Subscript):
            self.set_item(target, value, frame)

    def _lengthened(self, old: Value, new: Value) -> None:
        """x = x + [y] is what x.append(y) is. x = [] drops what was in it."""
        for a in old:
            if isinstance(a, Obj) and a.last is not None and a not in new:
                self.dropped(a)
        for o in objects(new):
            if isinstance(o.owner, Obj) and o.owner in old:
                o.born = o.owner.born
                for r in self.rounds:
                    if r not in o.born:
                        r.touched[o] = None

    def unpack(self, goals: List[ast.expr], value: Value, frame: Frame, stays: bool) -> None:
        star = next((i for i, g in enumerate(goals) if isinstance(g, ast.Starred)), None)
        for i, goal in enumerate(goals):
            if i == star:
                parts = self.sequence("list", self.elements(value))
                self.bind(goal, parts, frame, stays)
            else:
                at = i if star is None or i < star else i - len(goals)
                part = self.part_of(value, at)
                if isinstance(goal, ast.Name) and COUNT.search(goal.id):
                    part = frozenset(a for a in part if not isinstance(a, Node)) or VARYING
                self.bind(goal, part, frame, stays)

    def part_of(self, value: Value, index: int) -> Value:
        """The index-th part of something that is taken apart."""
        found = NOTHING
        for atom in value:
            if isinstance(atom, Obj) and (atom.kind in SEQUENCES or atom.kind == "instance"):
                found = join(found, self.item(atom, index))
            elif isinstance(atom, Node):
                found = join(found, self.node_item(atom, index))
            elif isinstance(atom, Obj):
                found = join(found, self.element(frozenset([atom])))
        return found or NUMBER

    def set_attribute(self, atom: Atom, name: str, value: Value, label: str = "") -> None:
        if isinstance(atom, Obj):
            setter = atom.klass.find("set:" + name) if atom.klass is not None else None
            if setter is not None and atom.kind == "instance":
                self.call_method(atom, setter, Args([value]))
                return
            self._lengthened(atom.attrs.get(name, NOTHING), value)
            atom.attrs[name] = value
            atom.entries["." + name] = Put(
                value, self.where(), self.rounds, "attribute", bool(self.hooked)
            )
            self.assigned(atom.attrs, name, atom.born, label)
            for o in objects(value):
                o.label = o.label or label
        elif isinstance(atom, Node):
            if name == "requires_grad" and known(value) == Const(False):
                atom.weight = False
                if atom.owner is not None:
                    atom.owner.frozen = True
            elif name != "data" and name != "grad":
                atom.attrs[name] = value
                self.assigned(atom.attrs, name, atom.born, label)
        elif isinstance(atom, Klass):
            atom.attrs[name] = value
            self.assigned(atom.attrs, name, (), label)

    def set_item(self, target: ast.Subscript, value: Value, frame: Frame) -> None:
        index = _index(target)
        at: Any = None
        if isinstance(index, ast.Slice):
            if index.lower is None and index.upper is None:
                for o in objects(self.value(target.value, frame)):
                    self.empty(o)
                    for v in self.elements(value):
                        self.put(o, v, "store")
                return
        else:
            asked = self.value(index, frame)
            found = known(asked)
            at = found.value if found is not None and _hashable(found.value) else None
            if at is None and asked and all(isinstance(a, Number) and not a.varies for a in asked):
                at = ast.dump(index)  # a fact such as x.device: the same key in every round
            if at is None and _names_a_part(index, frame.function, self.file):
                at = ast.dump(index)  # of a layer or a parameter: replaced in the next round
        memo = at is None and _asked_before(target, frame.function)
        for atom in self.value(target.value, frame):
            if isinstance(atom, Obj):
                atom.memo = atom.memo or memo
                setter = atom.klass.find("__setitem__") if atom.klass is not None else None
                if setter is not None:
                    at_value = const(at) if at is not None else VARYING
                    self.call_method(atom, setter, Args([at_value, value]))
                elif atom.kind in SEQUENCES and at is None:
                    self._cut_inside(atom, value)
                    # x[i] = v: the length stays, but every place may get one
                    self.put(atom, value, "store")
                elif atom.kind in SEQUENCES or atom.kind in ("dict", "object", "instance"):
                    if value:
                        if at in atom.entries:  # kept[k] = kept[k] + [x]
                            self._lengthened(atom.entries[at].value, value)
                        self.put(atom, value, "store", at)
            elif isinstance(atom, Node) and isinstance(at, str):
                atom.attrs["[%r]" % at] = value
                self.assigned(atom.attrs, "[%r]" % at, atom.born, key(target) or "")
            elif isinstance(atom, Node) and atom.tensor:
                self.in_place(atom, list(nodes(value)))

    def _cut_inside(self, obj: Obj, value: Value) -> None:
        """hidden[i] = hidden[i].detach(): the one with a graph is gone."""
        cut = {c for n in held(value) for c in n.cut_from}
        if cut and cut & held(frozenset([obj])):
            obj.entries.clear()
            obj.puts.clear()

    # expressions

    def value(self, e: Any, frame: Frame) -> Value:
        self.tick()
        run = getattr(self, "_value_" + e.__class__.__name__, None)
        return run(e, frame) if run is not None else NUMBER

    def _value_Constant(self, e: ast.Constant, frame: Frame) -> Value:
        return const(e.value) if _hashable(e.value) else NUMBER

    def _value_Name(self, e: ast.Name, frame: Frame) -> Value:
        return self.look_up(e.id, frame)

    def _value_NamedExpr(self, e: Any, frame: Frame) -> Value:
        value = self.value(e.value, frame)
        self.bind(e.target, value, frame)
        return value

    def _value_Await(self, e: ast.Await, frame: Frame) -> Value:
        return self.value(e.value, frame)

    def _value_Starred(self, e: ast.Starred, frame: Frame) -> Value:
        return self.element(self.value(e.value, frame))

    def _value_Lambda(self, e: ast.Lambda, frame: Frame) -> Value:
        return self.function(e, frame)

    def _value_JoinedStr(self, e: ast.JoinedStr, frame: Frame) -> Value:
        varies = False
        for v in e.values:
            if isinstance(v, ast.FormattedValue):
                part = self.value(v.value, frame)
                varies = varies or any(
                    isinstance(a, (Node, Obj)) or isinstance(a, Number) and a.varies for a in part
                )
        return VARYING if varies else NUMBER

    def _value_Tuple(self, e: Any, frame: Frame) -> Value:
        kind = "list" if isinstance(e, ast.List) else "set" if isinstance(e, ast.Set) else "tuple"
        values: List[Value] = []
        rest = NOTHING
        for x in e.elts:
            if isinstance(x, ast.Starred):
                inner = self.value(x.value, frame)
                exact = self.exactly(inner)
                if exact is None:
                    rest = join(rest, self.element(inner))
                else:
                    values += exact
            else:
                values.append(self.value(x, frame))
        made = self.sequence(kind, values)
        if rest:
            for o in objects(made):
                self.put(o, rest, "made")
        return made

    _value_List = _value_Set = _value_Tuple

    def _value_Dict(self, e: ast.Dict, frame: Frame) -> Value:
        made = self.obj("dict")
        for k, v in zip(e.keys, e.values):
            value = self.value(v, frame)
            if k is None:
                self.library.update(made, Args([value]))
                continue
            at = known(self.value(k, frame))
            self.put(made, value, "made", at.value if at is not None else None)
        return frozenset([made])

    def _value_BinOp(self, e: ast.BinOp, frame: Frame) -> Value:
        return self.arithmetic(e.op, self.value(e.left, frame), self.value(e.right, frame))

    def arithmetic(self, op: ast.operator, left: Value, right: Value) -> Value:
        a, b = known(left), known(right)
        if a is not None and b is not None:
            return _folded(op, a.value, b.value)
        found: Set[Atom] = set()
        lists = [o for o in objects(left) + objects(right) if o.kind in SEQUENCES]
        if lists and isinstance(op, (ast.Add, ast.Mult)):
            made = self.obj(lists[0].kind)
            for o in lists if isinstance(op, ast.Add) else lists[:1]:
                for p in contents(o):
                    made.puts.append(p)
            if isinstance(op, ast.Add):
                # kept.get(name, []) + [x]: the one of the two that holds something
                first = next((o for o in objects(left) if o in lists and o.puts), lists[0])
                made.label, made.owner = first.label, first
            found.add(made)
        inputs = nodes(left) + nodes(right)
        if inputs:
            add = isinstance(op, (ast.Add, ast.Sub)) or len(nodes(left)) * len(nodes(right)) == 0
            found.add(self.derive(inputs, kind="sum" if add else ""))
        if any(isinstance(x, Number) and x.varies for x in left | right):
            found.add(Number(True))
        if not found or (any(isinstance(x, (Const, Number)) for x in left) and not inputs):
            found.add(Number())
        return frozenset(found)

    def _value_UnaryOp(self, e: ast.UnaryOp, frame: Frame) -> Value:
        if isinstance(e.op, ast.Not):
            truth, _ = self.test(e, frame)
            return NUMBER if truth is None else TRUE if truth else FALSE
        value = self.value(e.operand, frame)
        c = known(value)
        if c is not None and isinstance(e.op, ast.USub) and isinstance(c.value, (int, float)):
            return const(-c.value)
        return frozenset([self.derive(nodes(value), kind="sum")]) if nodes(value) else value

    def _value_BoolOp(self, e: ast.BoolOp, frame: Frame) -> Value:
        found = NOTHING
        for v in e.values:
            found = join(found, self.value(v, frame))
        return found

    def _value_Compare(self, e: ast.Compare, frame: Frame) -> Value:
        if len(e.ops) == 1:
            truth, _ = self._compared(e, frame)
            if truth is not None:
                return TRUE if truth else FALSE
        else:  # 0 < x < 10
            for part in e.comparators:
                self.value(part, frame)
        inputs = nodes(self.value(e.left, frame))
        if any(n.tensor for n in inputs):
            made = self.node(False)
            made.card = any(n.card for n in inputs)
            if any(n.output or n.kind == "mask" for n in inputs):
                made.kind = "mask"
            return frozenset([made])
        return NUMBER

    def _value_IfExp(self, e: ast.IfExp, frame: Frame) -> Value:
        truth, narrowed = self.test(e.test, frame)
        if truth is not None:
            return self.value(e.body if truth else e.orelse, frame)
        kept = {name: frame.vars.get(name, NOTHING) for name, _, _ in narrowed}
        for name, value, _ in narrowed:
            frame.vars[name] = value
        first = self.value(e.body, frame)
        for name, _, value in narrowed:
            frame.vars[name] = value
        second = self.value(e.orelse, frame)
        frame.vars.update(kept)
        return join(first, second)

    def _value_Attribute(self, e: ast.Attribute, frame: Frame) -> Value:
        found = NOTHING
        for atom in self.value(e.value, frame):
            found = join(found, self.attribute(atom, e.attr))
        return found or NUMBER

    def _value_Subscript(self, e: ast.Subscript, frame: Frame) -> Value:
        base = self.value(e.value, frame)
        index = _index(e)
        if isinstance(index, ast.Slice):
            for part in (index.lower, index.upper):
                if part is not None:
                    self.value(part, frame)
            return self.sliced(base, index)
        at = self.value(index, frame)
        return self.subscript(base, at)

    def _value_Yield(self, e: ast.Yield, frame: Frame) -> Value:
        value = self.value(e.value, frame) if e.value is not None else NONE
        at: Optional[Frame] = frame
        while at is not None and at.on_yield is None:
            at = at.parent if at.function is frame.function else None
        if at is not None and at.on_yield is not None:
            at.on_yield(value)
        return self.opaque()

    def _value_YieldFrom(self, e: ast.YieldFrom, frame: Frame) -> Value:
        value = self.value(e.value, frame)
        if frame.on_yield is not None:
            self.iterate(e, value, frame, frame.on_yield)
        return self.opaque()

    def _value_ListComp(self, e: Any, frame: Frame) -> Value:
        kind = "set" if isinstance(e, ast.SetComp) else "list"
        made = self.obj(kind)
        self._comprehend(e, frame, lambda f: self.put(made, self.value(e.elt, f), "append"))
        return frozenset([made])

    _value_SetComp = _value_GeneratorExp = _value_ListComp

    def _value_DictComp(self, e: ast.DictComp, frame: Frame) -> Value:
        made = self.obj("dict")

        def store(f: Frame) -> None:
            at = known(self.value(e.key, f))
            self.put(made, self.value(e.value, f), "store", at.value if at is not None else None)

        self._comprehend(e, frame, store)
        return frozenset([made])

    def _comprehend(self, e: Any, frame: Frame, body: Callable[[Frame], None]) -> None:
        inner = Frame(frame, frame.function, frame.born, frame.number)
        inner.outside, inner.klass, inner.receiver = frame.outside, frame.klass, frame.receiver
        inner.statement = frame.statement

        def level(i: int) -> None:
            if i == len(e.generators):
                body(inner)
                return
            g = e.generators[i]
            over = self.value(g.iter, inner)

            def one(value: Value) -> None:
                self.bind(g.target, value, inner, False)
                for test in g.ifs:
                    if self.test(test, inner)[0] is False:
                        return
                level(i + 1)

            self.iterate(e, over, inner, one)

        level(0)

    # conditions

    def test(self, e: Any, frame: Frame) -> Tuple[Optional[bool], List[Tuple[str, Value, Value]]]:
        """Is a condition known to hold or not to? And what a variable is where it holds, and where
        it does not.
        """
        if isinstance(e, ast.UnaryOp) and isinstance(e.op, ast.Not):
            truth, narrowed = self.test(e.operand, frame)
            return (None if truth is None else not truth), [(n, b, a) for n, a, b in narrowed]
        if isinstance(e, ast.BoolOp):
            answers = [self.test(v, frame) for v in e.values]
            every = isinstance(e.op, ast.And)
            if any(t is (not every) for t, _ in answers):
                return not every, []
            if all(t is every for t, _ in answers):
                return every, []
            first = [x for _, some in answers for x in some]
            if every:  # where it does not hold, any part may be at fault
                return None, [(n, a, frame.vars.get(n, a)) for n, a, _ in first]
            return None, []
        if isinstance(e, ast.Compare) and len(e.ops) == 1:
            return self._compared(e, frame)
        if isinstance(e, ast.Call):
            asked = self._asked(e, frame)
            if asked is not None:
                return asked
        value = self.value(e, frame)
        return _truth(value), []

    def _compared(
        self, e: ast.Compare, frame: Frame
    ) -> Tuple[Optional[bool], List[Tuple[str, Value, Value]]]:
        left, right = self.value(e.left, frame), self.value(e.comparators[0], frame)
        op = e.ops[0]
        a, b = known(left), known(right)
        if isinstance(op, (ast.Is, ast.IsNot)) and b is not None and b.value is None:
            is_none = {_is_none(atom) for atom in left}
            truth = is_none.pop() if len(is_none) == 1 else None
            yes = frozenset(x for x in left if _is_none(x) is not False)
            no = frozenset(x for x in left if _is_none(x) is not True)
            positive = isinstance(op, ast.Is)
            narrowed = []
            if isinstance(e.left, ast.Name) and truth is None and e.left.id in frame.vars:
                narrowed = [(e.left.id, yes, no) if positive else (e.left.id, no, yes)]
            return (truth if positive or truth is None else not truth), narrowed
        if a is not None and b is not None and isinstance(op, (ast.Eq, ast.NotEq)):
            same = a == b
            return (same if isinstance(op, ast.Eq) else not same), []
        return None, []

    def _asked(
        self, e: ast.Call, frame: Frame
    ) -> Optional[Tuple[Optional[bool], List[Tuple[str, Value, Value]]]]:
        """isinstance(x, torch.Tensor), torch.is_tensor(x), hasattr(x, "item")"""
        name = (self.file.dotted(e.func) or "").split(".")[-1]
        if name not in ("isinstance", "is_tensor", "hasattr", "callable") or not e.args:
            return None
        value = self.value(e.args[0], frame)
        if name == "is_tensor":
            check = _is_tensor
        elif name == "hasattr" and len(e.args) == 2:
            asked = e.args[1].value if isinstance(e.args[1], ast.Constant) else ""
            if asked in ("item", "detach", "cpu", "backward", "numpy", "grad_fn", "requires_grad"):
                check = _is_tensor
            else:
                check = lambda a: _has(a, str(asked))
        elif name == "isinstance" and len(e.args) == 2:
            kinds = self.value(e.args[1], frame)
            kinds = join(kinds, *self.elements(kinds)) if objects(kinds) else kinds
            check = lambda a: _is_a(a, kinds)
        else:
            return None
        answers = {check(a) for a in value}
        truth = answers.pop() if len(answers) == 1 else None
        narrowed = []
        if truth is None and isinstance(e.args[0], ast.Name) and e.args[0].id in frame.vars:
            yes = frozenset(a for a in value if check(a) is not False)
            no = frozenset(a for a in value if check(a) is not True)
            narrowed = [(e.args[0].id, yes, no)]
        return truth, narrowed

    # reading

    def attribute(self, atom: Atom, name: str) -> Value:
        if isinstance(atom, Foreign):
            return frozenset([Foreign(atom.name + "." + name)])
        if isinstance(atom, Klass):
            return atom.find(name) or self.opaque(label=name)
        if isinstance(atom, Node):
            return self.library.node_attribute(atom, name)
        if isinstance(atom, Obj):
            return self.object_attribute(atom, name)
        return NUMBER

    def object_attribute(self, obj: Obj, name: str) -> Value:
        if name in obj.attrs:
            return obj.attrs[name]
        found = obj.klass.find(name) if obj.klass is not None and obj.kind == "instance" else None
        if found is not None:
            bound = NOTHING
            for a in found:
                if isinstance(a, Obj) and a.kind in ("function", "partial"):
                    if a.extra and a.extra.get("@property"):
                        bound = join(bound, self.call_method(obj, frozenset([a]), Args([])))
                    else:
                        bound = join(bound, frozenset([self.bound(obj, a)]))
                else:
                    bound = join(bound, frozenset([a]))
            return bound
        return self.library.object_attribute(obj, name)

    def bound(self, obj: Optional[Obj], function: Obj) -> Obj:
        made = self.obj("bound", function.label)
        made.function, made.receiver = function, obj
        return made

    def item(self, obj: Obj, at: Any) -> Value:
        """obj[at] where `at` is a constant."""
        if obj.kind == "instance" and obj.klass is not None and obj.klass.fields:
            if isinstance(at, int) and -len(obj.klass.fields) <= at < len(obj.klass.fields):
                return self.taken(obj, obj.attrs.get(obj.klass.fields[at], NUMBER))
        if obj.kind in SEQUENCES and isinstance(at, int) and at < 0:
            if obj.puts:
                return self.taken(obj, obj.puts[-1].value)
            at = len(obj.entries) + at
        if at in obj.entries and not (obj.kind in SEQUENCES and obj.puts and obj.kind != "tuple"):
            return self.taken(obj, obj.entries[at].value)
        found = NOTHING
        if obj.kind in SEQUENCES:
            found = join(NOTHING, *[p.value for p in contents(obj)])
        elif obj.puts:
            found = join(NOTHING, *[p.value for p in obj.puts])
        if not found and obj.kind == "dict" and obj.extra is not None:
            return self.library.missing(obj, at)
        return self.taken(obj, found) if found else NOTHING

    def taken(self, obj: Obj, value: Value) -> Value:
        """What comes out of a container: tensors remember which one."""
        if not any(isinstance(a, Node) and a.graph is not False for a in value):
            return value
        return frozenset(
            self.alias(a, via=obj)
            if isinstance(a, Node) and a.graph is not False and not a.module
            else a
            for a in value
        )

    def node_item(self, n: Node, at: Any) -> Value:
        name = "[%r]" % (at,)
        if name not in n.attrs:
            if n.kind == "checkpoint" and isinstance(at, str) and not _STATES.search(at):
                n.attrs[name] = NUMBER  # the epoch, the best score, the arguments
            elif n.kind == "pair" and at == 1:
                n.attrs[name] = frozenset([self.node(False)])
            elif n.kind == "losses" and (
                isinstance(at, int) and at > 0 or isinstance(at, str) and "loss" not in at
            ):
                # loss, count = criterion(...): what comes behind the loss may be a number
                n.attrs[name] = self.opaque([frozenset([n])])
            else:
                made = self.alias(n, at if isinstance(at, str) else "")
                # out, accuracy = model(x), of a model that is not known: the second may be a number
                made.doubtful = (
                    n.doubtful
                    or isinstance(at, int)
                    and at > 0
                    and n.output
                    or isinstance(at, str)  # stats["accuracy"], of code that is not known
                    and not n.output
                    and "loss" not in at
                )
                made.label = at if isinstance(at, str) else ""
                made.whole = n.whole if isinstance(at, str) else ""
                if isinstance(at, str) and "loss" in at:
                    made.scalar = True
                n.attrs[name] = frozenset([made])
        return n.attrs[name]

    def subscript(self, base: Value, at: Value) -> Value:
        found = NOTHING
        c = known(at)
        for atom in base:
            if isinstance(atom, Obj) and atom.klass is not None and atom.kind == "instance":
                getter = atom.klass.find("__getitem__")
                if getter is not None:
                    found = join(found, self.call_method(atom, getter, Args([at])))
                    continue
            if isinstance(atom, Obj):
                if c is not None and _hashable(c.value):
                    found = join(found, self.item(atom, c.value))
                elif atom.kind == "dict" and atom.extra is not None and not atom.puts:
                    found = join(found, self.library.missing(atom, None))
                else:
                    found = join(found, self.element(frozenset([atom]), values=True))
            elif isinstance(atom, Node):
                if c is not None and _hashable(c.value):
                    found = join(found, self.node_item(atom, c.value))
                else:
                    found = join(found, frozenset([self._batch_of(atom)]))
            elif isinstance(atom, Foreign):
                found = join(found, frozenset([atom]))  # List[int]
        return found or NUMBER

    def sliced(self, base: Value, index: ast.Slice) -> Value:
        found = NOTHING
        for atom in base:
            if isinstance(atom, Obj) and atom.kind in SEQUENCES:
                made = self.obj("list", atom.label)
                everything = list(contents(atom))
                bounded = index.lower is not None or index.upper is not None
                made.puts = everything[-1:] if bounded else everything
                found = join(found, frozenset([made]))
            elif isinstance(atom, Node):
                found = join(found, frozenset([self._batch_of(atom)]))
            else:
                found = join(found, frozenset([atom]))
        return found or NUMBER

    def _batch_of(self, n: Node) -> Node:
        """x[i : i + 64], x[rows]"""
        made = self.alias(n)
        made.whole = ""
        if self.rounds and n.whole:
            todo = [n]
            while todo:
                at = todo.pop()
                at.batched = True
                todo.extend(i for i in at.inputs if i.whole and not i.batched)
        return made

    def exactly(self, value: Value) -> Optional[List[Value]]:
        """The elements in order, where they are all known."""
        if len(value) != 1:
            return None
        for atom in value:
            if not isinstance(atom, Obj):
                return None
            if atom.kind in ("list", "tuple") and not atom.puts:
                return [self.taken(atom, atom.entries[i].value) for i in sorted_ints(atom.entries)]
            if atom.kind == "iter":
                return self.library.exactly(atom)
        return None

    def elements(self, value: Value) -> List[Value]:
        """What iterating gives, one by one where that is known."""
        exact = self.exactly(value)
        if exact is not None:
            return exact
        if any(o.kind == "generator" for o in objects(value)):
            made = self.obj("list")
            for o in objects(value):
                if o.kind == "generator":
                    frame = self.frames[-1] if self.frames else self.globals
                    self.generate(o, frame, lambda v: self.put(made, v, "append"))
            return [p.value for p in contents(made)]
        return [self.element(value)]

    def element(self, value: Value, values: bool = False) -> Value:
        """Any one of the elements of a value; of a dict its keys, or its values."""
        found = NOTHING
        for atom in value:
            if isinstance(atom, Obj):
                if atom.kind == "dict" and not values:
                    found = join(found, NUMBER)
                elif atom.kind in SEQUENCES or atom.kind == "dict":
                    for p in contents(atom):
                        found = join(found, self.taken(atom, p.value))
                elif atom.kind == "iter":
                    found = join(found, self.library.element(atom))
                else:
                    found = join(found, self.library.element_of(atom))
            elif isinstance(atom, Node):
                made = self.alias(atom)
                made.whole = ""
                if not atom.tensor:
                    made.born = self.rounds  # another one in every round
                    made.data = atom.graph is None and not any(i.graph for i in atom.inputs)
                found = join(found, frozenset([made]))
            elif isinstance(atom, Foreign):
                made = self.node(None, label=atom.name.split(".")[-1])
                made.data = True
                found = join(found, frozenset([made]))
        return found or self.opaque()

    # calls

    def _value_Call(self, e: ast.Call, frame: Frame) -> Value:
        self.frames[-1].statement = self.frames[-1].statement or e
        args = self.arguments(e, frame)
        if isinstance(e.func, ast.Attribute):
            if isinstance(e.func.value, ast.Call) and key(e.func.value.func) == "super":
                return self._super(e.func.attr, args, frame)
            receiver = self.value(e.func.value, frame)
            found = NOTHING
            for atom in receiver:
                found = join(found, self.library.method(atom, e.func.attr, args, e))
            return found or NUMBER
        return self.call(self.value(e.func, frame), args, e)

    def arguments(self, e: ast.Call, frame: Frame) -> Args:
        args = Args([])
        for a in e.args:
            if isinstance(a, ast.Starred):
                value = self.value(a.value, frame)
                exact = self.exactly(value)
                if exact is not None and not args.rest:
                    args.pos += exact
                else:
                    args.rest = join(args.rest, *self.elements(value))
            else:
                args.pos.append(self.value(a, frame))
        for k in e.keywords:
            value = self.value(k.value, frame)
            if k.arg:
                args.kw[k.arg] = value
                continue
            for atom in value:
                if isinstance(atom, Obj) and atom.kind == "dict":
                    for at, p in atom.entries.items():
                        if isinstance(at, str):
                            args.kw[at] = self.taken(atom, p.value)
                    for p in atom.puts:
                        args.rest = join(args.rest, self.taken(atom, p.value))
                elif isinstance(atom, Node):
                    args.rest = join(args.rest, frozenset([self.alias(atom)]))
        return args

    def _super(self, name: str, args: Args, frame: Frame) -> Value:
        at: Optional[Frame] = frame
        while at is not None and at.klass is None:
            at = at.parent
        if at is None or at.klass is None:
            return self.opaque(args.all())
        for base in at.klass.bases:
            found = base.find(name)
            if found is not None and at.receiver is not None:
                return self.call_method(at.receiver, found, args)
        if name in ("forward", "__call__") and at.receiver is not None:
            return self.library.forward(at.receiver, args)
        if name == "__init__" and at.receiver is not None:
            for given, value in args.kw.items():  # most constructors keep what they are given
                at.receiver.attrs.setdefault(given, value)
        return self.opaque(args.all())

    def call_method(self, obj: Obj, method: Value, args: Args) -> Value:
        found = NOTHING
        for a in method:
            if isinstance(a, Obj) and a.kind == "function":
                found = join(found, self.call_function(a, args, obj))
            elif isinstance(a, Obj):
                found = join(found, self.call(frozenset([a]), args, None))
        return found or NUMBER

    def call(self, callee: Value, args: Args, e: Optional[ast.Call]) -> Value:
        found = NOTHING
        name = key(e.func) if e is not None else None
        for atom in sorted(callee, key=lambda a: isinstance(a, Obj), reverse=True)[:4]:
            found = join(found, self.call_atom(atom, args, e, name or ""))
        return found or NUMBER

    def call_atom(self, atom: Atom, args: Args, e: Optional[ast.Call], name: str) -> Value:
        self.tick()
        if isinstance(atom, Foreign):
            return self.library.call(atom.name, args, e)
        if isinstance(atom, Klass):
            return self.instance(atom, args)
        if isinstance(atom, Node):
            return self.library.call_node(atom, args, name)
        if not isinstance(atom, Obj):
            return self.opaque(args.all())
        if atom.kind == "function":
            return self.call_function(atom, args, None)
        if atom.kind == "bound":
            return self.call_function(atom.function, args, atom.receiver)
        if atom.kind == "method":  # add = losses.append
            return self.library.method(atom.receiver, atom.label, args, e)
        if atom.kind == "partial":
            inner, given = atom.extra
            more = Args(given.pos + args.pos, dict(given.kw, **args.kw))
            more.rest = join(given.rest, args.rest)
            return self.call(inner, more, e)
        if atom.module:
            return self.library.forward(atom, args)
        if atom.klass is not None:
            found = atom.klass.find("__call__")
            if found is not None:
                return self.call_method(atom, found, args)
        return self.library.call_object(atom, args, name)

    def instance(self, klass: Klass, args: Args) -> Value:
        made = self.obj("instance")
        made.klass = klass
        made.module = klass.comes_from(("Module", "PreTrainedModel", "Model")) or any(
            n.startswith("torch.nn.") for n in klass.library
        )
        if any(n.startswith(("keras", "tensorflow")) for n in klass.library):
            made.module = False
        if made.module:
            made.training = True
        if klass.fields:
            for i, name in enumerate(klass.fields):
                value = args.get(i, name) or klass.attrs.get(name, NOTHING)
                value = self.library.default_field(value)
                made.attrs[name] = value
                made.entries["." + name] = Put(
                    value, self.where(), self.rounds, "field", bool(self.hooked)
                )
            begin = klass.find("__post_init__")
            if begin is not None:
                self.call_method(made, begin, Args([]))
            return frozenset([made])
        begin = klass.find("__init__")
        if begin is not None:
            self.call_method(made, begin, args)
        else:
            self.library.inherited_init(made, args)
        return frozenset([made])

    def call_function(self, f: Obj, args: Args, receiver: Optional[Obj]) -> Value:
        s = f.function
        self.tick()
        if f.kind != "function" or s is None:
            return self.call(frozenset([f]), args, None)
        if (
            len(self.frames) > DEEPEST
            or sum(1 for x in self.frames if x.function is s) >= 2
            or self.steps > self.limit * 0.9
        ):
            return self.opaque(args.all())
        self.ran.add(s)
        extra = f.extra or {}
        self.library.called(f, args)
        if receiver is None and f.klass is not None and not extra.get("@static"):
            if args.pos:  # Base.step(self, x)
                first = objects(args.pos[0])
                receiver = first[0] if first else None
                args = Args(args.pos[1:], args.kw) if receiver is not None else args
        self.calls += 1
        frame = Frame(f.closure, s, self.rounds, self.calls)
        frame.klass, frame.receiver = f.klass, receiver
        self.give(s, frame, args, extra, receiver, f)
        if isinstance(s, ast.Lambda):
            return self._in_frame(frame, extra, lambda: self.value(s.body, frame))
        if yields(s):
            made = self.obj("generator", s.name)
            made.function, made.closure, made.extra = f, frame, extra
            return frozenset([made])
        result = self._in_frame(frame, extra, lambda: self._body(s, frame))
        if extra.get("@cached") is not None:
            self.put(extra["@cached"], result, "cache")
        return result

    def _body(self, s: Any, frame: Frame) -> Value:
        end = self.block(s.body, frame)
        if not frame.returns:
            return NONE
        return join(*(frame.returns + ([NONE] if end == NEXT else [])))

    def _in_frame(self, frame: Frame, extra: Dict[str, Any], run: Callable[[], Value]) -> Value:
        grad, self.grad = self.grad, (False if extra.get("@no_grad") else self.grad)
        frame.statement = frame.function if isinstance(frame.function, FUNCTIONS) else None
        if frame.statement is None and self.frames:
            frame.statement = extra.get("@at") or self.frames[-1].statement
        self.frames.append(frame)
        try:
            return run()
        finally:
            self.frames.pop()
            self.grad = grad

    def give(
        self, s: Any, frame: Frame, args: Args, extra: Dict[str, Any], receiver: Any, f: Obj
    ) -> None:
        """Binds arguments to parameters."""
        a = s.args
        plain = [x.arg for x in getattr(a, "posonlyargs", []) + a.args]
        method = f.klass is not None and not extra.get("@static")
        if (receiver is not None or method) and plain and not extra.get("@static"):
            if receiver is not None:
                frame.vars[plain[0]] = frozenset([receiver])
            elif f.klass is not None:
                frame.vars[plain[0]] = frozenset([f.klass])
            plain = plain[1:]
        given = dict(zip(plain, args.pos))
        names = set(plain) | {x.arg for x in a.kwonlyargs}
        more: Dict[str, Value] = {}
        for name, value in args.kw.items():
            (given if name in names else more)[name] = value
        for name in list(plain) + [x.arg for x in a.kwonlyargs]:
            if name in given:
                frame.vars[name] = given[name]
            elif args.rest:
                frame.vars[name] = args.rest
            elif name in extra:
                frame.vars[name] = extra[name]
            else:
                of_class = self._of_class(a, name) if len(self.frames) < FEW_CALLS else NOTHING
                frame.vars[name] = of_class or self.library.parameter(name)
        if a.vararg:
            rest = self.sequence("tuple", args.pos[len(plain) :])
            if args.rest:
                for o in objects(rest):
                    self.put(o, args.rest, "made")
            frame.vars[a.vararg.arg] = rest
        if a.kwarg:
            d = self.obj("dict")
            for name, value in more.items():
                self.put(d, value, "made", name)
            if args.rest:
                self.put(d, args.rest, "made")
            frame.vars[a.kwarg.arg] = frozenset([d])

    def _of_class(self, arguments: ast.arguments, name: str) -> Value:
        """agent of def play(env, agent), agent: Agent: an object of the class that is named so, if
        it is an ordinary one. Modules and datasets have their own ways.
        """
        asked = [x for x in arguments.args + arguments.kwonlyargs if x.arg == name]
        written = key(asked[0].annotation) if asked and asked[0].annotation is not None else None
        plain = name.replace("_", "").lower()
        for label, value in self.globals.vars.items():
            if label != written and (written or label.lower() != plain):
                continue
            for klass in value:
                if isinstance(klass, Klass) and not klass.comes_from(
                    ("Module", "Model", "Dataset")
                ):
                    own = {o.function for v in klass.attrs.values() for o in objects(v)}
                    if not any(f.function in own for f in self.frames if f.function is not None):
                        return self._made_up(klass)
        return NOTHING

    def _made_up(self, klass: Klass) -> Value:
        """An object that nobody here makes. Two classes may ask for each other."""
        if self.making >= FEW_CALLS:
            return NOTHING
        self.making += 1
        try:
            return self.instance(klass, Args([]))
        finally:
            self.making -= 1

    def generate(self, g: Obj, frame: Frame, body: Callable[[Value], None]) -> None:
        """Runs a generator; the body runs where it yields, in the frame it stands in."""
        inner: Frame = g.closure
        s = g.function.function
        if len(self.frames) > DEEPEST + 4 or sum(1 for x in self.frames if x.function is s) >= 2:
            body(self.opaque())
            return
        before = inner.vars.copy()

        def yielded(value: Value) -> None:
            grad = self.grad
            self.frames.append(frame)
            try:
                body(value)
            finally:
                self.frames.pop()
                self.grad = grad

        outer, inner.on_yield = inner.on_yield, yielded
        self._in_frame(inner, g.extra or {}, lambda: self._body(s, inner))
        inner.on_yield = outer
        inner.vars.clear()
        inner.vars.update(before)


def unless(into: Dict[str, Value], before: Dict[str, Value]) -> None:
    """Behind a loop, which is taken to run: what it did not set is as it was."""
    for name, value in before.items():
        into.setdefault(name, value)


def merge(into: Dict[str, Value], other: Dict[str, Value]) -> None:
    """Both ways lead here."""
    for name, value in other.items():
        mine = into.get(name)
        if mine is None:
            into[name] = value
        elif mine is not value and mine != value:
            into[name] = join(mine, value)


def _closes(s: ast.If) -> Dict[ast.If, Set[str]]:
    """if kind == "a": out = f() elif kind == "b": out = g(): the cases of one value are all there
    are, though no else says so. For each condition of the chain the names that are set whichever
    case it is; none where the chain has an else or asks for different things.
    """
    chain, subjects = [s], {_subject(s.test)}
    while len(chain[-1].orelse) == 1 and isinstance(chain[-1].orelse[0], ast.If):
        chain.append(chain[-1].orelse[0])
        subjects.add(_subject(chain[-1].test))
    found: Dict[ast.If, Set[str]] = {c: set() for c in chain}
    if len(chain) > 1 and not chain[-1].orelse and len(subjects) == 1 and subjects != {None}:
        found[chain[-1]] = set.intersection(*[_set_in(c.body) for c in chain])
    return found


def _subject(test: ast.expr) -> Optional[str]:
    """kind of kind == "a", kind in ("a", "b"), isinstance(kind, A) and of an `or` of these"""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or):
        asked = {_subject(v) for v in test.values}
        return asked.pop() if len(asked) == 1 else None
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        if isinstance(test.ops[0], (ast.Eq, ast.In, ast.Is)):
            return text(test.left)
    if isinstance(test, ast.Call) and key(test.func) == "isinstance" and test.args:
        return text(test.args[0])
    return None


def _set_in(body: List[ast.stmt]) -> Set[str]:
    """Names that these statements set, whatever happens in them."""
    return {
        n.id
        for s in body
        if isinstance(s, ast.Assign)
        for t in s.targets
        for n in walk(t)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }


def held_with_via(value: Value) -> List[Node]:
    """The tensors of a value; those inside containers remember which."""
    found: List[Node] = []
    for atom in value:
        if isinstance(atom, Node):
            found.append(atom)
        elif isinstance(atom, Obj) and atom.kind in SEQUENCES + ("dict", "instance"):
            inside = list(held(frozenset([atom])))
            if inside:
                live = [n for n in inside if n.graph is not False]
                made = Node(inside[0].born, inside[0].where, False, tuple(live[:30]))
                made.graph = True if any(n.graph for n in live) else None if live else False
                made.data = all(n.data for n in inside)
                made.whole = next((n.whole for n in inside if n.whole), "")
                made.kind, made.via = "alias", frozenset([atom])
                made.tensor = any(n.tensor for n in inside)
                made.card = any(n.card for n in inside)
                made.output = any(n.output for n in inside)
                found.append(made)
    return found


def yields(s: Any) -> bool:
    found = getattr(s, "_yields", None)
    if found is None:
        found = any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in walk_here(s))
        s._yields = found
    return found


def sorted_ints(entries: Dict[Any, Any]) -> Iterator[int]:
    return iter(sorted(k for k in entries if isinstance(k, int)))


def _loaded(target: ast.expr) -> ast.expr:
    if isinstance(target, ast.Name):
        return ast.Name(id=target.id, ctx=ast.Load())
    if isinstance(target, ast.Attribute):
        return ast.Attribute(value=target.value, attr=target.attr, ctx=ast.Load())
    if isinstance(target, ast.Subscript):
        return ast.Subscript(value=target.value, slice=target.slice, ctx=ast.Load())
    return target


_OF_A_MODEL = re.compile(
    r"(state_dict|parameters|named_\w+|modules|children|buffers|layers|blocks|stages|encoders?|"
    r"decoders?|heads|convs|norms)$"
)


def _names_a_part(index: ast.AST, function: Any, file: Any) -> bool:
    """shadow[name] = ..., where name goes through the parameters: there are as many keys as
    parameters, and every round has the same.
    """
    names = {n.id for n in walk(index) if isinstance(n, ast.Name)}
    if not names or function is None or isinstance(function, ast.Lambda):
        return False
    bound = {}
    for loop in walk(function):
        if isinstance(loop, ast.For):
            for t in walk(loop.target):
                if isinstance(t, ast.Name):
                    bound[t.id] = loop
    return all(n in bound and _goes_through_parts(bound[n], file) for n in names)


def _goes_through_parts(loop: ast.For, file: Any) -> bool:
    return few_rounds(loop, file) or any(
        _OF_A_MODEL.search((key(n) or getattr(n, "attr", "") or "").split(".")[-1])
        for n in walk(loop.iter)
        if isinstance(n, (ast.Name, ast.Attribute))
    )


def _asked_before(target: ast.Subscript, function: Any) -> bool:
    """if k not in cache: cache[k] = ...: what is in it stays, and more comes"""
    if function is None:
        return False
    asked = getattr(function, "_asked", None)
    if asked is None:  # kept on the node: a long function stores thousands of times
        asked = function._asked = {
            key(n.comparators[0])
            for n in walk(function)
            if isinstance(n, ast.Compare) and isinstance(n.ops[0], (ast.In, ast.NotIn))
        }
    return key(target.value) in asked - {None}


def _index(e: ast.Subscript) -> Any:
    index = e.slice
    return getattr(index, "value", index) if index.__class__.__name__ == "Index" else index


def _hashable(value: Any) -> bool:
    return isinstance(value, (int, float, str, bool, bytes, type(None))) and value == value


def _folded(op: ast.operator, a: Any, b: Any) -> Value:
    numbers = isinstance(a, (int, float)) and isinstance(b, (int, float))
    if numbers and abs(a) < 1e9 and abs(b) < 1e9:
        if isinstance(op, ast.Add):
            return const(a + b)
        if isinstance(op, ast.Sub):
            return const(a - b)
        if isinstance(op, ast.Mult):
            return const(a * b)
    return NUMBER


def _truth(value: Value) -> Optional[bool]:
    answers = set()
    for a in value:
        if isinstance(a, Const):
            answers.add(bool(a.value))
        elif isinstance(a, Obj) and a.kind in ("function", "bound", "instance", "module"):
            answers.add(True)
        else:
            return None
    return answers.pop() if len(answers) == 1 else None


def _is_none(a: Atom) -> Optional[bool]:
    if isinstance(a, Const):
        return a.value is None
    if isinstance(a, Node):
        return False if a.tensor else None
    return False


def _is_tensor(a: Atom) -> Optional[bool]:
    if isinstance(a, Node):
        return True if a.tensor else None
    return False


def _has(a: Atom, name: str) -> Optional[bool]:
    if isinstance(a, Obj) and a.kind == "instance" and a.klass is not None:
        if name in a.attrs or a.klass.find(name) is not None:
            return True
        return None if a.klass.library else False
    return None


def _is_a(a: Atom, kinds: Value) -> Optional[bool]:
    names = {k.name.split(".")[-1] for k in kinds if isinstance(k, Foreign)}
    own = [k for k in kinds if isinstance(k, Klass)]
    if isinstance(a, Node):
        if not a.tensor:
            return None
        if names & {"Tensor", "Variable", "Parameter"}:
            return True
        return False if names and not own else None
    if isinstance(a, (Number, Const)):
        if isinstance(a, Const) and a.value is None:
            return False
        if names & {"Tensor", "Variable"} and not names & {"int", "float", "str", "Number"}:
            return False
        return None
    if isinstance(a, Obj):
        if a.kind in ("list", "tuple", "dict", "set"):
            if a.kind in names:
                return True
            return False if names <= {"list", "tuple", "dict", "set", "Tensor", "str"} else None
        if a.kind == "instance" and own and a.klass is not None:
            return True if _derives(a.klass, own) else None
        if names == {"Tensor"}:
            return False
    return None


def _derives(klass: Klass, own: List[Klass], depth: int = 6) -> bool:
    return klass in own or depth > 0 and any(_derives(b, own, depth - 1) for b in klass.bases)


__all__ = ["Args", "Frame", "Machine", "Story", "LOOPS"]
