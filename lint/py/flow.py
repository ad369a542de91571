"""Which values drag a graph behind them, and where they are kept.

A tensor made in grad mode keeps alive every activation it was computed from. The rules ask whether
such a value outlives the iteration that made it. The analysis walks a function's statements in
order and notes for each variable what it holds: a graph, an output that lies on the card, a
parameter of the function. What it does not know it takes as harmless, so that a finding is nearly
always right. `calls.py` carries the answer across calls.
"""

import ast
import re
from typing import Any, Dict, FrozenSet, Iterator, List, NamedTuple, Optional, Set, Tuple

from .names import (
    FUNCTIONS,
    LOOPS,
    File,
    Function,
    calls,
    constant,
    copied,
    key,
    method,
    once,
    own,
    pairs,
    targets,
    text,
    walk,
    walk_here,
)
from .networks import has_no_weights

GRAPH = "graph"  # made in grad mode from parameters
CARD = "card"  # an output of a model: it lies where the model lies
WEIGHT = "weight"  # a parameter of a model: no graph itself, but arithmetic on it makes one
PARAMETER = "parameter "  # + name: what the caller handed in

RESULT = "result of "  # + name: what a function that was handed in gives back, as decorators see it

NOTHING: FrozenSet[str] = frozenset()
Env = Dict[str, FrozenSet[str]]

# Methods whose result is a number, an integer tensor or a fact: nothing of the tensor stays.
CLEAN_METHODS = frozenset(
    """item tolist numpy size dim numel argmax argmin argsort eq ne gt lt ge le long int bool
    nonzero get_device element_size data_ptr is_cuda sign floor ceil round nelement stride any all isnan isinf
    count_nonzero requires_grad_ asscalar asnumpy backward zero_grad state_dict keys unique unique_consecutive
    bincount histc""".split()
)
DETACHING = frozenset("detach detach_".split())
CLEAN_ATTRIBUTES = frozenset(
    "shape device dtype grad grad_fn requires_grad is_leaf ndim is_cuda layout names param_groups".split()
)
# Torch functions with integer or boolean results, or that step out of the graph.
CLEAN_FUNCTIONS = frozenset(
    """argmax argmin argsort eq ne gt lt ge le isnan isinf is_tensor numel no_grad zeros_like ones_like rand_like
    randn_like empty_like full_like bincount unique histc tensor as_tensor from_numpy save equal allclose isfinite sign
    is_grad_enabled manual_seed device Generator one_hot bucketize searchsorted nonzero count_nonzero
    multinomial randperm""".split()
)
PAIRS = frozenset(
    "max min topk sort kthvalue median mode cummax cummin".split()
)  # (values, indices)
GROWING = frozenset("append extend add appendleft insert put put_nowait push".split())
JOINING = frozenset("cat stack vstack hstack concat concatenate".split())

# What people call a model. Used where nothing else in the file tells.
_MODEL = re.compile(
    r"(^|\.|_)(model|net|network|module|unet|vae|gan|bert|gpt|llm|encoder|decoder|generator|discriminator|"
    r"netg|netd|backbone|student|actor|critic|policy|classifier|autoencoder|ddp_model|policy_net|q_net|"
    r"rnn|lstm|gru|cnn|mlp|resnet|transformer)\d*$",
    re.I,
)
_LOSS = re.compile(
    r"(^|\.|_)(loss|losses|criterion|criteria|crit|loss_?fn|loss_?func(tion)?|objective|mse|bce|nll|ce|l1)\d*$",
    re.I,
)


# Methods of models that run them: model.get_logits(x), model.encode_image(x)
_GIVES = re.compile(
    r"^(get_|extract_|compute_)?(logits?|features?|embeddings?|embeds)$|^(en|de)code(_\w+)?$"
)


# What people call a number of things: no tensor, or one without a graph.
COUNT = re.compile(
    r"(^|_|\.)(batch_?size|bsz?|count|counts|length|world_size|n_?(items|samples|tokens|examples)|"
    r"num_?(items|samples|tokens|examples|batches|steps))$",
    re.I,
)


def is_model_name(name: str) -> bool:
    """Is the variable called what people call models?"""
    return bool(_MODEL.search(name))


# Statements that one walk looks at. A loop in a loop doubles them, and generated code has many.
LONGEST = 20_000


class Kept(NamedTuple):
    """A value that is put where it outlives the statement."""

    statement: ast.stmt
    value: ast.AST
    origins: FrozenSet[str]
    container: str  # the variable that holds it
    how: str  # append, sum, store, chain, call
    through: str = ""  # call: what the helper does with it, for the message
    inner: Optional[ast.stmt] = None  # call: the statement of the helper that keeps it


