"""When a finding is only a hint.

A rule sees a form. Whether the form costs memory in this file may hang on something the file does
not show: then the finding becomes a hint, which is printed on request and never counted.

`REASONS`, at the end, says for each rule what makes a finding of it a hint. A reason is a function
of the file and the finding's line; its docstring shows the form that it looks for. To add one, write
it and name it in the table.
"""

import ast
import re
from typing import Any, Callable, Dict, List, Set, Tuple

from .evaluation import names_data
from .evidence import adapts, missing_key, never_reached
from .names import FUNCTIONS, constant, key, method, targets, walk
from .passes import over_data
from .spent import FREED

Reason = Callable[[Any, int], bool]


def hints(file: Any, found: List[dict]) -> List[dict]:
    """The findings, with those marked that this file does not prove."""
    for finding in found:
        reasons = OF_ANY + REASONS.get(finding["rule"], ())
        if any(reason(file, finding["line"]) for reason in reasons):
            finding["hint"] = True
    return found


# reasons

_TEST_NAME = re.compile(r"(^|/)(test_[^/]*|[^/]*_test|conftest)\.py$")
_TEST_FOLDER = re.compile(r"(^|/)(tests?|unit_?tests?|testing)/")


def _in_a_test(file: Any, line: int) -> bool:
    """A unit test: its data are small and its process ends soon. test.py of a research repository
    is no test but an evaluation.
    """
    path = file.path.replace("\\", "/")
    if file.modules & {"pytest", "unittest"}:
        return True
    tests = [n for n in file.nodes if isinstance(n, FUNCTIONS) and n.name.startswith("test_")]
    asserts = any(isinstance(n, ast.Assert) for f in tests for n in walk(f)) or any(
        isinstance(n, ast.Call) and (key(n.func) or "").startswith("self.assert")
        for n in file.nodes
    )
    named, kept = _TEST_NAME.search(path), _TEST_FOLDER.search(path)
    return bool(named and kept or asserts and (named or kept))


def _unreached(file: Any, line: int) -> bool:
    """Behind a return, under a switch that is off"""
    return line in never_reached(file)


_DEPRECATED = re.compile(r"\bdeprecated\b", re.I)


def _deprecated(file: Any, line: int) -> bool:
    """@deprecated("use validate"), a docstring that says so, a DeprecationWarning: kept for old
    callers, and this file has none
    """
    retired = [f for f in _functions_around(file, line) if _says_deprecated(f)]
    called = {method(n) for n in file.nodes if isinstance(n, ast.Call)} if retired else set()
    return any(f.name not in called for f in retired)


def _says_deprecated(function: Any) -> bool:
    if _DEPRECATED.search(ast.get_docstring(function) or ""):
        return True
    for d in function.decorator_list:
        if _DEPRECATED.search(key(d.func if isinstance(d, ast.Call) else d) or ""):
            return True
    return any(
        isinstance(n, ast.Name) and n.id in ("DeprecationWarning", "FutureWarning")
        for s in function.body
        if isinstance(s, ast.Expr)
        for n in walk(s)
    )


_TORCH = frozenset(
    "torch torchvision torchaudio torchtext torch_geometric lightning pytorch_lightning accelerate "
    "transformers fastai fairseq timm monai dgl diffusers trl peft ignite kornia detectron2 mmcv "
    "allennlp botorch gpytorch pyro deepspeed apex fabric speechbrain espnet catalyst".split()
)


def _without_torch(file: Any, line: int) -> bool:
    """PyTorch keeps no graph where it is not used."""
    return bool(file.modules) and (not _may_use_torch(file) or _reads_data_only(file))


def _reads_data_only(file: Any) -> bool:
    """import mytorch.nn as nn; from torch.utils.data import DataLoader: the network is somebody's own
    engine, PyTorch only brings the samples
    """
    used = {a for a in file.aliases.values() if a.split(".")[0] in _TORCH}
    own_parts = any(
        re.match(r"\w+\.(nn|optim|autograd)(\.|$)", a) and a.split(".")[0] not in _TORCH
        for a in file.aliases.values()
    )
    return own_parts and all(a.startswith(("torch.utils.data", "torchvision")) for a in used)


_CONTROL = re.compile(
    r"^(ALE/)?(CartPole|MountainCar|Acrobot|Pendulum|LunarLander|FrozenLake|Taxi|Blackjack|CliffWalking)"
)


