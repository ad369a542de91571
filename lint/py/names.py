"""What the names in a file stand for, and in which loops, conditions and grad modes each statement
stands.
"""

import ast
import re
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple, TypeVar, Union

Answer = TypeVar("Answer")
Function = Union[ast.FunctionDef, ast.AsyncFunctionDef]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Loop = Union[ast.For, ast.AsyncFor, ast.While]
LOOPS = (ast.For, ast.AsyncFor, ast.While)
NO_GRAD = (
    "torch.no_grad",
    "torch.inference_mode",
    "torch.autograd.no_grad",
    "torch.set_grad_enabled",
    "torch.autograd.set_grad_enabled",
    "torch.autograd.grad_mode.no_grad",
)


# no_grad, smart_inference_mode, and contexts that take the gradients from the weights
QUIET = re.compile(r"no_?(param\w*?_?)?grad|inference_mode|without_grad|frozen|freeze(_|$)", re.I)


def once(ask: Callable[[Any], Answer]) -> Callable[[Any], Answer]:
    """A function of a file, a scope or a node whose answer is kept with what it was asked about."""
    name = "_%s.%s" % (ask.__module__, ask.__name__)

    def answer(of: Any) -> Answer:
        kept = vars(of)
        if name not in kept:
            kept[name] = ask(of)
        found: Answer = kept[name]
        return found

    return answer


class Place:
    """Where a statement stands inside its function."""

    __slots__ = ("loops", "ifs", "no_grad", "steered", "handler", "function", "klass")

    def __init__(
        self, function: Optional[Function] = None, klass: Optional[ast.ClassDef] = None
    ) -> None:
        self.loops: Tuple[Loop, ...] = ()
        self.ifs: Tuple[ast.stmt, ...] = ()
        self.no_grad = self.handler = False
        self.steered = False  # set_grad_enabled(training): off in one phase, on in another
        self.function, self.klass = function, klass

    def inside(self, **changes: Any) -> "Place":
        new = Place(self.function, self.klass)
        new.loops, new.ifs, new.no_grad, new.handler = (
            self.loops,
            self.ifs,
            self.no_grad,
            self.handler,
        )
        new.steered = self.steered
        for key, value in changes.items():
            setattr(new, key, value)
        return new