class Scope:
    """One function, or the module's own statements."""

    def __init__(
        self, file: File, body: List[ast.stmt], function: Optional[Function] = None
    ) -> None:
        self.file, self.body, self.function = file, body, function
        self.klass = file.places[body[0]].klass if body and body[0] in file.places else None
        self.statements = list(in_order(body))
        self.backwards = [(s, v) for s in self.statements for v in backward_values(s)]
        self._helped: Optional[List[Tuple[ast.stmt, ast.AST]]] = (
            None  # backwards through helpers, found when first asked for
        )
        self.modules = module_names(file)
        self._trace: Optional[Trace] = None
        self._backward_inside: Dict[ast.stmt, bool] = {}
        self._named: Dict[Optional[ast.stmt], List[ast.Assign]] = {}

    @property
    def differentiated(self) -> Any:
        """(statement, value) of every backward here, those done by a helper of this file too."""
        if self._helped is None:
            from .calls import differentiated_by_helpers

            self._helped = []  # a helper that calls this function again sees what is known so far
            self._helped = list(differentiated_by_helpers(self))
        return self.backwards + self._helped

    @property
    def losses(self) -> Set[str]:
        names: Set[str] = set()
        for _, v in self.differentiated:
            names.update(k for k in (key(v), root(v)) if k and k != "self")
        return names

    @property
    def trains(self) -> bool:
        return bool(self.differentiated)

    def has_backward(self, loop: Any) -> bool:
        known = self._backward_inside.get(loop)
        if known is None:
            inside = set(in_order(loop.body)) if self.differentiated else ()
            known = any(s in inside for s, _ in self.differentiated)
            if self._helped is not None:
                self._backward_inside[loop] = known
        return known or self.trains_while_iterated(loop)

    def named(self, loop: Any) -> List[ast.Assign]:
        """name = value in the loop, or in the scope: few of them where a table is filled."""
        if loop not in self._named:
            self._named[loop] = [
                x
                for x in (in_order(loop.body) if loop is not None else self.statements)
                if isinstance(x, ast.Assign)
                and len(x.targets) == 1
                and isinstance(x.targets[0], ast.Name)
                and isinstance(x.value, (ast.Subscript, ast.Attribute))
            ]
        return self._named[loop]

    def trains_while_iterated(self, loop: ast.stmt) -> bool:
        """for loss in steps(loader), where steps is a generator that trains"""
        from .calls import generator_of, scope_of

        function = generator_of(self, loop.iter) if isinstance(loop, ast.For) else None
        return function is not None and bool(scope_of(self.file, function).differentiated)

    @property
    def feeds(self) -> Set[str]:
        """Variables that take part in what is differentiated: they must keep their graph."""
        if not hasattr(self, "_feeds"):
            self._feeds = self._feeding_the_loss()
        return self._feeds

    def _feeding_the_loss(self) -> Set[str]:
        feeds: Set[str] = set()
        for _, value in self.differentiated:
            feeds.update(variables(value))
        changed = True
        while changed:
            changed = False
            for s in self.statements:
                if isinstance(s, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and s.value:
                    source = s.value
                elif isinstance(s, (ast.For, ast.AsyncFor)):
                    source = s.iter
                else:
                    continue
                # what flows into the loss, not out of it
                if any(key(t) in feeds for t in targets(s)):
                    new = variables(source) - feeds
                    feeds |= new
                    changed = changed or bool(new)
        return feeds

    @property
    def trace(self) -> "Trace":
        if self._trace is None:
            self._trace = Trace()  # a recursive function sees an empty one
            walk = Walk(self)
            walk.run()
            self._trace = walk.trace
        return self._trace


class Trace:
    """What a walk over a scope found."""

    def __init__(self) -> None:
        self.kept: List[Kept] = []
        self.returned: FrozenSet[str] = NOTHING
        self.yielded: FrozenSet[str] = NOTHING  # by a generator
        # return a, b: what each part holds; None where a return has another form
        self.parts: Optional[List[FrozenSet[str]]] = []


def in_order(body: List[ast.stmt]) -> Iterator[ast.stmt]:
    """Every statement of a block and of the blocks in it, not of functions and classes defined
    there.
    """
    todo = list(reversed(body))
    while todo:  # not recursive: a chain of elifs is as deep as it is long
        s = todo.pop()
        yield s
        if isinstance(s, FUNCTIONS + (ast.ClassDef,)):
            continue
        below: List[ast.stmt] = []
        for field in ("body", "orelse", "finalbody"):
            below += getattr(s, field, [])
        for h in getattr(s, "handlers", []) + getattr(s, "cases", []):
            below += h.body
        todo += reversed(below)


def variables(expression: Any) -> Set[str]:
    return {
        k
        for k in (
            key(n)
            for n in walk_here(expression)
            if isinstance(n, (ast.Name, ast.Attribute, ast.Subscript))
        )
        if k
    }


def root(node: Any) -> Optional[str]:
    """The variable at the bottom of `a.b['c'][i]`: a, or self.a for an attribute of self."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        if isinstance(node, ast.Attribute) and key(node.value) in ("self", "cls"):
            return text(node)
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def container_of(node: Any) -> Optional[str]:
    """The variable that holds what is put into this expression: d in d[k], d in d.setdefault(k,
    []), d in d[k].x.
    """
    while key(node) is None:
        if isinstance(node, (ast.Subscript, ast.Attribute)):
            node = node.value
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("setdefault", "get")
        ):
            node = node.func.value
        else:
            return None
    return text(node)


def backward_values(statement: ast.stmt) -> Iterator[ast.expr]:
    """What is differentiated here: loss in loss.backward(), scaler.scale(loss).backward(),
    accelerator.backward(loss).
    """
    for node in own(statement):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr == "manual_backward" and node.args:
            yield node.args[0]
        elif node.func.attr == "backward":
            receiver = node.func.value
            owner = (key(receiver) or "").split(".")[-1].lower()
            if node.args and owner in (
                "accelerator",
                "fabric",
                "engine",
                "model_engine",
                "model",
                "scaler",
                "optimizer",
                "ds_engine",
                "autograd",
            ):
                yield node.args[0]
            elif owner not in ("autograd", "super", "engine", "model_engine"):
                yield innermost(receiver)


def innermost(node: Any) -> Any:
    """loss in scaler.scale(loss), in (loss / 4), in loss.mean() and in loss[0]."""
    while True:
        if node.__class__.__name__ == "NamedExpr":  # (loss := criterion(out, y)).backward()
            node = node.target
        elif isinstance(node, ast.Call) and method(node) == "scale" and node.args:
            node = node.args[0]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Div, ast.Mult)):
            node = node.left if key(innermost(node.left)) else node.right
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and method(node) in ("mean", "sum", "cpu", "cuda", "to", "float", "squeeze")
        ):
            node = node.func.value
        else:
            return node


@once
def module_names(file: File) -> Set[str]:
    """Variables that are modules: somebody asks them for parameters, puts them in a mode, or they
    are made from a class here.
    """
    found = set()
    own_modules = module_classes(file)
    for node in file.nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if (
                node.func.attr
                in (
                    "parameters",
                    "named_parameters",
                    "eval",
                    "load_state_dict",
                    "zero_grad",
                    "train",
                )
                and not node.args[1:]
            ):
                k = key(node.func.value)
                if (
                    k
                    and not any(w in k.lower() for w in ("optim", "sched", "scaler", "loader"))
                    and k not in ("self", "pd", "df", "opt", "trainer", "self.trainer")
                ):
                    found.add(k)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            made, evaluated = unchained(node.value)
            name = file.callee(made) or ""
            if (
                name.split(".")[-1] in own_modules
                or _makes_module(name)
                and not has_no_weights(name.split(".")[-1])
                or name.endswith(".from_pretrained")
                and "Model" in name
                or evaluated
                and "torch" in file.modules
            ):
                found.update(k for k in map(key, node.targets) if k)
    return found


_CHAINED = frozenset(
    "to cuda cpu half float double bfloat16 train eval requires_grad_ share_memory".split()
)


def unchained(call: ast.Call) -> Tuple[ast.Call, bool]:
    """(build(), True) for build().to(device).eval(): what makes the object, and whether it is put
    into a mode that only modules have.
    """
    evaluated = False
    while (
        isinstance(call.func, ast.Attribute)
        and call.func.attr in _CHAINED
        and isinstance(call.func.value, ast.Call)
    ):
        evaluated = evaluated or call.func.attr in ("train", "eval") and not call.args
        call = call.func.value
    return call, evaluated


def module_classes(file: File) -> Set[str]:
    return {
        name
        for name, c in file.classes.items()
        if any((file.dotted(b) or "").endswith(("Module", "PreTrainedModel")) for b in c.bases)
    }


def _makes_module(name: str) -> bool:
    return bool(re.match(r"(torch\.nn|torchvision\.models)\.\w+$", name)) and not name.endswith(
        ("Parameter", "Loss")
    )


def calls_module(node: Any, scope: Any) -> Optional[str]:
    """A forward pass: model(x), self.model(x), model.forward(x)."""
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Attribute) and node.func.attr in ("forward", "training_step"):
        k = key(node.func.value)
        return k if k and k not in ("super", "self") else None
    k = key(node.func)
    if k in scope.modules or _own_layer(k, scope):
        return str(k)
    own_code = k is not None and k.split(".")[-1] in scope.file.functions
    if k and _MODEL.search(k) and not own_code and scope.file.uses_torch:
        return str(k)
    return None


def _own_layer(k: Optional[str], scope: Scope) -> bool:
    """self.conv(x) and self(x) inside a module: what is called is a layer unless it is a method."""
    if k is None or scope.klass is None or scope.klass.name not in module_classes(scope.file):
        return False
    if k == "self":
        return True
    parts = k.split(".")
    return (
        len(parts) == 2
        and parts[0] == "self"
        and scope.file.method_of(scope.klass.name, parts[1]) is None
        and not parts[1].startswith(
            ("get", "log", "_", "is_", "on_", "save", "print", "all_gather")
        )
        and parts[1] not in ("parameters", "named_parameters", "state_dict", "train", "eval")
    )


class Walk:
    """Goes through a scope in order and notes what each variable holds and what is kept."""

    def __init__(self, scope: Scope) -> None:
        self.scope, self.trace = scope, Trace()
        self.noted: Set[Tuple[Any, ...]] = set()
        self.left = LONGEST  # statements that may still be looked at
        from .calls import grad_is_off

        self.always_off = grad_is_off(scope)

    def run(self) -> None:
        env: Env = {}
        if self.scope.function is not None:
            for name in parameters(self.scope.function):
                env[name] = frozenset([PARAMETER + name])
        self.terms = _terms_of_losses(self.scope)
        self.losses = self.scope.losses
        self.block(self.scope.body, env)

    def off(self, s: ast.stmt) -> bool:
        place = self.scope.file.places.get(s)
        return self.always_off or place is not None and place.no_grad and not place.steered

    def block(self, body: List[ast.stmt], env: Env) -> None:
        for s in body:
            self.left -= 1
            if self.left < 0:
                return
            if isinstance(s, FUNCTIONS):
                env[s.name] = self.captured(s, env)
                continue
            if isinstance(s, ast.ClassDef):
                continue
            self.note(s, env)
            self.effect(s, env)
            if isinstance(s, LOOPS):
                self.block(s.body, env)  # what the first round leaves behind is there in the second
                self.block(s.body, env)
                self.block(s.orelse, env)
            elif isinstance(s, ast.If):
                other = dict(env)
                self.block(s.body, env)
                self.block(s.orelse, other)
                for name, o in other.items():
                    env[name] = env.get(name, NOTHING) | o
            else:
                for field in ("body", "orelse", "finalbody"):
                    self.block(getattr(s, field, []), env)
                for h in getattr(s, "handlers", []):
                    self.block(h.body, env)
                for c in getattr(s, "cases", []):
                    self.block(c.body, env)

    def captured(self, function: Any, env: Env) -> FrozenSet[str]:
        """A closure holds the variables it uses from outside."""
        inside = {n.id for n in walk(function) if isinstance(n, ast.Name) and n.id in env} - set(
            parameters(function)
        )
        held: FrozenSet[str] = NOTHING
        for name in inside:
            held |= env[name]
        return held & {GRAPH}

    # what is kept

    def note(self, s: ast.stmt, env: Env) -> None:
        if isinstance(s, ast.Return) and s.value is not None:
            self.trace.returned |= self.origins(s.value, env, self.off(s))
            self._parts(s.value, env, self.off(s))
        for n in own(s):
            if isinstance(n, ast.Yield) and n.value is not None:
                self.trace.yielded |= self.origins(n.value, env, self.off(s))
        for kept in list(self._puts(s, env)):
            mark = (kept.statement, kept.container, kept.how, kept.origins)
            if kept.origins and mark not in self.noted:
                self.noted.add(mark)
                self.trace.kept.append(kept)
            if kept.origins and kept.how in ("append", "store"):
                env[kept.container] = env.get(kept.container, NOTHING) | kept.origins

    def _parts(self, value: ast.expr, env: Env, off: bool) -> None:
        if self.trace.parts is None:
            return
        if not isinstance(value, ast.Tuple):
            self.trace.parts = None
            return
        parts = [self.origins(e, env, off) for e in value.elts]
        if self.trace.parts and len(self.trace.parts) != len(parts):
            self.trace.parts = None
        elif self.trace.parts:
            self.trace.parts = [a | b for a, b in zip(self.trace.parts, parts)]
        else:
            self.trace.parts = parts

    def _puts(self, s: ast.stmt, env: Env) -> Iterator[Kept]:
        off = self.off(s)
        if isinstance(s, ast.AugAssign) and isinstance(s.op, ast.Add):
            container = container_of(s.target)
            name = self.scope.file.class_of(container) if container else None
            if container and not (name and self.scope.file.method_of(name, "__iadd__")):
                how = "append" if isinstance(s.value, (ast.List, ast.Tuple)) else "sum"
                o = self.origins(s.value, env, off)
                if how == "sum" and off:
                    o &= {CARD}
                yield Kept(s, s.value, o, container, how)
        elif isinstance(s, ast.Assign) and len(s.targets) == 1:
            yield from self._stores(s, env, off)
        if isinstance(s, (ast.Expr, ast.Assign)):
            for call in [n for n in own(s) if isinstance(n, ast.Call)]:
                yield from self._calls(s, call, env, off)

    def _stores(self, s: ast.Assign, env: Env, off: bool) -> Iterator[Kept]:
        target, container = s.targets[0], container_of(s.targets[0])
        if container is None or self._is_loop_variable(s, container):
            return
        item = self._item_call(s)
        if item is not None:  # book["loss"] = loss, where Book has a __setitem__
            yield from self._calls(s, item, env, off)
            return
        value = self._spelt_out(s, target)
        if isinstance(value, ast.IfExp):  # loss if mean is None else 0.9 * mean + 0.1 * loss
            value = value.body if reads(target, value.body) else value.orelse
        itself = reads(target, value) or (key(target) is None and container in variables(value))
        added = _added_to(target, value)
        if added is not None:
            o = self.origins(added, env, off)
            if isinstance(added, (ast.List, ast.Tuple)):  # res = res + (out,)
                yield Kept(s, added, o, container, "append")
            else:
                yield Kept(s, added, o & {CARD} if off else o, container, "sum")
        elif itself and (
            _joins(value) or _averages(target, value) or _averages_each(container, value)
        ):
            o = self.without(container, value, env, off)
            yield Kept(s, value, o, container, "chain")
        elif (
            isinstance(target, ast.Subscript)
            and key(target) is None
            and _index_is_plain(target)
            and container in plain_containers(self.scope)
            or isinstance(target, ast.Subscript)
            and isinstance(_index(target), ast.Tuple)  # history[epoch, i]: a dict
            and not any(isinstance(e, ast.Slice) for e in _index(target).elts)
            and self._is_dict(container)
        ):
            yield Kept(s, s.value, self.origins(s.value, env, off), container, "store")

    def _spelt_out(self, s: ast.Assign, target: Any) -> Any:
        """The value with `old` written as what it stands for, where that is the target itself:
        old = shadow[name]; shadow[name] = decay * old + (1 - decay) * p
        """
        if isinstance(target, ast.Name):
            return s.value
        block = self.scope.file.places[s].loops
        names = {
            x.targets[0].id
            for x in self.scope.named(block[-1] if block else None)
            if isinstance(x.targets[0], ast.Name)
            and x.lineno < s.lineno
            and _same_node(x.value, target)
        } & {n.id for n in walk_here(s.value) if isinstance(n, ast.Name)}
        if not names:
            return s.value
        value = _Renamed(names, target).visit(copied(s.value))
        for n in walk(value):
            n.__dict__.pop("_here", None)  # what walk_here remembers is of the first form
        return value

    def _item_call(self, s: ast.Assign) -> Optional[ast.Call]:
        target = s.targets[0]
        if not isinstance(target, ast.Subscript) or not key(target.value):
            return None
        name = self.scope.file.class_of(key(target.value))
        if name is None or self.scope.file.method_of(name, "__setitem__") is None:
            return None
        func = ast.copy_location(
            ast.Attribute(value=target.value, attr="__setitem__", ctx=ast.Load()), s
        )
        return ast.copy_location(
            ast.Call(func=func, args=[_index(target), s.value], keywords=[]), s
        )

    def _is_dict(self, container: str) -> bool:
        """Made as a dict in this scope, or on self, and as nothing else there."""
        nodes = self.scope.file.nodes if "." in container else self.scope.statements
        made = [
            value
            for s in nodes
            if isinstance(s, (ast.Assign, ast.AnnAssign)) and s.value is not None
            for t, value in pairs(s)
            if key(t) == container
        ]
        return bool(made) and all(
            isinstance(v, ast.Dict)
            or isinstance(v, ast.Call)
            and method(v) in ("dict", "defaultdict", "OrderedDict")
            for v in made
        )

    def _is_loop_variable(self, s: ast.stmt, name: str) -> bool:
        """for p in ...: p = 0.9 * p + q changes a variable that the next round overwrites"""
        return any(
            key(g) == name
            for loop in self.scope.file.places[s].loops
            for t in targets(loop)
            for g in (t.elts if isinstance(t, (ast.Tuple, ast.List)) else [t])
        )

    def without(self, name: str, value: ast.expr, env: Env, off: bool) -> FrozenSet[str]:
        """The origins of a value, leaving out what the variable itself already holds."""
        return self.origins(value, {k: v for k, v in env.items() if k != name}, off)

    def _calls(self, s: ast.stmt, call: ast.Call, env: Env, off: bool) -> Iterator[Kept]:
        from .calls import kept_by_helper, unwrapped

        call = unwrapped(self.scope, call)
        if isinstance(call.func, ast.Attribute) and call.func.attr == "update" and call.args:
            container = container_of(call.func.value)
            given = call.args[0]
            # history.update({step: loss}): a new entry each time, not the same one again
            if isinstance(given, ast.Dict) and container in plain_containers(self.scope):
                values = [
                    v for k, v in zip(given.keys, given.values) if not isinstance(k, ast.Constant)
                ]
                o = self.together([v for v in values if v is not None], env, off)
                yield Kept(s, given, o, container, "store")
                return
        if (
            isinstance(call.func, ast.Attribute)
            and call.func.attr in GROWING
            and call.args
            and not (call.func.attr == "add" and len(call.args) > 1)
            and not _is_foreign_meter(self.scope, call)
        ):
            container = container_of(call.func.value)
            if container and self.scope.file.class_of(container) is None:
                value = call.args[-1]
                yield Kept(s, value, self.origins(value, env, off), container, "append")
                return
        told = call.args or [k.value for k in call.keywords]  # meter.update(val=loss, n=64)
        if _is_foreign_meter(self.scope, call) and told:
            value = told[0]
            yield Kept(
                s, value, self.origins(value, env, off), container_of(call.func) or "", "meter"
            )
            return
        if _averages_in_place(call) and not off:
            container = container_of(_bottom(call))
            o = self.together(call.args, env, off)
            if container and WEIGHT in o and not self._cut_before(s, container):
                yield Kept(s, call, o | {GRAPH}, container, "chain")
                return
        for held_by, drawn, through, inner in kept_by_helper(self.scope, call):
            o = self.origins(drawn, env, off)
            yield Kept(s, drawn, o, held_by, "call", through, inner)

    def _cut_before(self, s: ast.stmt, container: str) -> bool:
        """target.detach_() beside it cuts the graph each time."""
        loops = self.scope.file.places[s].loops
        return bool(loops) and any(
            method(c) == "detach_"
            and isinstance(c.func, ast.Attribute)
            and container_of(c.func.value) == container
            for other in in_order(loops[-1].body)
            for c in calls(other)
        )

    # what a statement makes of its variables

    def effect(self, s: ast.stmt, env: Env) -> None:
        if isinstance(s, ast.Delete):
            for k in map(key, s.targets):
                env.pop(k, None)
        elif isinstance(s, (ast.For, ast.AsyncFor)):
            self._iterate(s, env)
        elif isinstance(s, (ast.With, ast.AsyncWith)):
            for item in s.items:
                if item.optional_vars is not None:
                    env.pop(key(item.optional_vars), None)
        elif isinstance(s, (ast.Assign, ast.AnnAssign)) and s.value is not None:
            self._assign(s, env)
        for n in own(s):
            if isinstance(n, ast.NamedExpr) and key(n.target):
                env[key(n.target)] = self.made(key(n.target), n.value, env, self.off(s))

    def _iterate(self, s: Any, env: Env) -> None:
        """for p in model.parameters(); for loss in losses"""
        from .calls import generator_of, scope_of

        over = s.iter
        goals = targets(s)
        if isinstance(over, ast.Call) and method(over) in ("enumerate", "zip", "tqdm", "reversed"):
            parts = over.args
        else:
            parts = [over]
        held: FrozenSet[str] = NOTHING
        for part in parts:
            generator = generator_of(self.scope, part)
            if generator is not None and isinstance(s.target, ast.Tuple) and part is over:
                continue  # for loss, n in steps(): the abstract run knows which part is what
            if generator is not None and generator is not self.scope.function:
                held |= scope_of(self.scope.file, generator).trace.yielded & {GRAPH, CARD}
            elif isinstance(part, ast.Call) and method(part) in ("parameters", "named_parameters"):
                held |= {WEIGHT}
            elif isinstance(part, ast.Call) and method(part) in ("items", "values"):
                owner = getattr(part.func, "value", None)
                held |= self.origins(owner, env, True)
            else:
                held |= self.origins(part, env, True)
        names = [
            g for goal in goals for g in (goal.elts if isinstance(goal, ast.Tuple) else [goal])
        ]
        if (
            held == {WEIGHT}
            and len(names) > 1
            and not (isinstance(over, ast.Call) and method(over) == "zip")
        ):
            names = names[1:]  # (name, parameter)
        elif isinstance(over, ast.Call) and method(over) == "enumerate":
            names = names[1:]
        for g in goals:
            env.pop(key(g), None)
        for g in names:
            k = key(g)
            if k:
                env[k] = held

    def _assign(self, s: Any, env: Env) -> None:
        off = self.off(s)
        goals = targets(s)
        pair = isinstance(s.value, ast.Call) and method(s.value) in PAIRS and len(goals) == 2
        values = (
            s.value.elts
            if isinstance(s.value, ast.Tuple) and len(s.value.elts) == len(goals)
            else [s.value] * len(goals)
        )
        parts = self._returned_parts(s.value, env, off) if len(goals) > 1 else None
        for i, goal in enumerate(goals):
            k = key(goal)
            if not k:
                continue
            if pair and i == 1 or len(goals) > 1 and COUNT.search(k):
                o = NOTHING
            elif parts is not None and len(parts) == len(goals):
                o = parts[i]
            elif i > 0 and _is_loss_call(values[i]) and k not in self.losses | self.terms:
                o = NOTHING  # loss, count = criterion(...)
            else:
                o = self.made(k, values[i], env, off)
            literal = values[i]
            if isinstance(literal, ast.Dict):
                self._entries(k, literal, env, off)
            if o:
                env[k] = o
            else:
                env.pop(k, None)

    def _returned_parts(
        self, value: ast.expr, env: Env, off: bool
    ) -> Optional[List[FrozenSet[Any]]]:
        from .calls import parts_returned_by

        if not isinstance(value, ast.Call):
            return None
        return parts_returned_by(self.scope, value, lambda n: self.origins(n, env, off))

    def _entries(self, name: str, value: ast.Dict, env: Env, off: bool) -> None:
        """logs = {"loss": loss, "n": 3}: each entry by itself, those without a graph too."""
        for k, v in zip(value.keys, value.values):
            if isinstance(k, ast.Constant):
                env["%s[%r]" % (name, k.value)] = self.origins(v, env, off)

    def made(self, name: str, value: ast.expr, env: Env, off: bool) -> FrozenSet[str]:
        if name in self.scope.modules:
            return NOTHING  # model = wrap(model): still a model, not what it returns
        o = self.origins(value, env, off)
        if GRAPH in o or off:
            return o
        # A variable that is differentiated got its graph from a call we cannot see into:
        # criterion(out, y). So did the terms it is the sum of.
        if (
            (name in self.losses or name in self.terms)
            and isinstance(value, (ast.Call, ast.BinOp))
            and not is_clean(value, self.scope)
        ):
            return o | {GRAPH}
        return o

    # expressions

    def origins(self, node: Any, env: Env, off: bool) -> FrozenSet[str]:
        """What this expression's value holds on to."""
        if isinstance(node, (ast.Name, ast.Subscript, ast.Attribute)) and key(node) in env:
            return env[key(node)]
        if isinstance(node, ast.Attribute):
            if node.attr in CLEAN_ATTRIBUTES:
                return NOTHING
            o = self.origins(node.value, env, off)
            return o & {CARD} if node.attr == "data" else o
        if isinstance(node, ast.Call):
            o = self.call_origins(node, env, off)
            return o & {CARD} if off else o
        if isinstance(node, ast.BinOp):
            o = self.origins(node.left, env, off) | self.origins(node.right, env, off)
            if WEIGHT in o and not isinstance(node.op, (ast.Mod, ast.FloorDiv)):
                o |= {GRAPH}
            return o & {CARD} if off else o
        if isinstance(node, ast.UnaryOp):
            return NOTHING if isinstance(node.op, ast.Not) else self.origins(node.operand, env, off)
        if isinstance(node, ast.IfExp):
            return self.origins(node.body, env, off) | self.origins(node.orelse, env, off)
        if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            return self.together(node.elts, env, off)
        if isinstance(node, ast.Dict):
            return self.together([v for v in node.values if v is not None], env, off)
        if isinstance(node, ast.Subscript):
            if isinstance(node.value, ast.Call) and method(node.value) in PAIRS:
                index = node.slice
                if index.__class__.__name__ == "Index":
                    index = getattr(index, "value", index)
                if constant(index) == 1:
                    return NOTHING
            if key(node) and not _may_be_tensor(key(node)):
                return NOTHING  # logs["step"]: which entries of a dict are tensors, its names tell
            return self.origins(node.value, env, off)
        if isinstance(node, (ast.Starred, ast.Await)):
            return self.origins(node.value, env, off)
        if isinstance(node, (ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)):
            return self.comprehension(node, env, off)
        if isinstance(node, ast.Lambda):
            return self.captured(node, env)
        if node.__class__.__name__ == "NamedExpr":
            return self.origins(node.value, env, off)
        return NOTHING

    def together(self, nodes: List[ast.expr], env: Env, off: bool) -> FrozenSet[str]:
        o: FrozenSet[str] = NOTHING
        for n in nodes:
            o |= self.origins(n, env, off)
        return o

    def comprehension(self, node: Any, env: Env, off: bool) -> FrozenSet[str]:
        inner = dict(env)
        for g in node.generators:
            fake = ast.For(target=g.target, iter=g.iter, body=[], orelse=[])
            self._iterate(fake, inner)
        if isinstance(node, ast.DictComp):
            return self.origins(node.value, inner, off)
        return self.origins(node.elt, inner, off)

    def _is_record(self, name: str) -> bool:
        """A dataclass, a NamedTuple or a namedtuple: an object made of what it is given."""
        file = self.scope.file
        c = file.classes.get(name)
        if c is not None:
            return any(
                (file.dotted(d.func if isinstance(d, ast.Call) else d) or "").endswith("dataclass")
                for d in c.decorator_list
            ) or any((file.dotted(b) or "").endswith("NamedTuple") for b in c.bases)
        return (file.made_from(name) or "").endswith("namedtuple")

    def call_origins(self, call: ast.Call, env: Env, off: bool) -> FrozenSet[str]:
        from .calls import returned_by, unwrapped

        call = unwrapped(self.scope, call)
        name = method(call)
        if calls_module(call, self.scope):
            if any(k.arg == "return_loss" and constant(k.value) is False for k in call.keywords):
                return NOTHING  # OpenMMLab's models give arrays then
            return frozenset([GRAPH, CARD])
        answer = returned_by(self.scope, call, lambda n: self.origins(n, env, off))
        if answer is not None:
            return answer
        if isinstance(call.func, ast.Name) and call.func.id in wrapped_by(self.scope):
            return frozenset([RESULT + call.func.id])
        if (self.scope.file.callee(call) or "").startswith("torch.distributions."):
            return self.together(call.args + [k.value for k in call.keywords], env, off)
        if isinstance(call.func, ast.Attribute):
            dotted = self.scope.file.dotted(call.func) or ""
            if name == "sample" and not dotted.startswith("torch."):
                return NOTHING  # of a distribution: numbers without a graph
            if dotted.startswith("torch.") or name in JOINING:
                if name in CLEAN_FUNCTIONS or dotted.startswith("torch.optim"):
                    return NOTHING
                if name == "grad" and not any(k.arg == "create_graph" for k in call.keywords):
                    return NOTHING
                o = self.together(call.args, env, off)
                if _LOSS.search(name) or name.endswith(("cross_entropy", "_loss")):
                    o -= {CARD}  # one number
                return o | {GRAPH} if WEIGHT in o and name not in ("save",) else o
            if name in CLEAN_METHODS:
                return NOTHING
            if _LOSS.search(name):
                o = self.together(call.args, env, off) - {CARD}
                if o:
                    return o
            o = self.origins(call.func.value, env, off)
            if key(call.func.value) in self.scope.modules and _GIVES.search(name):
                return frozenset([GRAPH, CARD])
            if name in DETACHING:
                return o & {CARD}
            if name == "cpu" or name == "to" and call.args and constant(call.args[0]) == "cpu":
                return o - {CARD}
            if name in ("items", "values", "get", "pop", "copy"):
                return o
            if name in ("gather", "gather_for_metrics", "pad_across_processes") and not o:
                return self.together(call.args, env, off)
            if name in ("mean", "sum", "norm", "prod") and not call.args + call.keywords:
                o -= {CARD}  # one number
            if WEIGHT in o:
                return o if name in ("clone", "to", "cuda", "float") else o | {GRAPH}
            return o
        if name in ("sum", "list", "tuple", "dict", "set", "reversed", "sorted", "partial", "zip"):
            return self.together(call.args + [k.value for k in call.keywords], env, off)
        if _LOSS.search(name):
            return self.together(call.args, env, off) & {GRAPH}
        if self._is_record(name):
            return self.together(call.args + [k.value for k in call.keywords], env, off)
        if isinstance(call.func, ast.Call):  # nn.MSELoss()(out, y)
            made = self.scope.file.callee(call.func) or ""
            if made.startswith("torch.nn."):
                return self.together(call.args, env, off)
        return NOTHING  # float(), len(), a helper we cannot see: not known to carry


_METER = re.compile(r"^(Average|Avg|Running|Loss)\w*Meter$|^Averager$|^RunningAverage$")


def _is_foreign_meter(scope: Any, call: ast.Call) -> bool:
    """meter.update(loss), where the meter's class is imported: what it does is not known."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in ("update", "add"):
        return False
    name = scope.file.made_from(key(call.func.value))
    return (
        bool(name)
        and name.split(".")[-1] not in scope.file.classes
        and bool(_METER.match(name.split(".")[-1]))
    )


def _averages_in_place(call: ast.Call) -> bool:
    """shadow.mul_(decay).add_(p), shadow.lerp_(p, w), shadow.copy_(decay * shadow + ...), not on
    .data or .detach(): those are other tensors.
    """
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in (
        "add_",
        "lerp_",
        "copy_",
        "sub_",
    ):
        return False
    node = call.func.value
    averages = call.func.attr in ("lerp_", "copy_")
    while isinstance(node, (ast.Call, ast.Attribute)):
        if isinstance(node, ast.Attribute) and node.attr in ("data", "grad"):
            return False
        if isinstance(node, ast.Call):
            if method(node) == "detach":
                return False
            averages = averages or method(node) in ("mul_", "div_")
            node = node.func
        else:
            node = node.value
    if call.func.attr == "copy_":
        return bool(call.args) and isinstance(call.args[0], ast.BinOp)
    return averages


def _bottom(call: ast.Call) -> ast.expr:
    """shadow[name] in shadow[name].mul_(d).add_(p)"""
    node: ast.expr = call
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node = node.func.value
    return node


def _may_be_tensor(entry: str) -> bool:
    """d['loss'] may be a tensor by its name, d['n_steps'] is not; d[0] may."""
    name = re.search(r"\['([^']*)'\]$", entry)
    return name is None or bool(
        re.search(
            r"loss|logit|out|pred|score|prob|feat|emb|hidden|repr|state|^[a-z]$", name[1], re.I
        )
    )


def _is_loss_call(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and bool(_LOSS.search(key(value.func) or ""))


def parameters(function: Any) -> List[str]:
    a = function.args
    names = [x.arg for x in getattr(a, "posonlyargs", []) + a.args + a.kwonlyargs]
    names += [a.vararg.arg] if a.vararg else []
    names += [a.kwarg.arg] if a.kwarg else []
    return [n for n in names if n not in ("self", "cls")]


def wrapped_by(scope: Scope) -> Set[str]:
    """The parameters of the function around this one: fn, in the wrapper of a decorator."""
    place = scope.file.places.get(scope.function) if scope.function is not None else None
    around = place.function if place is not None else None
    if around is None:
        return set()
    return set(parameters(around)) - set(parameters(scope.function))


def _terms_of_losses(scope: Scope) -> Set[str]:
    """a and b in loss = a + 0.1 * b where loss is differentiated: each got a graph somewhere."""
    terms: Set[str] = set()
    wanted = set(scope.losses)
    for _ in range(3):
        for s in scope.statements:
            if not isinstance(s, (ast.Assign, ast.AugAssign)):
                continue
            if any(key(t) in wanted for t in targets(s)):
                terms |= _addends(s.value)
        wanted |= terms
    for _, value in scope.differentiated:
        terms |= _addends(value)
    return terms


def _addends(node: ast.expr) -> Set[str]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        return _addends(node.left) | _addends(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div)):
        sides = [n for n in (node.left, node.right) if isinstance(n, ast.Name)]
        named = [n.id for n in sides if "loss" in n.id.lower()]
        if len(named) == 1:
            return {named[0]}
        if len(sides) == 1 and isinstance(
            node.right if sides[0] is node.left else node.left, ast.Constant
        ):
            return {sides[0].id}
        return set()
    return {node.id} if isinstance(node, ast.Name) else set()


def is_clean(value: ast.expr, scope: Scope) -> bool:
    """True for a call whose result certainly carries no graph."""
    if isinstance(value, ast.Call):
        name = method(value)
        if isinstance(value.func, ast.Name):
            return name in ("float", "int", "len", "str", "range", "max", "min")
        dotted = scope.file.dotted(value.func) or ""
        if dotted.startswith("torch."):
            return name in CLEAN_FUNCTIONS
        return name in CLEAN_METHODS or name in DETACHING
    return False


@once
def scopes(file: File) -> List[Scope]:
    """The module's own statements and every function, each once."""
    functions = (n for n in file.nodes if isinstance(n, FUNCTIONS))
    return [Scope(file, file.tree.body), *(Scope(file, n.body, n) for n in functions)]


@once
def scopes_of_functions(file: File) -> Dict[ast.AST, Scope]:
    return {s.function: s for s in scopes(file) if s.function is not None}


def resets(loop: Any, name: str, scope: Optional[Scope]) -> bool:
    """Is the variable begun anew inside this loop (total = 0, losses = [], losses.clear())?"""
    return any(_begins_anew(s, name) for s in in_order(loop.body)) or any(
        key(t) == name for t in targets(loop)
    )


def _begins_anew(s: ast.stmt, name: str) -> bool:
    if isinstance(s, (ast.For, ast.AsyncFor)) and name in variables(s.target):
        return True  # for l, e in zip(lists, values): which list it is cannot be told
    if isinstance(s, (ast.Assign, ast.AnnAssign)) and s.value is not None:
        if any(key(t) == name for t in targets(s)) and name not in variables(s.value):
            return True
        # losses, total = [], 0 in one statement, losses[:] = []
        if any(isinstance(t, ast.Subscript) and key(t.value) == name for t in targets(s)):
            index = [t.slice for t in targets(s) if isinstance(t, ast.Subscript)]
            if any(isinstance(i, ast.Slice) and i.lower is None for i in index):
                return True
    if isinstance(s, ast.Delete) and any(
        (key(t) or key(getattr(t, "value", t))) == name for t in s.targets
    ):
        return True
    return any(
        method(c) in ("clear", "pop", "popleft", "popitem", "reset", "get_nowait")
        and isinstance(c.func, ast.Attribute)
        and key(c.func.value) == name
        for c in (calls(s) if isinstance(s, (ast.Expr, ast.Assign)) else ())
    )


def _short_window(call: ast.Call) -> bool:
    """deque(maxlen=100), and deque(maxlen=n) where n is not known"""
    size = call.args[1] if len(call.args) > 1 else None
    size = next((k.value for k in call.keywords if k.arg == "maxlen"), size)
    if size is None or isinstance(size, ast.Constant) and size.value is None:
        return False
    length = constant(size)
    return not (isinstance(length, (int, float)) and length >= LARGE_WINDOW)


def reads(target: ast.expr, value: ast.expr) -> bool:
    """Does the value read the very variable it is assigned to?"""
    name = key(target)
    alike = [n for n in walk_here(value) if n.__class__ is target.__class__]
    if name is not None:
        return any(key(n) == name for n in alike)
    return any(_same_node(target, n) for n in alike[:50])


def _added_to(target: ast.expr, value: ast.expr) -> Optional[ast.expr]:
    """x in total = total + x and in d[k] = d.get(k, 0) + x"""
    if not (isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add)):
        return None

    def is_target(node: ast.expr) -> bool:
        if _same_node(target, node):
            return True
        return (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "get"
            and isinstance(target, ast.Subscript)
            and _same_node(target.value, node.func.value)
        )

    if is_target(value.left):
        return value.right
    return value.left if is_target(value.right) else None


