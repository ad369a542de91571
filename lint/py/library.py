"""What calls of other people's code do to values: PyTorch, Keras, NumPy, pandas and Python itself.

What is not known here gives an unknown value that remembers what it was made from.
"""

import ast
import functools
import re
from typing import Any, Dict, List, Optional, Set

from .evaluation import uses_card
from .flow import _GIVES, _LOSS, CLEAN_METHODS, is_model_name, module_names
from .machine import SEQUENCES, Args, Frame, Machine, held_with_via
from .names import FUNCTIONS, key, walk
from .networks import has_no_weights
from .values import (
    NONE,
    NOTHING,
    NUMBER,
    VARYING,
    Atom,
    Const,
    Foreign,
    Klass,
    Node,
    Number,
    Obj,
    Put,
    Value,
    ancestors,
    contents,
    held,
    join,
    known,
    nodes,
    objects,
)

LONG = 500  # a bound that is no window but a store
GROWING = frozenset("append add appendleft insert put put_nowait push".split())
EMPTYING = frozenset("clear pop popleft popitem remove discard get_nowait".split())
# Gives an integer, a fact or a new tensor without a past.
CLEAN_TORCH = frozenset(
    """argmax argmin argsort eq ne gt lt ge le isnan isinf is_tensor numel zeros_like ones_like
    rand_like randn_like empty_like full_like tensor as_tensor from_numpy
    equal allclose isfinite sign zeros ones rand randn randint empty full arange linspace eye
    randperm multinomial one_hot bucketize searchsorted nonzero count_nonzero""".split()
)
# A number that became a tensor: a tf.function is not traced again for its value.
_TF_TENSORS = frozenset(
    "tensorflow." + name for name in "convert_to_tensor constant cast Variable identity".split()
)
# pipe(prompt).images of diffusers, pipeline(text) of transformers
_PIPELINE = re.compile(r"(^|_)pipe(line)?$", re.I)
# As many values as there are classes, codes or bins: little, wherever it lies, and without a graph.
FEW_VALUES = frozenset("unique unique_consecutive bincount histc histogram nunique".split())
PAIRS = frozenset("max min topk sort kthvalue median mode cummax cummin".split())
SAME_MODULE = frozenset(
    """to cuda cpu half float double bfloat16 train eval requires_grad_ share_memory apply
    to_empty compile""".split()
)
WRAPPERS = (
    "DistributedDataParallel",
    "DataParallel",
    "FullyShardedDataParallel",
    "compile",
    "convert_sync_batchnorm",
    "get_peft_model",
    "DDP",
    "FSDP",
    "script",
)
READS_WHOLE = (
    "numpy.load",
    "numpy.loadtxt",
    "numpy.genfromtxt",
    "numpy.fromfile",
    "pandas.read_csv",
    "pandas.read_parquet",
    "pandas.read_pickle",
    "pandas.read_hdf",
    "pandas.read_feather",
    "polars.read_csv",
    "polars.read_parquet",
)
# Looks at what it is given and keeps nothing.
HARMLESS = re.compile(
    r"^(print|logging|logger|wandb|tqdm|matplotlib|plt|numpy|np|json|pickle|math|os|time|csv|"
    r"torch|sklearn|pandas|random|statistics|mlflow|pprint)(\.|$)"
)
# A network that reads a sequence from its end is called backward_rnn or decoder_backward, and
# differentiates nothing.
_PART = (
    "rnn|lstm|gru|cell|layer|conv|flow|encoder|decoder|head|block|branch|warp|cnn|mlp|unit|stream"
)
DIFFERENTIATES = re.compile(
    r"^(?!.*(%s)_backward).*backward(?!_?(model|net|rnn|lstm|gru|cell|layer|conv|actor|critic|flow|policy|encoder|decoder|"
    r"dynamics|warp|process|diffusion|transition|kernel|sde))|"
    r"^optimi[sz]e(_|$)|^update_(model|params|parameters)$" % _PART,
    re.I,
)
QUIET = re.compile(r"no_grad|inference_mode")
KERAS_BUILDS = re.compile(
    r"^(tensorflow\.)?(python\.)?keras\.((models|engine)\.)?(Model|Sequential|load_model|"
    r"clone_model|model_from_json)$|^(tensorflow\.)?keras\.applications\.[\w.]*[A-Z]\w*$"
)


# Parts of a model that are called one by one.
_LAYERS = re.compile(
    r"^(layer|block|stage|conv|bn|norm|fc|proj(ection)?|stem|maxpool|avgpool|relu|head)s?_?\d*$"
)
# Distributions that a policy gives: their samples have no gradient. Those of an autoencoder do.
_OF_ACTIONS = re.compile(r"^(dist(ribution)?|(action|policy)_dist\w*|pi|categorical)$", re.I)

# What models carry beside their layers.
_NO_MODULE = re.compile(
    r"tok(enizer)?s?$|vocab|processor$|transforms?$|config|logger|writer|optimizer|scheduler|log$",
    re.I,
)