def _small_problem(file: Any, line: int) -> bool:
    """gym.make("CartPole-v1"): the network has a few thousand weights"""
    if not hasattr(file, "_small_problem"):
        file._small_problem = any(
            isinstance(n, ast.Constant) and isinstance(n.value, str) and _CONTROL.match(n.value)
            for n in file.nodes
        )
    return bool(file._small_problem)


def _loss_of_small_problem(file: Any, line: int) -> bool:
    """losses.append(loss) on CartPole: backward() has freed what the graph held, and the nodes of a
    few layers stay. What no backward() goes through, such as the values in a replay buffer, is kept
    whole.
    """
    return _small_problem(file, line) and any(
        isinstance(n, (ast.Name, ast.Attribute)) and "loss" in (key(n) or "").split(".")[-1].lower()
        for s in file.statements
        if s.lineno == line and isinstance(s, (ast.Expr, ast.Assign, ast.AugAssign))
        for n in walk(s)
    )


def _inside_traced(file: Any, line: int) -> bool:
    """@tf.function def outer(x): for i in range(9): x = inner(x, i): the outer one is traced once,
    and with it what it calls
    """
    return any(_is_traced(file, f, 3) for f in _functions_around(file, line))


def _functions_around(file: Any, line: int) -> List[Any]:
    return [
        n
        for n in file.nodes
        if isinstance(n, FUNCTIONS) and n.lineno < line <= (n.end_lineno or n.lineno)
    ]


# Methods that Keras compiles into a graph itself.
_OF_KERAS = frozenset("call train_step test_step predict_step".split())
_TRACING = frozenset("function map flat_map interleave reduce filter map_fn while_loop run".split())


def _is_traced(file: Any, function: Any, depth: int) -> bool:
    """By its decorator, by Keras, by whom it is given to, or by everybody who calls it"""
    if any(_traces(file, d) for d in function.decorator_list):
        return True
    klass = file.places[function].klass if function in file.places else None
    if klass is not None and function.name in _OF_KERAS and klass.bases:
        return True
    given, callers = False, []
    for n in file.nodes:
        if not isinstance(n, ast.Call):
            continue
        if method(n) == function.name:
            callers.append(n)
        elif method(n) in _TRACING:
            given = given or any((key(a) or "").split(".")[-1] == function.name for a in n.args)
    if given or not callers or not depth:
        return given
    around = [_functions_around(file, c.lineno) for c in callers]
    return all(
        any(_is_traced(file, f, depth - 1) for f in fs if f is not function) for fs in around
    )


def _traces(file: Any, decorator: Any) -> bool:
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    return (file.dotted(target) or "").endswith(("tensorflow.function", "def_function.function"))


def _may_use_torch(file: Any) -> bool:
    """PyTorch by its name, or through code of the same project (which is imported, not written
    here).
    """
    if file.modules & _TORCH:
        return True
    by_hand = any(
        isinstance(n, FUNCTIONS) and n.name == "backward"
        for c in file.classes.values()
        for n in c.body
    )
    return not by_hand and not file.modules & {"tensorflow", "keras", "jax", "mxnet", "paddle"}


def _adapting_function(file: Any, line: int) -> bool:
    """def inner_loop(...): what a learner that adapts keeps is differentiated later"""
    return adapts(_around(file, line, FUNCTIONS))


def _adapting_class(file: Any, line: int) -> bool:
    """What such a learner sums up is taken by another method of its class."""
    return adapts(_around(file, line, FUNCTIONS + (ast.ClassDef,)))


_MEASURED = re.compile(
    r"(^|[_/])(profile|profiler|profiling|bench\w*|timing|latency|throughput)(_|\.py$)", re.I
)


def _measured(file: Any, line: int) -> bool:
    """A script that measures does it on purpose."""
    return bool(_MEASURED.search(file.path.replace("\\", "/")))


def _made_when_missing(file: Any, line: int) -> bool:
    """if task not in optimizers: optimizers[task] = Adam(...)"""
    return any(missing_key(file, s) for s in file.statements if s.lineno == line)


def _around(file: Any, line: int, kinds: Any) -> Any:
    """The outermost function or class around a line; the file where there is none"""
    around = [
        n for n in file.nodes if isinstance(n, kinds) and n.lineno <= line <= (n.end_lineno or 0)
    ]
    return min(around, key=lambda n: n.lineno) if around else file.tree