class File:
    """The tree with what every rule asks for."""

    def __init__(self, tree: ast.Module, path: str = "") -> None:
        self.tree = tree
        self.path = path
        self.nodes = list(walk(tree))
        self.aliases: Dict[str, str] = {}
        self.places: Dict[ast.AST, Place] = {}  # by statement
        self.statements: List[ast.stmt] = []  # in order
        self.functions: Dict[str, Function] = {}  # methods among them
        self.plain_functions: Dict[str, Function] = {}  # those outside classes
        self.methods: Dict[Tuple[str, str], Function] = {}  # by class and name
        self.classes: Dict[str, ast.ClassDef] = {}
        self._quiet: Optional[Set[str]] = None  # variables that are no_grad(), once asked for
        # Filled when somebody asks: by variable, the call or class that it is made by.
        self._makers: Optional[Dict[Optional[str], str]] = None
        self._classes: Optional[Dict[Optional[str], str]] = None
        self._elements: Dict[Optional[str], str] = {}
        self._imports()
        self._walk(tree.body, Place())
        self.modules = set(a.split(".")[0] for a in self.aliases.values())

    # names

    def _imports(self) -> None:
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for a in node.names:
                    self.aliases[a.asname or a.name.split(".")[0]] = (
                        a.name if a.asname else a.name.split(".")[0]
                    )
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for a in node.names:
                    self.aliases[a.asname or a.name] = node.module + "." + a.name

    def dotted(self, node: ast.expr) -> Optional[str]:
        """The full name of `a.b.c` with imports resolved, or None: nn.Linear -> torch.nn.Linear."""
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        parts.append(self.aliases.get(node.id, node.id))
        return ".".join(reversed(parts))

    @property
    def uses_torch(self) -> bool:
        """Is this PyTorch code? A fragment without imports may be."""
        return "torch" in self.modules or not self.modules & {
            "tensorflow",
            "keras",
            "jax",
            "mxnet",
            "paddle",
            "mindspore",
            "chainer",
        }

    def class_of(self, variable: Optional[str]) -> Optional[str]:
        """The class of this file that a variable is made from, or None."""
        return self._made().get(variable)

    def made_from(self, variable: Optional[str]) -> Optional[str]:
        """The full name of what a variable is made by, wherever that is defined, or None."""
        if self._makers is None:
            makers: Dict[Optional[str], str] = {}
            for node in self.nodes:
                if isinstance(node, ast.Assign):
                    for t, value in pairs(node):
                        made_by = self.callee(value) if key(t) else None
                        if made_by:
                            makers.setdefault(key(t), made_by)
            self._makers = makers
        return self._makers.get(variable)

    def element_class_of(self, variable: Optional[str]) -> Optional[str]:
        """The class of this file that a list's or dict's values are made from, or None."""
        self._made()
        return self._elements.get(variable)

    def _made(self) -> Dict[Optional[str], str]:
        if self._classes is not None:
            return self._classes
        self._classes = {}
        for node in self.nodes:
            if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
                continue
            for t, value in pairs(node):
                name = self._own_class(value)
                k = key(t)
                if k and name:
                    self._classes.setdefault(k, name)
                name = self._own_element(value)
                if k and name:
                    self._elements.setdefault(k, name)
        return self._classes

    def _own_class(self, value: ast.expr) -> Optional[str]:
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
            return value.func.id if value.func.id in self.classes else None
        return None

    def _own_element(self, value: ast.expr) -> Any:
        if isinstance(value, (ast.List, ast.Tuple)):
            return next(filter(None, map(self._own_class, value.elts)), None)
        if isinstance(value, ast.Dict):
            return next(filter(None, map(self._own_class, value.values)), None)
        if isinstance(value, ast.ListComp):
            return self._own_class(value.elt)
        if isinstance(value, ast.DictComp):
            return self._own_class(value.value)
        if isinstance(value, ast.Call) and method(value) in ("dict", "OrderedDict", "list"):
            # OrderedDict((n, Meter()) for n in names), list(Meter() for _ in names)
            for made in value.args:
                if isinstance(made, (ast.GeneratorExp, ast.ListComp)):
                    parts = made.elt.elts if isinstance(made.elt, ast.Tuple) else [made.elt]
                    return next(filter(None, map(self._own_class, parts)), None)
            return next(filter(None, (self._own_class(k.value) for k in value.keywords)), None)
        if isinstance(value, ast.Call) and method(value) == "defaultdict" and value.args:
            first = value.args[0]
            if isinstance(first, ast.Name):
                return first.id if first.id in self.classes else None
            if isinstance(first, ast.Lambda):
                return self._own_class(first.body)
        return None

    def method_of(self, name: str, attribute: str, depth: int = 4) -> Optional[Function]:
        """The method of a class of this file, its bases in this file included."""
        found = self.methods.get((name, attribute))
        if found is not None or depth == 0 or name not in self.classes:
            return found
        for base in self.classes[name].bases:
            found = self.method_of((self.dotted(base) or "").split(".")[-1], attribute, depth - 1)
            if found is not None:
                return found
        return None

    def callee(self, call: ast.AST) -> Any:
        return self.dotted(call.func) if isinstance(call, ast.Call) else None

    # places

    def _walk(self, body: Any, place: Any) -> None:
        for node in body:
            self.places[node] = place
            self.statements.append(node)
            if isinstance(node, ast.Expr) and self._enters_no_grad(node.value):
                place = place.inside(no_grad=True)
            if isinstance(node, FUNCTIONS):
                self.functions.setdefault(node.name, node)
                if place.klass is None or place.function is not None:
                    self.plain_functions.setdefault(node.name, node)
                elif place.function is None:
                    self.methods.setdefault((place.klass.name, node.name), node)
                inner = Place(node, place.klass)
                inner.no_grad = any(self._switches_grad_off(d) for d in node.decorator_list)
                self._walk(node.body, inner)
            elif isinstance(node, ast.ClassDef):
                self.classes.setdefault(node.name, node)
                self._walk(node.body, Place(None, node))
            elif isinstance(node, LOOPS):
                self._walk(node.body, place.inside(loops=place.loops + (node,)))
                self._walk(node.orelse, place)
            elif isinstance(node, ast.If):
                self._walk(node.body, place.inside(ifs=place.ifs + (node,)))
                self._walk(node.orelse, place.inside(ifs=place.ifs + (node,)))
            elif isinstance(node, (ast.With, ast.AsyncWith)):
                switches = [
                    i.context_expr for i in node.items if self._switches_grad_off(i.context_expr)
                ]
                steered = bool(switches) and all(map(self._steers_grad, switches))
                self._walk(
                    node.body,
                    place.inside(
                        no_grad=place.no_grad or bool(switches),
                        steered=place.steered
                        if place.no_grad and steered
                        else steered
                        if switches
                        else place.steered,
                    ),
                )
            elif isinstance(node, ast.Try) or node.__class__.__name__ == "TryStar":
                self._walk(node.body, place)
                for h in node.handlers:
                    self._walk(h.body, place.inside(handler=True))
                self._walk(node.orelse, place)
                self._walk(node.finalbody, place)
            elif node.__class__.__name__ == "Match":
                for case in node.cases:
                    self._walk(case.body, place.inside(ifs=place.ifs + (node,)))

    def _enters_no_grad(self, node: ast.expr) -> bool:
        """stack.enter_context(torch.no_grad()): for the rest of the block"""
        return (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "enter_context"
            and bool(node.args)
            and self._switches_grad_off(node.args[0])
        )

    def _steers_grad(self, node: ast.expr) -> bool:
        """set_grad_enabled(phase == 'train'), no_grad() if phase == 'val' else nullcontext()"""
        if isinstance(node, ast.IfExp):
            return True
        return (
            isinstance(node, ast.Call)
            and (self.callee(node) or "").endswith("set_grad_enabled")
            and bool(node.args)
            and not isinstance(node.args[0], ast.Constant)
        )

    def _switches_grad_off(self, node: ast.expr) -> bool:
        if isinstance(node, ast.IfExp):  # with torch.no_grad() if frozen else nullcontext()
            return self._switches_grad_off(node.body) or self._switches_grad_off(node.orelse)
        if isinstance(node, ast.Name) and node.id in self._contexts():
            return True
        if isinstance(node, ast.Call):
            name = self.callee(node) or ""
            if name.endswith("set_grad_enabled"):
                return not (
                    node.args
                    and isinstance(node.args[0], ast.Constant)
                    and node.args[0].value is True
                )
            return self._names_no_grad(name) or any(
                # @on_device(device, no_grad=True)
                k.arg in ("no_grad", "inference_mode") and constant(k.value) is True
                for k in node.keywords
            )
        return self._names_no_grad(self.dotted(node) or "")

    def _contexts(self) -> Any:
        """Variables that are no_grad() in some run: quiet = torch.no_grad() if frozen else nothing()"""
        if self._quiet is None:
            self._quiet = set()
            for n in self.nodes:
                if isinstance(n, ast.Assign) and isinstance(n.value, (ast.Call, ast.IfExp)):
                    if self._switches_grad_off(n.value):
                        self._quiet.update(t.id for t in n.targets if isinstance(t, ast.Name))
        return self._quiet

    def _names_no_grad(self, name: str) -> bool:
        """torch.no_grad, and somebody's smart_inference_mode"""
        last = name.split(".")[-1]
        return name in NO_GRAD or bool(QUIET.search(last))