class Library:
    def __init__(self, machine: Machine) -> None:
        self.m = machine
        self.modules = module_names(machine.file)
        self.card = uses_card(machine.file) or any(
            isinstance(n, ast.Call)
            and isinstance(n.func, ast.Attribute)
            and n.func.attr == "to"
            and bool(n.args)
            and "device" in (key(n.args[0]) or "").lower()
            for n in machine.file.nodes
        )
        self.frozen = 0  # frozen modules whose forward runs
        self.ran: Dict[Any, int] = {}
        self.checkpoints: List[Node] = []
        self.alive_told: Set[Node] = set()
        self.waiting: Dict[Any, Any] = {}  # models of a retained graph

    # unknown code

    def parameter(self, name: str) -> Value:
        """What somebody else hands in under this name."""
        made = self.m.node(None, label=name)
        made.module = name in self.modules or is_model_name(name)
        return frozenset([made])

    def unknown(self, name: str, args: Args) -> Value:
        m = self.m
        last = name.split(".")[-1]
        values = args.all()
        inputs = [n for v in values for n in held_with_via(v)]
        if DIFFERENTIATES.search(last) and any(n.graph for n in inputs):
            m.backward(frozenset(n for n in inputs if n.graph))
        if not HARMLESS.match(name):
            for v in values:
                for o in objects(v):
                    if o.kind in ("function", "bound", "partial") and m.frames:
                        self.called_back(o)
                    elif m.rounds:
                        self.escapes(o, 2)
        if re.search(r"detach|repackage", last) and inputs:
            return frozenset(m.cut(n) for n in inputs)
        made = m.node(None, inputs, last)
        if _LOSS.search(last) and any(n.graph for n in inputs) and m.grad is not False:
            made.graph, made.tensor, made.scalar = True, True, True
            made.card = any(n.card for n in inputs)
            made.kind = "losses"
        elif m.grad is False:
            made.graph = False if any(n.tensor for n in inputs) else None
        return frozenset([made])

    def escapes(self, obj: Obj, depth: int) -> None:
        """Unknown code got it, and may empty it."""
        obj.escaped = True
        for v in list(obj.attrs.values()) if depth else ():
            for o in objects(v):
                if o.kind in SEQUENCES + ("dict",):
                    self.escapes(o, depth - 1)

    def called_back(self, f: Obj) -> None:
        """A function that is handed to unknown code is called by it; how often is not known."""
        inner = f.function if f.kind == "function" else getattr(f.function, "function", None)
        if inner is not None and inner not in self.m.ran and f.kind != "partial":
            if "@tf" not in (f.extra or {}):
                # Whoever calls it decides about the grad mode and uses what it returns.
                self.m.returned |= held(self.m.call(frozenset([f]), Args([]), None))

    # functions of the file

    def decorated(self, d: ast.expr, value: Value, frame: Frame, s: Any) -> Value:
        m = self.m
        if isinstance(d, ast.Attribute) and d.attr in ("setter", "deleter", "getter"):
            frame.vars["set:" + s.name] = value
            return frame.vars.get(s.name, NOTHING)
        name = (m.file.dotted(d.func if isinstance(d, ast.Call) else d) or "").split(".")[-1]
        marks: Dict[str, Any] = {}
        if QUIET.search(name):
            marks["@no_grad"] = True
        elif name in ("property", "cached_property"):
            marks["@property"] = True
        elif name == "staticmethod":
            marks["@static"] = True
        elif name in ("lru_cache", "cache") and s.args.args + s.args.kwonlyargs:
            kept = m.obj("dict", s.name)
            kept.bounded = _bounded_cache(d, name)
            kept.extra = None
            marks["@cached"] = kept
        elif (m.file.dotted(d.func if isinstance(d, ast.Call) else d) or "") in (
            "tensorflow.function",
        ):
            marks["@made"] = m.rounds
            marks["@tf"] = not (
                isinstance(d, ast.Call)
                and any(k.arg in ("input_signature", "reduce_retracing") for k in d.keywords)
            )
        if marks:
            for o in objects(value):
                if o.kind == "function":
                    o.extra = dict(o.extra or {}, **marks)
            return value
        made = m.value(d, frame)
        own = [a for a in made if isinstance(a, (Klass,)) or isinstance(a, Obj)]
        if not own:
            return value
        result = m.call(frozenset(own), Args([value]), None)
        return result if objects(result) else value

    def called(self, f: Obj, args: Args) -> None:
        """A tf.function that gets a Python number which changes is traced again for each value."""
        marks = f.extra or {}
        here = self.m.frames[-1].number if self.m.frames else 0
        if (
            "@tf" in marks
            and self.m.rounds
            and marks.get("@made") == self.m.rounds
            and self.m.rounds[-1].loop.frame.number == here
        ):
            self.m.story.facts.append(("traced", self.m.where(), f))
        if marks.get("@tf") and self.m.rounds:
            for v in args.pos + list(args.kw.values()):
                if any(isinstance(a, Number) and a.varies for a in v):
                    # tf.ones(n) * i is a tensor, settings.lr * i is none: the file does not say
                    sure = not any(isinstance(a, (Node, Obj)) for a in v)
                    kind = "retraced" if sure else "perhaps retraced"
                    self.m.story.facts.append((kind, self.m.where(), f.label))

    def default_field(self, value: Value) -> Value:
        """field(default_factory=list)"""
        for o in objects(value):
            if o.kind == "field":
                return self.m.call(o.extra, Args([]), None)
        return value

    def inherited_init(self, made: Obj, args: Args) -> None:
        for name, value in args.kw.items():  # most constructors keep what they are given
            made.attrs.setdefault(name, value)

    # objects

    def object_attribute(self, obj: Obj, name: str) -> Value:
        m = self.m
        if obj.kind == "function" and name in ("remote", "__wrapped__"):
            return frozenset([obj])
        if obj.kind in SEQUENCES + ("dict", "queue") or obj.kind == "iter":
            made = m.obj("method", name)
            made.receiver = obj
            return frozenset([made])
        if obj.kind == "instance" and name == "__dict__":
            return frozenset([obj])
        if obj.kind == "instance" and name == "__class__" and obj.klass is not None:
            return frozenset([obj.klass])
        if name == "training" and obj.module:
            return NUMBER
        if name == "device" and obj.module:
            return NUMBER
        made_node = m.node(None, label=name)
        made_node.born = obj.born
        layer = obj.module and not name.startswith(("_", "log", "get", "is_", "on_", "hparams"))
        made_node.module = layer or "self." + name in self.modules or is_model_name(name)
        if obj.module:
            made_node.owner = obj
        obj.attrs[name] = frozenset([made_node])
        return obj.attrs[name]

    def call_object(self, obj: Obj, args: Args, name: str) -> Value:
        if obj.kind == "loss":
            made = self.m.derive([n for v in args.all() for n in held_with_via(v)], "loss")
            made.scalar, made.tensor = not obj.copied, True
            return frozenset([made])
        if obj.kind == "keras":
            return self.m.opaque(args.all())
        return self.unknown(name, args)

    # iteration

    def iterator(self, kind: str, values: List[Value]) -> Value:
        made = self.m.obj("iter")
        made.extra = (kind, values)
        return frozenset([made])

    def exactly(self, it: Obj) -> Optional[List[Value]]:
        kind, values = it.extra
        m = self.m
        if kind in ("items", "values"):
            d = objects(values[0])
            if len(d) != 1 or d[0].puts or not d[0].entries:
                return None
            found = []
            for at, p in d[0].entries.items():
                taken = m.taken(d[0], p.value)
                at_value = frozenset([Const(at)])
                found.append(m.sequence("tuple", [at_value, taken]) if kind == "items" else taken)
            return found
        parts = [m.exactly(v) for v in values]
        if kind == "enumerate" and parts and parts[0] is not None:
            return [m.sequence("tuple", [VARYING, v]) for v in parts[0]]
        if kind == "zip" and parts and all(p is not None for p in parts):
            return [m.sequence("tuple", list(row)) for row in zip(*parts)]
        return None

    def element(self, it: Obj) -> Value:
        kind, values = it.extra
        m = self.m
        if kind == "range":
            return VARYING
        if kind == "enumerate":
            return m.sequence("tuple", [VARYING, m.element(values[0])])
        if kind == "zip":
            return m.sequence("tuple", [m.element(v) for v in values])
        if kind == "items":
            return m.sequence("tuple", [NUMBER, m.element(values[0], values=True)])
        if kind == "values":
            return m.element(values[0], values=True)
        return m.element(join(*values)) if values else m.opaque()

    def element_of(self, obj: Obj) -> Value:
        m = self.m
        if obj.kind in ("weights", "submodules"):
            owner, named = obj.extra
            one = self.weight(owner) if obj.kind == "weights" else self.submodule(owner)
            return m.sequence("tuple", [NUMBER, frozenset([one])]) if named else frozenset([one])
        if obj.klass is not None and obj.kind == "instance":
            begin = obj.klass.find("__iter__")
            if begin is not None:
                return m.element(m.call_method(obj, begin, Args([])))
            get = obj.klass.find("__getitem__")
            if get is not None:
                return m.call_method(obj, get, Args([VARYING]))
        if obj.module:
            return frozenset([self.submodule(obj)])
        if obj.kind == "loader":
            sets = objects(obj.attrs.get("dataset", NOTHING))
            made = m.node(None, label="batch")
            made.data = True
            if sets and sets[0].klass is not None:
                get = sets[0].klass.find("__getitem__")
                if get is not None:
                    m.call_method(sets[0], get, Args([VARYING]))
            return frozenset([made])
        return m.opaque([frozenset([obj])])

    def weight(self, owner: Any) -> Node:
        cached = owner.attrs.get("@weight")
        if cached is None:
            made = Node(getattr(owner, "born", ()), self.m.where(), False, (), "weight")
            made.weight, made.owner = True, owner
            made.card = self._lies_on_card(owner)
            made.of_weights = True
            cached = owner.attrs["@weight"] = frozenset([made])
        found = nodes(cached)[0]
        found.weight = not owner.frozen
        return found

    def submodule(self, owner: Any) -> Node:
        cached = owner.attrs.get("@module")
        if cached is None:
            made = Node(getattr(owner, "born", ()), self.m.where(), None, (), "module")
            made.module, made.owner, made.training = True, owner, owner.training
            cached = owner.attrs["@module"] = frozenset([made])
        return nodes(cached)[0]

    # modules

    def forward(self, module: Any, args: Args) -> Value:
        m = self.m
        outermost = m.forward_depth == 0
        m.forward_depth += 1
        self.frozen += bool(module.frozen)
        result = None
        try:
            klass = getattr(module, "klass", None)
            code = (klass.find("forward") or klass.find("__call__")) if klass is not None else None
            if code is not None and self.ran.get(code, 0) < 12:
                self.ran[code] = self.ran.get(code, 0) + 1
                result = m.call_method(module, code, args)
                if not held(result):
                    result = None if not objects(result) else result
            if result is None:
                result = frozenset([self._given(module, args)])
            for hook in list(module.hooks):
                self._hook(hook, module, args, result)
        finally:
            m.forward_depth -= 1
            self.frozen -= bool(module.frozen)
        if outermost:
            for n in held(result):
                n.maker = module
        if outermost and m.rounds and m.grad is True and not module.frozen:
            quiet = module.training is False
            for n in held(result) if quiet else ():
                n.quiet = True
            m.story.forwards.append((m.where(), quiet, m.rounds, held(result)))
        return result

    def _given(self, module: Any, args: Args) -> Node:
        m = self.m
        inputs = [n for v in args.all() for n in held_with_via(v)]
        if known(args.kw.get("return_loss", NOTHING)) == Const(False):
            return m.node(None, inputs, "results")  # of OpenMMLab's models: arrays, not tensors
        made = m.derive([n for n in inputs if n.graph is not False], "output")
        fixed = self.frozen > 0
        made.graph = m.grad is not False and (not fixed or any(n.graph for n in inputs))
        made.card = self.card and (self._lies_on_card(module) or any(n.card for n in inputs))
        made.tensor, made.output, made.scalar = True, True, False
        made.whole, made.data = "", False
        for n in inputs:
            if n.whole:
                m.story.facts.append(("whole_used", m.where(), n))
        return made

    def _lies_on_card(self, module: Any) -> bool:
        for _ in range(6):
            if module is None or module.card:
                return module is not None
            module = getattr(module, "owner", None)
        return any(
            o.card
            for f in self.m.frames
            if f.receiver is not None
            for o in [f.receiver]
            if o.module
        )

    def _hook(self, hook: Value, module: Any, args: Args, result: Value) -> None:
        m = self.m
        m.hooked += 1
        shown = m.sequence("tuple", args.pos)
        m.call(hook, Args([frozenset([module]), shown, result]), None)
        m.hooked -= 1

    def module_method(self, module: Any, name: str, args: Args) -> Optional[Value]:
        m = self.m
        same = frozenset([module])
        if name in ("parameters", "named_parameters", "buffers", "named_buffers"):
            made = m.obj("weights")
            made.extra = (module, name.startswith("named"))
            return frozenset([made])
        if name in ("modules", "children", "named_modules", "named_children"):
            made = m.obj("submodules")
            made.extra = (module, name.startswith("named"))
            return frozenset([made])
        if name in ("eval", "train"):
            on = name == "train"
            if args.pos and on:
                c = known(args.pos[0])
                on = bool(c.value) if c is not None else None  # type: ignore[assignment]
            module.training = on
            return same
        if name == "requires_grad_":
            c = known(args.get(0, "requires_grad")) if args.all() else None
            module.frozen = c is not None and c.value is False
            return same
        if name in ("cuda", "to", "cpu"):
            module.card = name == "cuda" or name == "to" and self._to_card(args) is not False
            return same
        if name in SAME_MODULE or name in ("load_adapter", "gradient_checkpointing_enable"):
            return same
        if name == "freeze":
            module.frozen = True
            return NONE
        if "adapter" in name or "lora" in name or name.startswith("unfreeze"):
            module.frozen = False
        if name == "state_dict":
            state = m.node(False, label="state_dict")
            state.kind, state.owner, state.card = "state", module, self._lies_on_card(module)
            state.of_weights = True
            state.born = getattr(module, "born", ())
            return frozenset([state])
        if name == "load_state_dict":
            for v in args.all():
                for n in held(v):
                    self._restored(n)
            return NONE
        if name in ("register_forward_hook", "register_forward_pre_hook") and args.pos:
            (module.owner if module.owner is not None else module).hooks.append(args.pos[0])
            return m.opaque(label="handle")
        if name in ("zero_grad", "save_pretrained", "register_buffer", "add_module"):
            return NONE
        if name == "generate":  # runs under no_grad by itself
            grad, m.grad = m.grad, False
            given = self.forward(module, args)
            m.grad = grad
            return given
        if name in ("forward", "__call__"):
            return self.forward(module, args)
        if name.startswith("__"):  # module.__getattr__("mean"): what is there, computed by nobody
            return frozenset([m.node(False, label=name)])
        if _LAYERS.match(name) and args.all():
            return frozenset([self._given(module, args)])
        if _GIVES.search(name):
            grad = m.grad
            if name.startswith("compute_") and m.grad:
                m.grad = None  # of another file, and made for inference as often as not
            given = self.forward(module, args)
            m.grad = grad
            return given
        return None

    def _restored(self, n: Node) -> None:
        seen, todo = {n}, [n]
        while todo:
            at = todo.pop()
            if at.kind == "checkpoint":
                at.used = True
            for i in at.inputs:
                if i not in seen:
                    seen.add(i)
                    todo.append(i)

    # tensors and unknown values

    def node_attribute(self, n: Node, name: str) -> Value:
        m = self.m
        if name in n.attrs:
            return n.attrs[name]
        if name == "data":
            return frozenset([m.cut(n)]) if n.tensor else frozenset([n])
        if (
            name
            in (
                "shape device dtype grad_fn requires_grad is_leaf ndim is_cuda layout training config"
            ).split()
        ):
            return NUMBER
        if name == "grad":
            made = m.node(False, label="grad")
            made.of_weights = n.weight
            made.card = n.card
            return frozenset([made])
        if n.kind == "pair" and name == "indices":
            return frozenset([m.node(False)])
        if name in ("T", "mT", "real", "imag", "H", "values", "iloc", "loc"):
            made = m.alias(n)
            return frozenset([made])
        made = m.alias(n, name)
        if n.module:
            made = m.node(None, label=name)
            made.born, made.module = n.born, n.module and not _NO_MODULE.search(name)
            made.owner, made.training, made.frozen = n, n.training, n.frozen
        elif not n.tensor:
            made.module = is_model_name(name) and n.graph is None and not n.data
        if "loss" in name:
            made.scalar = True
        n.attrs[name] = frozenset([made])
        return n.attrs[name]

    def call_node(self, n: Node, args: Args, name: str) -> Value:
        last = name.split(".")[-1]
        if (
            _PIPELINE.search(last) or n.label == "pipeline"
        ) and not n.tensor:  # runs under no_grad by itself
            return frozenset([self.m.node(False, label=last)])
        if n.module or name in self.modules or is_model_name(name) and not n.tensor:
            n.module = True
            return self.forward(n, args)
        if n.kind == "decorator":
            return args.get(0)
        return self.unknown(last or n.label, args)

    def _to_card(self, args: Args) -> Optional[bool]:
        """Does x.to(...) move to the card? None where it only changes the type."""
        card: Optional[bool] = None
        for a in args.get(0, "device"):
            if isinstance(a, Const) and isinstance(a.value, str):
                card = not a.value.startswith(("cpu", "meta"))
            elif isinstance(a, Const) and isinstance(a.value, int):
                card = True
            elif isinstance(a, Foreign):
                card = True if a.name.endswith("device") else card
            elif isinstance(a, Node):
                card = a.card if a.kind == "device" else True
            elif isinstance(a, Number):
                card = True
        return card

    def _on_card(self, n: Node, args: Args, name: str) -> Value:
        m = self.m
        card = self._to_card(args) if name == "to" else True
        if n.kind == "checkpoint":
            n.module, n.used = True, False  # a whole model was saved: it is the model, not a copy
            return frozenset([n])
        if not n.tensor and not n.data:
            n.card = bool(card)
            if n.whole and card:
                m.story.facts.append(("whole_on_card", m.where(), n))
            return frozenset([n])
        made = m.derive([n], n.label)
        made.scalar, made.kind = n.scalar, "alias" if card is None else ""
        if card is not None:
            made.card = card
        if card and n.whole:
            m.story.facts.append(("whole_on_card", m.where(), made))
        if card is None:
            made.born = n.born
        return frozenset([made])

    def node_method(self, n: Node, name: str, args: Args, e: Any) -> Value:
        m = self.m
        if name in n.attrs and not n.tensor:
            found = [a for a in n.attrs[name] if isinstance(a, Obj)]
            if found:
                return m.call(frozenset(found), args, e)
        if name == "enter_context" and args.pos:
            return self._enters(args)
        if name == "register_hook" and not n.module:
            return m.opaque(label="handle")
        if name in ("backward", "manual_backward"):
            given = frozenset(n for v in args.pos[:1] for n in held_with_via(v))
            graph = [a for a in given if isinstance(a, Node) and (a.tensor or not n.tensor)]
            retain = known(args.kw.get("retain_graph", NOTHING))
            m.backward(
                frozenset(graph) if graph and not n.tensor else frozenset([n]),
                retains=retain is not None and retain.value is True,
            )
            self.look_for_checkpoints()
            return NONE
        if name in ("detach", "detach_", "copy_to_host"):
            if name == "detach_":
                self._detached_in_place(n)
                return frozenset([n])
            return frozenset([m.cut(n)]) if n.tensor or n.graph is None else frozenset([n])
        if not n.tensor and (n.module or not n.data):
            answer = self._module_like(n, name, args, e)
            if answer is not None:
                return answer
        if name in ("item", "tolist"):
            return VARYING
        if name in FEW_VALUES and (n.tensor or n.whole or n.data):
            return frozenset([m.node(False, label=name)])
        if name in ("cuda", "to"):
            return self._on_card(n, args, name)
        if name in ("cpu", "numpy", "to_numpy", "asnumpy"):
            made = m.derive([n], n.label)
            made.card = False
            if name != "cpu":
                made.graph, made.inputs, made.output = False, (), False
            if name == "cpu" and not n.tensor and not n.data:
                return frozenset([n])
            return frozenset([made])
        if name in CLEAN_METHODS and n.tensor:
            made = m.node(False)
            made.card = n.card
            if name in ("argmax", "long", "int", "bool", "round") and (
                n.output or n.kind == "mask"
            ):
                made.kind = "mask"  # one number a pixel, or a sample
            return frozenset([made])
        if name in CLEAN_METHODS:
            return NUMBER if name != "keys" else self.iterator("keys", [frozenset([n])])
        if name in ("items", "named_parameters") and not n.tensor:
            return self.iterator("pairs", [frozenset([n])])
        if name in ("copy", "clone") and n.kind == "state":
            return frozenset([self._copied_state(n)])
        if n.kind == "mask" and name in ("float", "double", "type", "squeeze", "view", "flatten"):
            return frozenset([n])
        inputs = [n] + [x for v in args.all() for x in held_with_via(v)]
        if name.endswith("_") and not name.startswith("_") and (n.tensor or n.graph is None):
            if name in ("zero_", "fill_", "normal_", "uniform_"):
                return frozenset([n])
            m.in_place(n, inputs[1:])
            return frozenset([n])
        if name in ("sample", "sample_n") and (
            n.kind == "distribution" or _OF_ACTIONS.search(n.label)
        ):
            return frozenset([m.node(False)])
        return self._reckoned(n, name, args, inputs, e)

    def _detached_in_place(self, n: Node) -> None:
        """x.detach_(); where x was taken out of something, that has no graph any more either."""
        inside = n.inputs if n.kind == "alias" or not n.tensor else ()
        n.graph, n.inputs = False, ()
        for i in inside:
            if i.graph is not False and i.born == n.born:
                self._detached_in_place(i)

    def _reckoned(self, n: Node, name: str, args: Args, inputs: List[Node], e: Any) -> Value:
        """Another method of a tensor, or of something unknown."""
        m = self.m
        if name in ("type_as", "view_as", "expand_as", "reshape_as"):
            inputs = [n]  # what it is given says which form, and no more
        if n.tensor or n.kind == "distribution":
            made = m.derive(inputs, n.label)
            if name in PAIRS and args.all():
                made.kind = "pair"
            if name in ("mean", "sum", "norm", "prod") and not args.all():
                made.scalar, made.kind = True, "alias"
            if name in ("view", "reshape", "squeeze", "unsqueeze", "float", "flatten", "t"):
                made.scalar = n.scalar
            return frozenset([made])
        if n.whole or n.data:
            made = m.derive(inputs, n.label)
            made.whole = n.whole if name not in ("sample", "head", "iloc", "batch") else ""
            return frozenset([made])
        if name == "scale" and args.pos:  # GradScaler
            made = m.derive(inputs[1:], "loss", "sum")
            return frozenset([made])
        if name in ("prepare", "setup", "initialize") and args.pos:
            return args.pos[0] if len(args.pos) == 1 else m.sequence("tuple", args.pos)
        if (
            name in ("append", "extend", "appendleft", "insert", "add")
            and args.pos
            and not (name == "add" and len(args.pos) > 1)
        ):
            box = n.attrs.get("[]")
            if box is None:
                made_obj = m.obj("list", n.label)
                made_obj.born, made_obj.escaped = n.born, True
                box = n.attrs["[]"] = frozenset([made_obj])
            m.put(objects(box)[0], args.pos[-1], "append")
            return NONE
        if name == "optimize" and args.pos:
            for o in objects(args.pos[0]):
                if o.kind in ("function", "bound", "partial", "instance"):
                    trial = self.parameter("trial")
                    m.loop(
                        e or m.frames[-1].statement,
                        m.frames[-1],
                        functools.partial(_tried, m, o, trial),
                        kind="trial",
                    )
            return NONE
        label = "%s.%s" % (n.label, name)
        found = self.unknown(label, args)
        for x in nodes(found):
            x.inputs = (x.inputs + (n,)) if n.graph is not False or n.attrs else x.inputs
            if n.graph and m.grad is not False and x.graph is None and name in ("get", "pop"):
                x.graph, x.tensor = n.graph, n.tensor
        return found

    def _module_like(self, n: Node, name: str, args: Args, e: Any) -> Optional[Value]:
        if name in (
            "parameters named_parameters eval train modules named_modules state_dict "
            "load_state_dict register_forward_hook"
        ).split() and not (name == "train" and len(args.all()) > 1):
            if not re.search(r"optim|sched|scaler|loader|trainer", n.label, re.I):
                n.module = True
        if not n.module:
            return None
        return self.module_method(n, name, args)

    # methods of anything

    def method(self, atom: Any, name: str, args: Args, e: Any) -> Value:
        m = self.m
        m.tick()
        if isinstance(atom, Foreign):
            return self.call(atom.name + "." + name, args, e)
        if isinstance(atom, Klass):
            found = atom.find(name)
            return m.call(found, args, e) if found is not None else m.opaque(args.all())
        if isinstance(atom, Node):
            return self.node_method(atom, name, args, e)
        if not isinstance(atom, Obj):
            if any(held(v) or _varies(v) for v in args.all()):  # "{}.png".format(i)
                return VARYING
            return NUMBER
        if name in atom.attrs:
            return m.call(atom.attrs[name], args, e)
        if name == "enter_context" and args.pos:
            return self._enters(args)
        if atom.kind == "instance" and atom.klass is not None:
            found = atom.klass.find(name)
            if found is None and name == "train" and atom.klass.comes_from(("Trainer",)):
                if atom.klass.find("compute_loss") or atom.klass.find("training_step"):
                    return self.trained(atom)
            if found is not None:
                functions = frozenset(
                    a for a in found if isinstance(a, Obj) and a.kind == "function"
                )
                if functions:
                    if any((a.extra or {}).get("@property") for a in objects(functions)):
                        return m.call(m.object_attribute(atom, name), args, e)
                    return m.call_method(atom, functions, args)
                return m.call(m.object_attribute(atom, name), args, e)
            if atom.klass.comes_from(("list", "dict", "deque", "UserDict", "OrderedDict")):
                return self.container(atom, name, args)
        if atom.module:
            given = self.module_method(atom, name, args)
            if given is not None:
                return given
        if name in ("manual_backward", "backward") and args.pos:
            m.backward(frozenset(n for v in args.pos[:1] for n in held_with_via(v)))
            self.look_for_checkpoints()
            return NONE
        if atom.kind in SEQUENCES + ("dict", "queue", "iter"):
            return self.container(atom, name, args)
        if atom.kind == "function" and name in ("remote", "__wrapped__"):
            return m.call(frozenset([atom]), args, e)
        if atom.kind == "optimizer":
            return self._optimizer(atom, name, args)
        if atom.kind == "keras":
            return self._keras(atom, name, args)
        if atom.klass is not None and atom.klass.comes_from(("Model",)) and name == "fit":
            return self._keras(atom, name, args)
        if atom.kind in ("loss", "loader", "gradmode"):
            return frozenset([atom]) if name in ("to", "cuda") else m.opaque(args.all())
        return self.unknown("%s.%s" % (atom.label or "it", name), args)

    def _enters(self, args: Args) -> Value:
        """ExitStack.enter_context: what it is given holds until the block of the stack ends."""
        for o in objects(args.pos[0]):
            if o.kind == "gradmode":
                self.m.grad = o.extra
        return args.pos[0]

    def _optimizer(self, atom: Obj, name: str, args: Args) -> Value:
        self._trains(atom, name)
        if name == "step" and args.pos:
            for o in objects(args.pos[0]):
                if o.kind in ("function", "bound"):
                    return self.m.call(frozenset([o]), Args([]), None)
        if name == "load_state_dict":
            for v in args.all():
                for n in held(v):
                    self._restored(n)
        if name == "state_dict":
            return frozenset([self.m.node(False, label="state_dict")])
        return NONE

    def _keras(self, atom: Obj, name: str, args: Args) -> Value:
        if name in ("fit", "fit_generator", "train_on_batch"):
            atom.trained = True
            for r in self.m.rounds:
                r.loop.trained = True
        return self.m.opaque(args.all())

    def retained(self, given: Set[Node]) -> None:
        """backward(retain_graph=True): which models does it run through?"""
        self.waiting = {}
        for n in given:
            for a in ancestors(n):
                # What another model's output runs through cannot be left out: its gradients
                # reach that model on this way.
                if a.maker is not None and not any(
                    b.maker not in (None, a.maker) for b in ancestors(a)
                ):
                    self.waiting[a.maker] = self.m.where()

    def _trains(self, atom: Obj, name: str) -> None:
        """Gradients of a retained graph that are cleared before any step uses them."""
        for owner in atom.extra or ():
            where = self.waiting.get(owner)
            if where is not None and name == "zero_grad" and self.m.rounds:
                self.m.story.facts.append(("thrown away", where, owner))
            if name in ("zero_grad", "step"):
                self.waiting.pop(owner, None)

    # trainers

    def trained(self, trainer: Obj) -> Value:
        """What the Trainer of Transformers does with a class of this file."""
        m = self.m
        klass: Any = trainer.klass
        step = klass.find("compute_loss") or klass.find("training_step")
        callbacks = [
            o for v in m.elements(trainer.attrs.get("callbacks", NOTHING)) for o in objects(v)
        ]

        def one(_: int) -> None:
            batch = m.node(None, label="inputs")
            batch.data = batch.card = True
            model = trainer.attrs.get("model") or self.parameter("model")
            result = m.call_method(trainer, step, Args([model, frozenset([batch])]))
            m.backward(join(result, *[m.item(o, 0) for o in objects(result)]))
            for c in callbacks:
                for name in ("on_step_end", "on_log"):
                    found = c.klass.find(name) if c.klass is not None else None
                    if found is not None:
                        m.call_method(c, found, Args([]))

        frame = m.frames[-1]
        m.loop(frame.statement, frame, one, kind="trainer")
        return NONE

    # containers

    def container(self, obj: Obj, name: str, args: Args) -> Value:
        m = self.m
        if name in GROWING and args.pos and not (name == "add" and len(args.pos) > 1):
            if name == "insert" and len(args.pos) > 1:
                m.put(obj, args.pos[1], "append")
            else:
                m.put(obj, args.pos[0], "append")
            return NONE
        if name in ("extend", "update", "extendleft") and obj.kind != "dict":
            for v in args.pos:
                self.pour(obj, v)
            return NONE
        if name == "update":
            self.update(obj, args)
            return NONE
        if name in EMPTYING or name == "get" and obj.kind == "queue":
            return self._taken_out(obj, name, args)
        if name == "setdefault" and args.pos:
            c = known(args.pos[0])
            at = c.value if c is not None else None
            old = m.item(obj, at) if c is not None else m.element(frozenset([obj]), values=True)
            if at in obj.entries or c is None and obj.puts:
                return old
            value = args.get(1)
            for o in objects(value):
                o.born = obj.born
            m.put(obj, value, "store", at)
            return value
        if name == "get" and args.pos:
            c = known(args.pos[0])
            found = m.item(obj, c.value) if c is not None else NOTHING
            if c is None and (obj.entries or obj.puts):
                found = m.element(frozenset([obj]), values=True)
            default = args.get(1, "default")
            if c is not None and c.value in obj.entries:
                return found
            return join(found, default or NONE)
        if name in ("items", "values"):
            return self.iterator(name, [frozenset([obj])])
        if name in ("copy", "keys"):
            made = m.obj(obj.kind if name == "copy" else "list", obj.label)
            if name == "copy":
                made.entries, made.puts = dict(obj.entries), list(obj.puts)
            return frozenset([made])
        return NUMBER

    def pour(self, obj: Obj, value: Value) -> None:
        """Puts every element of a value into a container."""
        m = self.m
        generators = [o for o in objects(value) if o.kind == "generator"]
        for g in generators:
            frame = m.frames[-1]
            m.generate(g, frame, lambda v: m.put(obj, v, "append"))
        if value - frozenset(generators) or not generators:
            for v in m.elements(value - frozenset(generators)):
                m.put(obj, v, "append")

    def _taken_out(self, obj: Obj, name: str, args: Args) -> Value:
        m = self.m
        value = m.element(frozenset([obj]), values=True) if obj.entries or obj.puts else NUMBER
        c = known(args.get(0))
        if obj.kind == "dict" and name == "pop" and c is not None:
            put = obj.entries.pop(c.value, None)
            value = put.value if put is not None else value
        else:
            m.empty(obj)
        return NONE if name in ("clear", "remove", "discard") else value

    def update(self, obj: Obj, args: Args) -> None:
        m = self.m
        for name, v in args.kw.items():
            m.put(obj, v, "store", name)
        for v in args.pos + ([args.rest] if args.rest else []):
            for o in objects(v):
                for at, p in list(o.entries.items()):
                    m.put(obj, p.value, "store", at)
                for p in list(o.puts):
                    m.put(obj, p.value, "store")
            if nodes(v):
                m.put(obj, m.element(frozenset(nodes(v))), "store", "update")

    def missing(self, obj: Obj, at: Any) -> Value:
        """d[k] of a defaultdict: made by its factory, and there from then on."""
        m = self.m
        value = m.call(obj.extra, Args([]), None)
        for o in objects(value):
            o.born = obj.born
        if at is None:
            obj.puts.append(Put(value, m.where(), m.rounds, "made", False))
        else:
            obj.entries[at] = Put(value, m.where(), m.rounds, "made", False)
        return value

    # names of other people's code

    def call(self, name: str, args: Args, e: Any) -> Value:
        m = self.m
        last = name.split(".")[-1]
        if "." not in name:
            known_ = getattr(self, "_builtin_" + name, None)
            if known_ is not None:
                answer: Value = known_(args)
                return answer
            if name == "len" and any(
                p.rounds for v in args.pos for o in objects(v) for p in contents(o)
            ):
                return VARYING  # of something that grows
            if name in _NUMBERS:
                return VARYING if any(nodes(v) or _varies(v) for v in args.all()) else NUMBER
        if name.startswith("torch.") or name.startswith(("einops.", "torchvision.ops")):
            return self._torch(name, last, args, e)
        maker = _MAKERS.get(last)
        if maker is not None and not name.startswith("."):
            value: Value = getattr(self, maker)(args)
            return value
        if last in ("deepcopy", "copy", "clone") and args.pos and name.startswith("copy"):
            return self._copied(args.pos[0])
        if last == "partial" and args.pos:
            made = m.obj("partial")
            rest = Args(args.pos[1:], args.kw)
            rest.rest = args.rest
            made.extra = (args.pos[0], rest)
            return frozenset([made])
        if last in ("tqdm", "trange", "track", "chain", "cycle", "islice", "progress_bar"):
            if last == "trange":
                return self.iterator("range", [])
            return join(*args.pos[: 1 if last != "chain" else None]) if args.pos else m.opaque()
        if last == "field" and "default_factory" in args.kw:
            made = m.obj("field")
            made.extra = args.kw["default_factory"]
            return frozenset([made])
        if last == "namedtuple" and len(args.pos) >= 2:
            return self._named_tuple(args)
        if name in _TF_TENSORS:
            return frozenset([m.node(False, label=last)])
        if name.startswith("math."):
            return VARYING if any(_varies(v) or nodes(v) for v in args.all()) else NUMBER
        if name in READS_WHOLE:  # mapped or not: moved to the card it is there whole
            made_node = m.node(False, label=last)
            made_node.whole, made_node.tensor = last, False
            return frozenset([made_node])
        if last == "train_test_split":
            parts = []
            for v in args.pos:
                parts += [v, v]
            return m.sequence("list", parts)
        if name.startswith(("numpy.", "pandas.", "scipy.", "sklearn.", "cv2.")):
            inputs = [n for v in args.all() for n in held_with_via(v)]
            made_node = m.node(False if inputs else None, (), last)
            made_node.whole = next((n.whole for n in inputs if n.whole), "")
            made_node.tensor = False
            return frozenset([made_node])
        if KERAS_BUILDS.match(name):
            made = m.obj("keras", last)
            m.story.facts.append(("keras", m.where(), (made, m.rounds)))
            return frozenset([made])
        if last == "clear_session":
            for r in m.rounds:
                r.loop.cleared = True
            return NONE
        if last in WRAPPERS and args.pos:
            for a in args.pos[0]:
                if last == "get_peft_model" and isinstance(a, (Node, Obj)):
                    a.frozen = False
            return args.pos[0]
        if (
            last in ("from_pretrained", "create_model", "from_config")
            or name.startswith(("torchvision.models.", "timm.", "segmentation_models_pytorch."))
            or name == "torch.hub.load"
        ):
            if "Pipeline" in name:
                return frozenset([m.node(None, label="pipeline")])
            if not re.search(r"token|config|processor|extractor|schedul|dataset", name, re.I):
                return self._module(last)
        return self.unknown(name, args)

    def _module(self, label: str) -> Value:
        made = self.m.obj("module", label)
        made.module, made.training = True, True
        return frozenset([made])

    def _named_tuple(self, args: Args) -> Value:
        c = known(args.pos[1])
        fields = c.value.replace(",", " ").split() if c and isinstance(c.value, str) else []
        if not fields:
            for v in self.m.elements(args.pos[1]):
                one = known(v)
                if one is not None and isinstance(one.value, str):
                    fields.append(one.value)
        made = Klass(
            ast.ClassDef(name="", bases=[], keywords=[], body=[], decorator_list=[]), self.m.globals
        )
        made.fields = fields
        return frozenset([made]) if fields else self.m.opaque()

    def _copied(self, value: Value) -> Value:
        m = self.m
        found: Set[Atom] = set()
        for a in value:
            if isinstance(a, Node) and a.kind == "state":
                found.add(self._copied_state(a))
            elif getattr(a, "module", False):
                made = m.obj("module", getattr(a, "label", ""))
                made.module, made.copied = True, True
                made.klass = getattr(a, "klass", None)
                made.attrs = dict(a.attrs)  # type: ignore[attr-defined]
                made.training, made.card = a.training, a.card  # type: ignore[attr-defined]
                if made.klass is not None:
                    made.kind = "instance"
                found.add(made)
            elif isinstance(a, Obj) and a.kind in SEQUENCES + ("dict",):
                made = m.obj(a.kind, a.label)
                made.entries, made.puts = dict(a.entries), list(a.puts)
                found.add(made)
            elif isinstance(a, Node) and a.tensor:
                found.add(m.derive([a], a.label))
            else:
                found.add(a)
        return frozenset(found)

    def _copied_state(self, n: Node) -> Node:
        made = self.m.node(False, label="state_dict")
        made.kind, made.owner, made.card = "state", n.owner, n.card
        made.of_weights = True
        return made

    def _torch(self, name: str, last: str, args: Args, e: Any) -> Value:
        m = self.m
        if last in ("no_grad", "inference_mode", "enable_grad", "set_grad_enabled"):
            made = m.obj("gradmode", last)
            c = known(args.get(0, "mode")) if args.all() else None
            if last == "enable_grad":
                made.extra = True
            elif last == "set_grad_enabled":
                made.extra = c.value if c is not None else None
            else:
                made.extra = bool(c is not None and c.value is False)
            return frozenset([made])
        if name.startswith("torch.nn.") and last[:1].isupper():
            if last == "Parameter":
                weight = m.node(False, label="parameter")
                asked = known(args.get(1, "requires_grad"))
                weight.weight = asked is None or asked.value is not False
                return frozenset([weight])
            if last in ("DataParallel", "DistributedDataParallel"):
                return args.get(0)
            if last.endswith("Loss"):
                made = m.obj("loss", last)
                r = known(args.kw.get("reduction", NOTHING)) if "reduction" in args.kw else None
                made.copied = r is not None and r.value == "none"
                return frozenset([made])
            layer = self._module(last)
            objects(layer)[0].frozen = has_no_weights(last)
            return layer
        if last in ("DistributedDataParallel", "FullyShardedDataParallel", "compile", "script"):
            return args.get(0) or m.opaque()
        if name.startswith("torch.optim."):
            if "lr_scheduler" in name or "swa_utils" in name:
                return m.opaque(label="scheduler")
            made = m.obj("optimizer", last)
            made.extra = []
            for v in args.all():
                for o in objects(v):
                    if o.kind == "weights":
                        o.extra[0].updated = True
                        made.extra.append(o.extra[0])
            return frozenset([made])
        if name == "torch.load":
            return self._checkpoint(args)
        if last == "DataLoader":
            made = m.obj("loader")
            made.attrs["dataset"] = args.get(0, "dataset")
            _taken_in_batches(args.get(0, "dataset"))
            return frozenset([made])
        if last == "device":
            c = known(args.get(0))
            made_node = m.node(None, label="device")
            made_node.kind = "device"
            made_node.card = not (c is not None and str(c.value).startswith("cpu"))
            return frozenset([made_node])
        if last in ("save", "manual_seed", "synchronize", "empty_cache", "is_available"):
            return NUMBER
        if name == "torch.autograd.grad" or last == "backward":
            first = args.get(0, "outputs") or args.get(0, "tensors")
            given = frozenset(held_with_via(first))
            m.backward(given, frees=last == "backward")
            again = known(args.kw.get("create_graph", NOTHING))
            if again is not None and again.value is True:  # gradients that have a graph themselves
                return frozenset([m.derive(list(given), "gradient")])
            made_node = m.node(False)
            made_node.tensor = True
            return frozenset([made_node])
        if name.startswith("torch.distributions."):
            made_node = m.derive([n for v in args.all() for n in held_with_via(v)], last)
            made_node.kind = "distribution"
            return frozenset([made_node])
        if name.startswith("torch.utils.data.") or name.startswith(("torch.cuda.", "torch.dist")):
            return m.opaque(args.all(), last)
        if name.endswith((".autocast", "record_function", "profile", "Event", "Stream")):
            return m.opaque(label=last)
        if name.startswith("torch.hub.load"):
            return self._module(last)
        if name == "torch.utils.checkpoint.checkpoint" and args.pos:
            rest = Args(args.pos[1:], args.kw)
            return m.call(args.pos[0], rest, None)
        if last in FEW_VALUES:
            return frozenset([m.node(False, label=last)])
        inputs = [n for v in args.all() for n in held_with_via(v)]
        if last in CLEAN_TORCH:
            made_node = m.node(False, label=last)
            made_node.whole = next((n.whole for n in inputs if n.whole), "")
            where = known(args.kw.get("device", NOTHING))
            made_node.card = "device" in args.kw and not (
                where is not None and str(where.value).startswith("cpu")
            )
            if made_node.card and made_node.whole:
                m.story.facts.append(("whole_on_card", m.where(), made_node))
            return frozenset([made_node])
        made_node = m.derive(inputs, last, "sum" if last in ("add", "stack", "cat", "mean") else "")
        made_node.tensor = True
        if last in ("cat", "concat", "concatenate", "vstack", "hstack", "stack"):
            made_node.joined = tuple(n for v in args.pos[:1] for n in held(v))[:20]
        if _LOSS.search(last) or last.endswith(("cross_entropy", "_loss")):
            r = known(args.kw.get("reduction", NOTHING)) if "reduction" in args.kw else None
            made_node.scalar = not (r is not None and r.value == "none")
        if last in PAIRS and len(args.all()) > 1:
            made_node.kind = "pair"
        return frozenset([made_node])

    # checkpoints

    def _checkpoint(self, args: Args) -> Value:
        m = self.m
        made = m.node(False, label="checkpoint")
        made.kind, made.tensor = "checkpoint", False
        where = args.get(1, "map_location")
        c = known(where)
        if not where:
            made.label = ""
            made.card = True
        elif c is not None:
            made.label = "card"
            made.card = isinstance(c.value, str) and c.value.startswith("cuda")
        elif nodes(where):
            made.label = "card"
            made.card = all(
                n.card if n.kind == "device" else re.search(r"device|cuda|gpu", n.label, re.I)
                for n in nodes(where)
            ) and bool(self.card)
        self.checkpoints.append(made)
        return frozenset([made])

    def look_for_checkpoints(self) -> None:
        """While the model trains: which checkpoints does a variable or attribute still hold?"""
        waiting = [c for c in self.checkpoints if c.used and c.card and c not in self.alive_told]
        if not waiting:
            return
        m = self.m
        alive: Set[Atom] = set()
        seen: Set[int] = set()
        todo: List[Value] = []
        for f in m.frames + [m.globals]:
            todo.extend(f.vars.values())
        while todo and len(seen) < 3000:
            for a in todo.pop():
                if id(a) in seen:
                    continue
                seen.add(id(a))
                alive.add(a)
                if isinstance(a, Obj):
                    todo.extend(a.attrs.values())
                    todo.extend(p.value for p in contents(a))
                    if a.closure is not None:
                        used = _names_in(a.function)
                        todo.extend(v for n, v in a.closure.vars.items() if n in used)
        for c in waiting:
            if c in alive:
                self.alive_told.add(c)
                m.story.facts.append(("checkpoint", c.where, c))

    # builtins

    def _builtin_sum(self, args: Args) -> Value:
        m = self.m
        found: List[Node] = []
        for v in args.all():
            for o in objects(v):
                if o.kind in ("generator", "iter"):
                    v = join(v, *m.elements(frozenset([o])))
            found += held_with_via(v)
        return frozenset([m.derive(found, "sum", "sum")]) if found else NUMBER

    _builtin_max = _builtin_min = _builtin_abs = _builtin_sum

    def _builtin_list(self, args: Args) -> Value:
        return self._sequence("list", args)

    def _builtin_tuple(self, args: Args) -> Value:
        return self._sequence("tuple", args)

    def _builtin_set(self, args: Args) -> Value:
        return self._sequence("set", args)

    _builtin_sorted = _builtin_reversed = _builtin_list

    def _sequence(self, kind: str, args: Args) -> Value:
        m = self.m
        if args.pos:
            exact = m.exactly(args.pos[0])
            if exact is not None:
                return m.sequence(kind, exact)
        made = m.obj(kind)
        if args.pos:
            for n in nodes(args.pos[0]):
                if n.kind == "loader":
                    break
            m.iterate(
                m.frames[-1].statement or ast.Pass(),
                args.pos[0],
                m.frames[-1],
                lambda v: m.put(made, v, "append"),
            )
        return frozenset([made])

    def _builtin_dict(self, args: Args) -> Value:
        made = self.m.obj("dict")
        self.update(made, args)
        return frozenset([made])

    def _builtin_range(self, args: Args) -> Value:
        return self.iterator("range", [])

    def _builtin_enumerate(self, args: Args) -> Value:
        return self._over("enumerate", args)

    def _builtin_zip(self, args: Args) -> Value:
        return self._over("zip", args)

    def _over(self, kind: str, args: Args) -> Value:
        """enumerate and zip; a generator among what they are given stays one."""
        return self.iterator(kind, args.pos or [self.m.opaque()])

    def _builtin_iter(self, args: Args) -> Value:
        return args.get(0) or self.m.opaque()

    def _builtin_next(self, args: Args) -> Value:
        return self.m.element(args.get(0)) if args.pos else self.m.opaque()

    def _builtin_filter(self, args: Args) -> Value:
        return args.get(1) or self.m.opaque()

    def _builtin_map(self, args: Args) -> Value:
        m = self.m
        made = m.obj("list")
        frame = m.frames[-1]
        m.iterate(
            frame.statement or ast.Pass(),
            args.get(1),
            frame,
            lambda v: m.put(made, m.call(args.get(0), Args([v]), None), "append"),
        )
        return frozenset([made])

    def _builtin_getattr(self, args: Args) -> Value:
        c = known(args.get(1))
        found = NOTHING
        for a in args.get(0):
            if c is not None and isinstance(c.value, str):
                found = join(found, self.m.attribute(a, c.value))
            else:
                found = join(found, self.m.opaque([frozenset([a])]))
        return found

    def _builtin_setattr(self, args: Args) -> Value:
        c = known(args.get(1))
        if c is not None and isinstance(c.value, str):
            for a in args.get(0):
                self.m.set_attribute(a, c.value, args.get(2), c.value)
        return NONE

    def _builtin_isinstance(self, args: Args) -> Value:
        return NUMBER

    _builtin_hasattr = _builtin_callable = _builtin_print = _builtin_isinstance
    _builtin_any = _builtin_all = _builtin_super = _builtin_isinstance

    def _builtin_vars(self, args: Args) -> Value:
        return args.get(0) or self.m.opaque()

    # collections

    def make_deque(self, args: Args) -> Value:
        size = args.get(1, "maxlen")
        made = self._sequence("deque", Args(args.pos[:1]))
        c = known(size)
        for o in objects(made):
            o.bounded = bool(size) and not (
                c is not None and (c.value is None or isinstance(c.value, int) and c.value >= LONG)
            )
            o.extra = size and not (c is not None and c.value is None)  # it has some bound
        return made

    def make_defaultdict(self, args: Args) -> Value:
        made = self.m.obj("dict")
        made.extra = args.pos[0] if args.pos else None
        return frozenset([made])

    def make_dict(self, args: Args) -> Value:
        return self._builtin_dict(args)

    def make_queue(self, args: Args) -> Value:
        made = self.m.obj("queue")
        made.bounded = bool(args.all())
        return frozenset([made])

    def make_namespace(self, args: Args) -> Value:
        made = self.m.obj("instance")
        for name, v in args.kw.items():
            self.m.set_attribute(made, name, v, name)
        return frozenset([made])

    def make_wraps(self, args: Args) -> Value:
        made = self.m.node(None)
        made.kind = "decorator"
        return frozenset([made])