def _volatile(file: Any, line: int) -> bool:
    """Variable(x, volatile=True), as PyTorch before 0.4 said no_grad: there is no graph"""
    return any(
        isinstance(f, FUNCTIONS)
        and f.lineno <= line <= (f.end_lineno or f.lineno)
        and any(
            isinstance(n, ast.keyword) and n.arg == "volatile" and constant(n.value) is True
            for n in walk(f)
        )
        for f in file.nodes
    )


# One model for each client, task or member is what the method is about: they are averaged, asked or
# trained on.
_EACH = re.compile(
    r"client|local|shadow|task|worker|user|member|ensemble|part(y|ies)$|site|domain|expert|"
    r"population|offspring|particle|(^|_)seeds?($|_)",
    re.I,
)


def _all_wanted(file: Any, line: int) -> bool:
    """clients.append(copy.deepcopy(model))"""
    for s in file.statements:
        if s.lineno != line:
            continue
        called = {n.func for n in walk(s) if isinstance(n, ast.Call)}
        names = {
            key(n) or ""
            for n in walk(s)
            if isinstance(n, (ast.Name, ast.Attribute)) and n not in called
        }
        for loop in file.places[s].loops[-1:]:
            head = [loop.target, loop.iter] if isinstance(loop, ast.For) else [loop.test]
            names |= {key(n) or "" for h in head for n in walk(h)}
        if any(_EACH.search(n.split(".")[-1]) for n in names):
            return True
    return False


_STEPS = re.compile(r"backward|optimi[sz]e|^update|^step$|_step$", re.I)

_TAKES = re.compile(r"backward|optimi[sz]e|^update_|train_step|_step$", re.I)
_NOTES = re.compile(r"sched|plateau|meter|metric|logger|writer|ema|average|stat", re.I)


def _before_a_step(file: Any, line: int) -> bool:
    """for step: kept = []; for part in parts: loss += f(net(part)); kept.append(...); then
    self.optimize(opt, loss): what the inner loop makes is wanted until gradients are taken behind it
    """
    for s in file.statements:
        if s.lineno != line or not file.places[s].loops:
            continue
        outer, inner = (file.places[s].function, *file.places[s].loops)[-2:]
        if outer is None:
            continue
        inside = walk(inner)
        if any(isinstance(n, ast.Call) and _STEPS.search(method(n)) for n in inside):
            continue
        made = {
            key(t) for n in inside if isinstance(n, (ast.Assign, ast.AugAssign)) for t in targets(n)
        } - {None}
        for n in walk(outer):
            if (
                isinstance(n, ast.Call)
                and n.lineno > (inner.end_lineno or inner.lineno)
                and _TAKES.search(method(n))
                and not _NOTES.search(key(n.func) or "")
            ):
                given = [*n.args, n.func.value if isinstance(n.func, ast.Attribute) else n.func]
                if any(key(a) in made for a in given):
                    return True
    return False


def _read_first(file: Any, line: int) -> bool:
    """kept = table[name]; kept = torch.cat((kept, row)): the same block fetches it before"""
    found = [s for s in file.statements if isinstance(s, ast.Assign) and s.lineno == line]
    s = found[0] if found else None
    if s is None or not file.places[s].loops:
        return False
    names = {key(t) for t in targets(s)} - {None}
    for n in file.nodes:
        for body in (getattr(n, "body", None), getattr(n, "orelse", None)):
            if not isinstance(body, list) or s not in body:
                continue
            return any(
                isinstance(x, ast.Assign)
                and names & {key(t) for t in targets(x)}
                and not names & {key(y) for y in walk(x.value) if isinstance(y, ast.Name)}
                for x in body[: body.index(s)]
            )
    return False


def _emptied_by_method(file: Any, line: int) -> bool:
    """self.log_probs.append(x) in forward(), and a method that whoever trains calls empties the list:
    clear_memory(), reset(), or net.gate.log_probs = [] from outside. What training_step() gathers
    for an epoch is another thing.
    """
    for s in file.statements:
        if s.lineno != line or not isinstance(s, ast.Expr):
            continue
        place, call = file.places[s], s.value
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        if place.klass is None or getattr(place.function, "name", "") == "training_step":
            continue
        name = _whole(call.func.value)
        inside = [
            n
            for f in place.klass.body
            if isinstance(f, FUNCTIONS)
            and f is not place.function
            and f.name != "__init__"
            and not f.name.startswith("on_")
            for n in walk(f)
        ]
        if name and (
            any(_empties(n, name) for n in inside) or _emptied_outside(file, place.klass, name)
        ):
            return True
    return False