def children(node: ast.AST) -> List[ast.AST]:
    """The nodes directly below. Every walk asks, so the answer is kept on the node. Without ctx,
    which nobody looks for.
    """
    found = getattr(node, "_children", None)
    if found is None:
        found = []
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, ast.AST):
                if name != "ctx":
                    found.append(value)
            elif isinstance(value, list):
                found.extend([x for x in value if isinstance(x, ast.AST)])
        node.__dict__["_children"] = found
    return found


def walk(node: ast.AST) -> Any:
    """ast.walk, in the same order and several times as fast."""
    found = [node]
    for n in found:  # grows
        below = getattr(n, "_children", None)
        found += children(n) if below is None else below
    return found


def copied(node: Any) -> Any:
    """A copy without what rules have noted on the nodes: it may be changed."""
    if isinstance(node, list):
        return [copied(x) for x in node]
    if not isinstance(node, ast.AST):
        return node
    new = type(node)(**{name: copied(getattr(node, name, None)) for name in node._fields})
    return ast.copy_location(new, node)


def walk_here(node: ast.AST) -> Any:
    """walk() without descending into functions, lambdas and classes defined inside. Every rule
    asks, so the answer is kept on the node.
    """
    found = getattr(node, "_here", None)
    if found is None:
        found, todo = [], [node]
        while todo:
            n = todo.pop()
            found.append(n)
            for child in children(n):
                if not isinstance(child, FUNCTIONS + (ast.Lambda, ast.ClassDef)):
                    todo.append(child)
        node.__dict__["_here"] = found
    return found