_NUMBERS = frozenset(
    "float int bool str len round repr format id hash type open input ord chr bytes pow".split()
)
_MAKERS = {
    "deque": "make_deque",
    "defaultdict": "make_defaultdict",
    "OrderedDict": "make_dict",
    "Counter": "make_dict",
    "Queue": "make_queue",
    "SimpleQueue": "make_queue",
    "SimpleNamespace": "make_namespace",
    "wraps": "make_wraps",
}


def _names_in(function: Any) -> Set[str]:
    """What a function takes from around it: a closure holds these variables and no others."""
    code = getattr(function, "function", function)
    if not isinstance(code, ast.AST):
        return set()
    found: Set[str] = getattr(code, "_names", set())
    if not found:
        found = {n.id for n in walk(code) if isinstance(n, ast.Name)}
        code._names = found  # type: ignore[attr-defined]
    return found


def _taken_in_batches(value: Value) -> None:
    """DataLoader(TensorDataset(x, y)): batches come out of what x holds."""
    seen: Set[Node] = set()
    todo = list(held(value))
    while todo and len(seen) < 100:
        n = todo.pop()
        if n not in seen:
            seen.add(n)
            n.batched = n.batched or bool(n.whole)
            todo.extend(n.inputs)


def _varies(value: Value) -> bool:
    return any(isinstance(a, Number) and a.varies for a in value)


def _bounded_cache(d: ast.expr, name: str) -> bool:
    """lru_cache() keeps 128 results, lru_cache(maxsize=None) and cache all of them."""
    if name == "cache":
        return False
    if not isinstance(d, ast.Call):
        return True
    size = d.args[0] if d.args else next((k.value for k in d.keywords if k.arg == "maxsize"), None)
    return not (
        isinstance(size, ast.Constant)
        and (size.value is None or isinstance(size.value, int) and size.value > 4096)
    )


__all__ = ["Library", "FUNCTIONS"]


def _tried(m: Machine, objective: Obj, trial: Value, _: int) -> None:
    m.call(frozenset([objective]), Args([trial]), None)