def _whole(node: Any) -> Any:
    """self.kept of self.kept["val"] and of self.kept[session]"""
    while isinstance(node, ast.Subscript):
        node = node.value
    return key(node)


def _emptied_outside(file: Any, klass: Any, name: str) -> bool:
    """self.model.gate.kept = [], where another class keeps the module"""
    attribute = name.split(".")[-1]
    return any(
        isinstance(n, ast.Assign)
        and not klass.lineno <= n.lineno <= (klass.end_lineno or 0)
        and (isinstance(n.value, (ast.List, ast.Dict)) or constant(n.value, ...) is None)
        and any(isinstance(t, ast.Attribute) and t.attr == attribute for t in n.targets)
        and any((key(t) or "").count(".") > 1 or "self." not in (key(t) or "") for t in n.targets)
        for n in file.nodes
    )


def _empties(n: ast.AST, name: str) -> bool:
    """del x[:], x = [], x[key] = [], x.clear(), x[key].clear()"""
    if isinstance(n, ast.Delete):
        return any(_whole(t) == name for t in n.targets)
    if isinstance(n, ast.Assign):
        fresh = isinstance(n.value, (ast.List, ast.Dict))
        return any(key(t) == name or fresh and _whole(t) == name for t in n.targets)
    return (
        isinstance(n, ast.Call)
        and method(n) == "clear"
        and isinstance(n.func, ast.Attribute)
        and _whole(n.func.value) == name
    )


def _grad_turned_off(file: Any, line: int) -> bool:
    """toggle_grad(net, False), then weights that go through an average of themselves: no graph is
    made where nothing wants gradients
    """
    functions = _functions_around(file, line)
    loops = [
        loop
        for s in file.statements
        if s.lineno == line
        for loop in file.places[s].loops
        if isinstance(loop, ast.For)
    ]
    over_weights = any(
        isinstance(n, ast.Attribute) and n.attr in ("parameters", "named_parameters", "state_dict")
        for loop in loops
        for n in walk(loop.iter)
    )
    off = {
        name
        for f in functions
        for n in walk(f)
        if getattr(n, "lineno", line) < line
        for name in _turned_off(n)
    }
    return over_weights and len(off) > 1  # the averages, and what they follow


def _turned_off(n: ast.AST) -> Set[Any]:
    """net of set_requires_grad(net, False), net.requires_grad_(False), and of for p in
    net.parameters(): p.requires_grad = False
    """
    if isinstance(n, ast.For):
        if any(
            isinstance(s, ast.Assign)
            and constant(s.value) is False
            and any("requires_grad" in (key(t) or "") for t in s.targets)
            for s in n.body
        ):
            return {
                key(x.value)
                for x in walk(n.iter)
                if isinstance(x, ast.Attribute) and x.attr == "parameters"
            }
        return set()
    if not isinstance(n, ast.Call) or "grad" not in method(n):
        return set()
    given = [*n.args, *(k.value for k in n.keywords)]
    if not any(constant(a) is False for a in given):
        return set()
    if isinstance(n.func, ast.Attribute) and n.func.attr == "requires_grad_":
        return {key(n.func.value)}
    return {key(a) for a in given} - {None}


def _if_asked(file: Any, line: int) -> bool:
    """def forward(self, x, keep): if keep: self.maps.append(x): the caller decides"""
    for s in file.statements:
        place = file.places[s] if s.lineno == line and s in file.places else None
        if place is None or place.function is None:
            continue
        given = {a.arg for a in place.function.args.args} - {"self"}
        if any(
            isinstance(i, ast.If)
            and (isinstance(i.test, ast.Name) and i.test.id in given)
            and any(s is x for b in i.body for x in walk(b))
            for i in place.ifs
        ):
            return True
    return False


def _until_full(file: Any, line: int) -> bool:
    """if len(kept) < limit: kept.append(batch.cuda()), or if len(kept) >= limit: break above it"""
    for s in file.statements:
        call = s.value if s.lineno == line and isinstance(s, ast.Expr) else None
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        name = key(call.func.value)
        if any(
            _compares_length(i.test, name, (ast.Lt, ast.LtE))
            for i in file.places[s].ifs
            if isinstance(i, ast.If)
        ):
            return True
        if any(_stops_when_full(loop, name) for loop in file.places[s].loops[-1:]):
            return True
    return False