class _Renamed(ast.NodeTransformer):
    """Puts an expression in the place of some names."""

    def __init__(self, names: Set[str], by: ast.expr) -> None:
        self.names, self.by = names, copied(by)
        self.by.ctx = ast.Load()

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return copied(self.by) if node.id in self.names else node


def _same_node(a: ast.expr, b: ast.expr) -> bool:
    return ast.dump(a).replace("Store()", "Load()") == ast.dump(b).replace("Store()", "Load()")


def _joins(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and method(value) in JOINING


def _averages(target: ast.expr, value: ast.expr) -> bool:
    """beta * target + (1 - beta) * x"""
    return (
        isinstance(value, ast.BinOp)
        and isinstance(value.op, (ast.Add, ast.Sub))
        and any(
            reads(target, side)
            and (
                isinstance(side, ast.BinOp)
                and isinstance(side.op, (ast.Mult, ast.Div))
                or isinstance(side, ast.Call)
                and method(side) in ("mul", "clone")
            )
            for side in (value.left, value.right)
        )
    )


def _averages_each(container: str, value: ast.expr) -> bool:
    """[0.9 * a + 0.1 * p for a, p in zip(container, model.parameters())]"""
    return (
        isinstance(value, (ast.ListComp, ast.DictComp))
        and isinstance(value.value if isinstance(value, ast.DictComp) else value.elt, ast.BinOp)
        and any(container in variables(g.iter) for g in value.generators)
    )


def _index(target: ast.Subscript) -> Any:
    index = target.slice
    return getattr(index, "value", index) if index.__class__.__name__ == "Index" else index


def _index_is_plain(target: ast.Subscript) -> bool:
    index = _index(target)
    return not isinstance(index, (ast.Slice, ast.Tuple)) and index.__class__.__name__ != "ExtSlice"


def plain_containers(scope: Scope) -> Set[str]:
    """Variables that are dicts or lists, by what they are made from anywhere in the file."""
    return _containers(scope.file)


@once
def _containers(file: File) -> Set[str]:
    found: Set[str] = set()
    for node in file.nodes:
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
            continue
        found.update(key(t) for t, value in pairs(node) if key(t) and _is_container(value))
    return found


def _is_container(value: ast.expr) -> bool:
    return (
        isinstance(value, (ast.Dict, ast.List, ast.DictComp, ast.ListComp))
        or isinstance(value, ast.Call)
        and method(value) in ("dict", "list", "defaultdict", "OrderedDict")
        or isinstance(value, ast.BinOp)
        and isinstance(value.op, ast.Mult)
        and isinstance(value.left, ast.List)
    )


LARGE_WINDOW = 10_000  # entries; a window that long holds the graphs of an epoch


@once
def bounded_containers(file: File) -> Set[str]:
    """Variables that are deques with a length: they drop what is old."""
    return {
        key(t)
        for n in file.nodes
        if isinstance(n, (ast.Assign, ast.AnnAssign))
        and n.value is not None
        and any(
            isinstance(c, ast.Call) and method(c) == "deque" and _short_window(c)
            for c in walk(n.value)
        )
        for t in targets(n)
        if key(t)
    }