def own(statement: ast.stmt) -> List[ast.AST]:
    """The expressions of a statement itself, without the blocks below it."""
    found = getattr(statement, "_own", None)
    if found is None:
        found = []
        for field, value in ast.iter_fields(statement):
            if field in ("body", "orelse", "finalbody", "handlers", "decorator_list", "cases"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    found.extend(walk_here(child))
        statement.__dict__["_own"] = found
    return found


def own_calls(statement: ast.stmt) -> Iterator[Any]:
    """The calls of a statement itself, without the blocks below it."""
    return (n for n in own(statement) if isinstance(n, ast.Call))


def calls(node: ast.AST) -> Iterator[ast.Call]:
    return (n for n in walk_here(node) if isinstance(n, ast.Call))


def method(call: ast.Call) -> str:
    """The name of the method or function called, without what is before the dot."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def text(node: Any) -> Optional[str]:
    """What key() answers, for those who hand it on."""
    found: Optional[str] = key(node)
    return found


def key(node: Any) -> Any:
    """A stable text for a variable: `x`, `self.x`, `d['k']`; None for anything computed. Every rule
    asks, so the answer is kept on the node.
    """
    if isinstance(node, ast.Name):
        return node.id
    if not isinstance(node, (ast.Attribute, ast.Subscript)):
        return None
    found = getattr(node, "_key", False)
    if found is False:
        found = _key(node)
        setattr(node, "_key", found)  # noqa: B010
    return found


def _key(node: ast.expr) -> Any:
    if isinstance(node, ast.Attribute):
        base = key(node.value)
        return base and base + "." + node.attr
    if isinstance(node, ast.Subscript):
        base = key(node.value)
        index = node.slice
        index = getattr(index, "value", index) if index.__class__.__name__ == "Index" else index
        if base and isinstance(index, ast.Constant):
            return "%s[%r]" % (base, index.value)
    return None


def keyword(call: Any, name: str) -> Any:
    return next((k.value for k in call.keywords if k.arg == name), None)


def constant(node: Any, default: Any = None) -> Any:
    return node.value if isinstance(node, ast.Constant) else default


def targets(statement: Any) -> Any:
    """The variables a statement assigns."""
    if isinstance(statement, ast.Assign):
        roots = statement.targets
    elif isinstance(statement, (ast.AugAssign, ast.AnnAssign)):
        roots = [statement.target]
    elif isinstance(statement, (ast.For, ast.AsyncFor)):
        roots = [statement.target]
    else:
        roots = []
    found = []
    for root in roots:
        found.extend(root.elts if isinstance(root, (ast.Tuple, ast.List)) else [root])
    return found


def pairs(statement: Any) -> Iterator[Tuple[ast.expr, ast.expr]]:
    """(target, value) of an assignment, tuples taken apart: a, b = x, y."""
    value = statement.value
    goals = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    for goal in goals:
        if (
            isinstance(goal, (ast.Tuple, ast.List))
            and isinstance(value, (ast.Tuple, ast.List))
            and len(goal.elts) == len(value.elts)
        ):
            yield from zip(goal.elts, value.elts)
        else:
            yield goal, value