def _stops_when_full(loop: Any, name: Any) -> bool:
    """if len(kept) >= limit: break, or if seen > limit: break behind seen += 1"""
    return any(
        isinstance(i, ast.If)
        and (
            _compares_length(i.test, name, (ast.Gt, ast.GtE, ast.Eq)) or _counted_off(loop, i.test)
        )
        and isinstance(i.body[-1], (ast.Break, ast.Return))
        for i in getattr(loop, "body", [])
    )


def _counted_off(loop: Any, test: Any) -> bool:
    """seen >= limit, where the loop counts seen"""
    if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], (ast.Gt, ast.GtE, ast.Eq)):
        return False
    over = getattr(loop, "iter", None)
    counted = {key(n.target) for n in walk(loop) if isinstance(n, ast.AugAssign)}
    if isinstance(over, ast.Call) and method(over) == "enumerate":
        counted |= {key(t) for t in targets(loop)[:1]}
    return key(test.left) in counted - {None}


def _compares_length(test: Any, name: Any, operators: Tuple[type, ...]) -> bool:
    return any(
        isinstance(c, ast.Compare)
        and isinstance(c.ops[0], operators)
        and isinstance(c.left, ast.Call)
        and method(c.left) == "len"
        and any(key(a) == name for a in c.left.args)
        for c in walk(test)
    )


def _rows_of_it(file: Any, line: int) -> bool:
    """while len(left): done = torch.cat((done, left[index])): the rows of one batch, in another order"""
    for s in file.statements:
        if s.lineno != line or not isinstance(s, ast.Assign) or not file.places[s].loops:
            continue
        loop = file.places[s].loops[-1]
        if isinstance(loop, ast.For) and names_data(loop):
            continue
        joined = [n for n in walk(s.value) if isinstance(n, (ast.Tuple, ast.List))]
        own = {key(t) for t in targets(s)}
        for parts in joined[:1]:
            others = [e for e in parts.elts if key(e) not in own]
            if others and all(_is_rows(e) for e in others):
                return True
    return False


def _is_rows(value: ast.AST) -> bool:
    """left[index].reshape(-1, 3).cuda()"""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        value = value.func.value
    return isinstance(value, ast.Subscript) and isinstance(value.value, (ast.Name, ast.Attribute))


def _own_slot(file: Any, line: int) -> bool:
    """def save_at(i): def hook(module, args, output): kept[i] = output: one place for each hook"""
    functions = [
        f for f in file.nodes if isinstance(f, FUNCTIONS) and f.lineno < line <= (f.end_lineno or 0)
    ]
    factory = min(functions, key=lambda f: f.lineno) if len(functions) > 1 else None
    if factory is None:
        return False
    given = {a.arg for a in factory.args.args}
    return any(
        isinstance(s, ast.Assign)
        and s.lineno == line
        and isinstance(t, ast.Subscript)
        and bool(given & {n.id for n in walk(t.slice) if isinstance(n, ast.Name)})
        for s in file.statements
        for t in getattr(s, "targets", ())
    )


def _all_step(file: Any, line: int) -> bool:
    """for optimizer in optimizers.values(): optimizer.step(): none of them is kept for nothing"""
    names, around = set(), file.tree
    for s in file.statements:
        if s.lineno == line and s in file.places:
            around = file.places[s].function or file.tree
        if s.lineno == line and isinstance(s, ast.Assign):
            names |= {key(t.value) for t in s.targets if isinstance(t, ast.Subscript)}
        elif s.lineno == line and isinstance(s, ast.Expr) and isinstance(s.value, ast.Call):
            if isinstance(s.value.func, ast.Attribute):
                names.add(key(s.value.func.value))
    return any(
        isinstance(loop, ast.For)
        and bool((names - {None}) & {key(n) for n in walk(loop.iter)})
        and any(isinstance(n, ast.Call) and method(n) == "step" for n in walk(loop))
        for loop in walk(around)
    )


def _replaces(file: Any, line: int) -> bool:
    """for i, state in enumerate(self.parents): ...; self.parents[i] = copy of the weights"""
    for s in file.statements:
        if s.lineno != line or not isinstance(s, ast.Assign) or not file.places[s].loops:
            continue
        for t in s.targets:
            if isinstance(t, ast.Subscript) and any(
                isinstance(loop, ast.For)
                and any(key(n) == key(t.value) for n in walk(loop.iter) if key(n))
                for loop in file.places[s].loops
            ):
                return True
    return False


_JOINS = re.compile(r"average|avg|mean|aggregat|merge|combine|fuse|soup|interpolat", re.I)


def _joined(file: Any, line: int) -> bool:
    """states.append(copy of the weights) in a loop, average(states) behind it: all of them at once
    are what is wanted
    """
    for s in file.statements:
        call = s.value if isinstance(s, ast.Expr) else None
        if s.lineno != line or not isinstance(call, ast.Call) or method(call) != "append":
            continue
        name = key(call.func.value) if isinstance(call.func, ast.Attribute) else None
        around = file.places[s].function or file.tree
        if name and any(
            isinstance(n, ast.Call)
            and n.lineno > line
            and _JOINS.search(method(n))
            and any(key(a) == name for a in n.args)
            for n in walk(around)
        ):
            return True
    return False


_MEMORY = re.compile(r"memory|bank|exemplar|proto|anchor|centroid|buffer|replay", re.I)


_STATE = re.compile(r"state|model|optim|sched|epoch|weights|scaler|net($|_)", re.I)


def _is_checkpoint(file: Any, line: int) -> bool:
    """saved = torch.load(path, map_location=device); model.load_state_dict(saved["model"])"""
    names = {
        key(t)
        for s in file.statements
        if isinstance(s, ast.Assign) and s.lineno == line
        for t in targets(s)
    } - {None}
    for n in file.nodes:
        if isinstance(n, ast.Call) and method(n).startswith("load_state"):
            if any(key(x) in names for a in n.args for x in walk(a) if isinstance(x, ast.Name)):
                return True
        if isinstance(n, ast.Subscript) and key(n.value) in names:
            if _STATE.search((key(n) or "").split("[")[-1]):
                return True
    return False


def _deleted_by_caller(file: Any, line: int) -> bool:
    """def resume(path): saved = torch.load(path); return saved, and del saved where it is called"""
    around = {f.name for f in _functions_around(file, line)}
    got = {
        key(t)
        for n in file.nodes
        if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call) and method(n.value) in around
        for t in targets(n)
    } - {None}
    return any(isinstance(n, ast.Delete) and got & {key(t) for t in n.targets} for n in file.nodes)


_DEVICE = re.compile(r"cuda|device|gpu|accelerat|^mps|fabric|lightning|^to$", re.I)


def _on_the_host(file: Any, line: int) -> bool:
    """A script that reads a model's weights, asks it and nowhere names a device: the activations of
    one pass lie in host memory
    """
    if not hasattr(file, "_host"):
        words = _all_words(file)
        reads = words & {"load_state_dict()", "from_pretrained()", "load_model()"}
        file._host = (
            bool(reads) and "backward()" not in words and not any(map(_DEVICE.search, words))
        )
    return bool(file._host)


def _all_words(file: Any) -> Set[str]:
    """What a file names, calls with brackets behind them"""
    words = set()
    for n in file.nodes:
        if isinstance(n, ast.Call):
            words.add(method(n) + "()")
        for name in ("id", "attr", "arg", "module", "name", "value"):
            word = getattr(n, name, None)
            if isinstance(n, ast.Attribute) and word == "device":
                continue  # x.device: where it is anyway
            if isinstance(word, str):
                words.add(word)
    return words


def _of_exemplars(file: Any, line: int) -> bool:
    """class ReplayBank: def extract(self, loader): some samples of each class go through the model"""
    around = [
        n.name
        for n in file.nodes
        if isinstance(n, FUNCTIONS + (ast.ClassDef,)) and n.lineno <= line <= (n.end_lineno or 0)
    ]
    return any(_MEMORY.search(name) for name in around)


def _one_a_class(file: Any, line: int) -> bool:
    """for c in np.unique(labels): means.append(features_of(c).mean(0))"""
    loops = [x for s in file.statements if s.lineno == line for x in file.places[s].loops[-1:]]
    return any(
        isinstance(n, ast.Call)
        and method(n) in ("unique", "set")
        or isinstance(n, (ast.Name, ast.Attribute))
        and re.search(r"(^|_)(n|num|nb)?_?class(es)?$", (key(n) or "").split(".")[-1], re.I)
        for loop in loops
        if isinstance(loop, ast.For)
        for n in walk(loop.iter)
    )


def _cleared_by_function(file: Any, line: int) -> bool:
    """aux_losses.append(x) of a list at the top of the file, and def clear(): aux_losses.clear():
    whoever trains calls both
    """
    called = {
        method(n)
        for s in file.statements
        if s.lineno == line
        for n in walk(s)
        if isinstance(n, ast.Call)
    }
    inside = [n for f in map(file.plain_functions.get, called) if f is not None for n in walk(f)]
    here = [n for s in file.statements if s.lineno == line for n in walk(s)]
    names = {
        key(n.func.value)
        for n in inside + here
        if isinstance(n, ast.Call)
        and isinstance(n.func, ast.Attribute)
        and n.func.attr in ("append", "extend", "add")
    }
    kept = {name for name in names if name and "." not in name}
    at_top = {key(t) for s in file.tree.body if isinstance(s, ast.Assign) for t in s.targets}
    return any(
        _empties(n, name)
        for name in kept & at_top
        for f in file.plain_functions.values()
        for n in walk(f)
    )


def _one_on_the_host(file: Any, line: int) -> bool:
    """model(picture.unsqueeze(0)), or one pass outside of a loop, in a file that names no device: a
    sample or a small table, in host memory
    """
    here = [s for s in file.statements if s.lineno == line]
    single = any(
        isinstance(n, ast.Call)
        and method(n) in ("unsqueeze", "expand_dims")
        and any(constant(a) == 0 for a in n.args)
        for s in here
        for n in walk(s)
    )
    alone = any(s in file.tree.body for s in here)
    return (single or alone) and not any(map(_DEVICE.search, _all_words(file)))


def _not_over_data(file: Any, line: int) -> bool:
    """while True: scores = decoder(words, state): one beam for one picture"""
    return not over_data(file, line)


_ATTRIBUTES = re.compile(
    r"IntegratedGradients|Saliency|GradCAM|DeepLift|GradientShap|InputXGradient|jacobian|hessian|"
    r"attribut|^shap|^[vj][jv]p$",
)


def _gradients_of_inputs(file: Any, line: int) -> bool:
    """IntegratedGradients(lambda x: model(x)), jacobian(model, x): gradients are wanted, though nobody
    trains
    """
    return any(
        isinstance(n, ast.Call) and _ATTRIBUTES.search(method(n))
        for f in _functions_around(file, line)
        for n in walk(f)
    )


_TABLES = re.compile(r"tabular|forecast|(^|_)horizon|covtype|time_?series|DataFrame|read_csv", re.I)
_MAPS = re.compile(r"pixel|segm|depth|voxel|heat_?map|imread|ImageFolder|vocab", re.I)


def _rows_of_tables(file: Any, line: int) -> bool:
    """outputs = torch.cat([outputs, forecast]): some numbers a row, where nothing speaks of images"""
    words = _all_words(file) | {file.path}
    return any(map(_TABLES.search, words)) and not any(map(_MAPS.search, words))


_SMALL_ROWS = re.compile(
    r"clicks?$|ratings?$|user_?ids?$|item_?ids?$|tabular|DataFrame|read_csv", re.I
)
_LARGE_ROWS = re.compile(
    r"image|pixel|imread|picture|photo|video|audio|\bwav|sound|spectro|volume|scan|voxel|cloud|"
    r"transforms|^load\(\)$",
    re.I,
)


def _rows_of_numbers(file: Any, line: int) -> bool:
    """DataLoader(clicks, 8192, num_workers=16): 64 batches of some numbers a row are a few MB"""
    words = _all_words(file)
    return any(map(_SMALL_ROWS.search, words)) and not any(map(_LARGE_ROWS.search, words))


_SCHEDULE = re.compile(r"schedul|(^|_)(alphas?|betas?|sigmas?|gammas?|lr)(_|$)", re.I)


def _of_schedule(file: Any, line: int) -> bool:
    """class NoiseSchedule: @lru_cache def beta(self, t): a number for each step, no activations"""
    return any(
        _SCHEDULE.search(n.name)
        for n in file.nodes
        if isinstance(n, FUNCTIONS + (ast.ClassDef,))
        and min([n.lineno, *(d.lineno for d in n.decorator_list)]) <= line <= (n.end_lineno or 0)
    )


def _is_memory(file: Any, line: int) -> bool:
    """memory_bank = torch.from_numpy(memory_bank).to(device): some samples of each class"""
    return any(
        _MEMORY.search(key(t) or "")
        for s in file.statements
        if isinstance(s, ast.Assign) and s.lineno == line
        for t in targets(s)
    )


# Rules that go by the form of the code. The abstract run follows the values themselves: where it
# sees nothing kept, the form alone proves nothing.
_BY_FORM = frozenset(
    "loss-graph-accumulated graph-kept-in-list graph-kept-here module-keeps-tensors "
    "outputs-kept-on-card".split()
)


def agreed(found: List[dict], told: List[dict]) -> None:
    """Marks what a rule of forms says and the abstract run does not bear out: neither at this line
    nor at the other end of the same story.
    """
    lines = {f["line"] for f in told}
    graphs = {f["line"] for f in told if f["rule"] != "outputs-kept-on-card"}
    spent = {f["line"]: f["message"] for f in told if f["message"].endswith(FREED)}
    for f in found:
        if f["rule"] == "graph-kept-in-list":
            f["message"] = spent.get(f["line"], f["message"])
        sure, through = f.pop("proven", False), f.pop("through", None)
        if f["rule"] in _BY_FORM and not sure:
            borne = lines if f["rule"] == "outputs-kept-on-card" else graphs
            if f["line"] not in borne and through not in borne:
                f["hint"] = True


# Makes a finding of any rule a hint.
OF_ANY: Tuple[Reason, ...] = (_in_a_test, _unreached, _deprecated)

# rule -> what makes a finding of it a hint, beside those.
REASONS: Dict[str, Tuple[Reason, ...]] = {
    # graphs that are kept
    "loss-graph-accumulated": (
        _without_torch,
        _volatile,
        _before_a_step,
        _read_first,
        _loss_of_small_problem,
    ),
    "graph-kept-in-list": (
        _without_torch,
        _volatile,
        _adapting_function,
        _before_a_step,
        _read_first,
        _grad_turned_off,
        _loss_of_small_problem,
    ),
    "graph-kept-here": (
        _without_torch,
        _volatile,
        _adapting_function,
        _cleared_by_function,
        _loss_of_small_problem,
    ),
    "module-keeps-tensors": (
        _without_torch,
        _volatile,
        _emptied_by_method,
        _cleared_by_function,
        _if_asked,
    ),
    "hook-keeps-tensors": (_without_torch, _own_slot),
    "cache-keeps-tensors": (_without_torch, _volatile, _of_schedule),
    "hidden-state-not-detached": (
        _without_torch,
        _before_a_step,
        _read_first,
        _grad_turned_off,
    ),
    "rollout-with-grad": (_before_a_step,),
    "retain-graph-in-loop": (_without_torch, _small_problem),
    # gradients and their accumulation
    "accumulation-keeps-graphs": (_without_torch, _adapting_class),
    "accumulation-unscaled": (_without_torch,),
    "gradients-never-cleared": (_without_torch,),
    "zero-grad-each-micro-step": (_without_torch,),
    # evaluation
    "eval-without-no-grad": (
        _without_torch,
        _not_over_data,
        _on_the_host,
        _one_on_the_host,
        _gradients_of_inputs,
        _small_problem,
    ),
    "frozen-model-with-grad": (_without_torch, _small_problem),
    "outputs-kept-on-card": (
        _without_torch,
        _rows_of_it,
        _of_exemplars,
        _one_a_class,
        _rows_of_tables,
    ),
    # models, optimizers and data
    "model-copies-kept": (_all_wanted, _joined, _replaces, _small_problem),
    "checkpoint-kept": (_small_problem, _deleted_by_caller),
    "checkpoint-without-map-location": (_small_problem, _deleted_by_caller),
    "keras-model-in-loop": (_small_problem,),
    "optimizers-kept": (_all_step, _made_when_missing),
    "loader-buffers": (_rows_of_numbers,),
    "dataset-on-gpu": (_until_full, _is_checkpoint, _is_memory),
    # graphs of TensorFlow
    "tf-function-retraced": (_inside_traced,),
    # what a script that measures does on purpose
    "compiled-in-loop": (_measured,),
    "empty-cache-in-loop": (_measured,),
    "memory-history-on": (_measured,),
    "profiler-around-loop": (_measured,),
}
