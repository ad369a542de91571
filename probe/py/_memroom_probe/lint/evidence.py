"""When a finding is only a hint.

A rule sees a form. Whether the form costs memory in this file may hang on something the file does
not show: then the finding becomes a hint, which is printed on request and never counted.
"""

import ast
import re
from typing import Any, List

from .flow import is_model_name
from .names import FUNCTIONS, constant, key, keyword, method, targets, walk, walk_here

# Rules that speak of a graph that PyTorch keeps: the file must use PyTorch.
_OF_TORCH = frozenset(
    "loss-graph-accumulated graph-kept-in-list graph-kept-here module-keeps-tensors "
    "hook-keeps-tensors cache-keeps-tensors hidden-state-not-detached retain-graph-in-loop "
    "eval-without-no-grad outputs-kept-on-card frozen-model-with-grad accumulation-keeps-graphs "
    "gradients-never-cleared zero-grad-each-micro-step accumulation-unscaled".split()
)
_TORCH = frozenset(
    "torch torchvision torchaudio torchtext torch_geometric lightning pytorch_lightning accelerate "
    "transformers fastai fairseq timm monai dgl diffusers trl peft ignite kornia detectron2 mmcv "
    "allennlp botorch gpytorch pyro deepspeed apex fabric speechbrain espnet catalyst".split()
)
_TEST_NAME = re.compile(r"(^|/)(test_[^/]*|[^/]*_test|conftest)\.py$")
_TEST_FOLDER = re.compile(r"(^|/)(tests?|unit_?tests?|testing)/")


def hints(file: Any, path: str, found: List[dict]) -> List[dict]:
    """The findings, with those marked that this file does not prove."""
    test = is_test(file, path)
    foreign = bool(file.modules) and not _may_use_torch(file)
    unreached = never_reached(file)
    old = _volatile(file)
    for finding in found:
        if test or foreign and finding["rule"] in _OF_TORCH:
            finding["hint"] = True
        if finding["line"] in unreached or finding["rule"] in _GRAPHS and finding["line"] in old:
            finding["hint"] = True
        kinds = _OF_STEPS.get(finding["rule"])
        if kinds is not None and adapts(_around(file, finding["line"], kinds)):
            finding["hint"] = True
        if finding["rule"] in _OF_TIME and _MEASURED.search(path.replace("\\", "/")):
            finding["hint"] = True
        if finding["rule"] == "model-copies-kept" and (
            _all_wanted(file, finding["line"])
            or _joined(file, finding["line"])
            or _replaces(file, finding["line"])
        ):
            finding["hint"] = True
        if finding["rule"] in _GROWS | {"rollout-with-grad"}:
            if _before_a_step(file, finding["line"]):
                finding["hint"] = True
        if finding["rule"] in _GROWS and _read_first(file, finding["line"]):
            finding["hint"] = True
        if finding["rule"] == "hook-keeps-tensors" and _own_slot(file, finding["line"]):
            finding["hint"] = True
        if finding["rule"] == "optimizers-kept" and (
            _all_step(file, finding["line"])
            or any(missing_key(file, s) for s in file.statements if s.lineno == finding["line"])
        ):
            finding["hint"] = True
        if finding["rule"] == "module-keeps-tensors" and (
            _emptied_by_method(file, finding["line"]) or _if_asked(file, finding["line"])
        ):
            finding["hint"] = True
        if finding["rule"] == "dataset-on-gpu" and _until_full(file, finding["line"]):
            finding["hint"] = True
        if finding["rule"] == "outputs-kept-on-card" and _rows_of_it(file, finding["line"]):
            finding["hint"] = True
        if finding["rule"] == "eval-without-no-grad" and _on_the_host(file):
            finding["hint"] = True
        if finding["rule"] == "dataset-on-gpu" and _is_checkpoint(file, finding["line"]):
            finding["hint"] = True
        if finding["rule"] == "dataset-on-gpu" and _is_memory(file, finding["line"]):
            finding["hint"] = True
    return found


# Learners that take gradients inside of their forward pass, in evaluation too: what they sum up or
# keep is differentiated later.
ADAPTS = re.compile(
    r"maml|meta_?sgd|reptile|task_update|inner_(lr|loop|steps?|train)|second_order|fast_weights|"
    r"functional_forward",
    re.I,
)


def adapts(tree: Any) -> bool:
    return any(
        ADAPTS.search(n.id if isinstance(n, ast.Name) else n.attr)
        for n in walk(tree)
        if isinstance(n, (ast.Name, ast.Attribute))
    )


def _around(file: Any, line: int, kinds: Any) -> Any:
    """The outermost function or class around a line; the file where there is none"""
    around = [
        n for n in file.nodes if isinstance(n, kinds) and n.lineno <= line <= (n.end_lineno or 0)
    ]
    return min(around, key=lambda n: n.lineno) if around else file.tree


# Where to look for a learner that adapts: what it sums up is taken by another method of its class.
_OF_STEPS = {
    "accumulation-keeps-graphs": FUNCTIONS + (ast.ClassDef,),
    "graph-kept-in-list": FUNCTIONS,
    "graph-kept-here": FUNCTIONS,
}
# What a script that measures does on purpose.
_OF_TIME = frozenset(
    "profiler-around-loop compiled-in-loop empty-cache-in-loop memory-history-on".split()
)
_MEASURED = re.compile(
    r"(^|[_/])(profile|profiler|profiling|bench\w*|timing|latency|throughput)(_|\.py$)", re.I
)


# Rules about a graph that is kept: there is none where the input is volatile, as PyTorch before 0.4
# said no_grad.
_GRAPHS = frozenset(
    "graph-kept-in-list graph-kept-here loss-graph-accumulated module-keeps-tensors "
    "cache-keeps-tensors".split()
)


def _volatile(file: Any) -> Any:
    """The lines of functions whose inputs are volatile"""
    lines = set()
    for f in file.nodes:
        if isinstance(f, FUNCTIONS) and any(
            isinstance(n, ast.keyword) and n.arg == "volatile" and constant(n.value) is True
            for n in walk(f)
        ):
            lines.update(range(f.lineno, (f.end_lineno or f.lineno) + 1))
    return lines


# One model for each client, task or member is what the method is about: they are averaged, asked or
# trained on.
_EACH = re.compile(
    r"client|local|shadow|task|worker|user|member|ensemble|part(y|ies)$|site|domain|expert|"
    r"population|offspring|particle|(^|_)seeds?($|_)",
    re.I,
)


def _all_wanted(file: Any, line: int) -> bool:
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


_GROWS = frozenset("graph-kept-in-list loss-graph-accumulated hidden-state-not-detached".split())
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
    clear_memory(), reset(). What training_step() gathers for an epoch is another thing.
    """
    for s in file.statements:
        if s.lineno != line or not isinstance(s, ast.Expr):
            continue
        place, call = file.places[s], s.value
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        if place.klass is None or getattr(place.function, "name", "") == "training_step":
            continue
        name = key(call.func.value)
        if name and any(
            _empties(n, name)
            for f in place.klass.body
            if isinstance(f, FUNCTIONS)
            and f is not place.function
            and f.name != "__init__"
            and not f.name.startswith("on_")
            for n in walk(f)
        ):
            return True
    return False


def _empties(n: ast.AST, name: str) -> bool:
    """del x[:], x = [], x.clear()"""
    if isinstance(n, ast.Delete):
        return any(key(getattr(t, "value", t)) == name for t in n.targets)
    if isinstance(n, ast.Assign):
        return any(key(t) == name for t in n.targets)
    return (
        isinstance(n, ast.Call)
        and method(n) == "clear"
        and isinstance(n.func, ast.Attribute)
        and key(n.func.value) == name
    )


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
    """if len(kept) < limit: kept.append(batch.cuda())"""
    for s in file.statements:
        call = s.value if s.lineno == line and isinstance(s, ast.Expr) else None
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        name = key(call.func.value)
        for i in file.places[s].ifs:
            for c in walk(i.test) if isinstance(i, ast.If) else ():
                if (
                    isinstance(c, ast.Compare)
                    and isinstance(c.ops[0], (ast.Lt, ast.LtE))
                    and isinstance(c.left, ast.Call)
                    and method(c.left) == "len"
                    and any(key(a) == name for a in c.left.args)
                ):
                    return True
    return False


def _rows_of_it(file: Any, line: int) -> bool:
    """while len(left): done = torch.cat((done, left[index])): the rows of one batch, in another order"""
    for s in file.statements:
        if s.lineno != line or not isinstance(s, ast.Assign) or not file.places[s].loops:
            continue
        loop = file.places[s].loops[-1]
        from .evaluation import names_data  # which asks this module

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


_DEVICE = re.compile(r"cuda|device|gpu|accelerat|^mps|fabric|lightning|^to$", re.I)


def _on_the_host(file: Any) -> bool:
    """A script that reads a model's weights, asks it and nowhere names a device: the activations of
    one pass lie in host memory
    """
    if not hasattr(file, "_host"):
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
        reads = words & {"load_state_dict()", "from_pretrained()", "load_model()"}
        file._host = (
            bool(reads) and "backward()" not in words and not any(map(_DEVICE.search, words))
        )
    return bool(file._host)


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
    for f in found:
        sure, through = f.pop("proven", False), f.pop("through", None)
        if f["rule"] in _BY_FORM and not sure:
            if f["line"] not in lines and through not in lines:
                f["hint"] = True


def is_test(file: Any, path: str) -> bool:
    """A unit test: its data are small and its process ends soon. test.py of a research repository
    is no test but an evaluation.
    """
    path = path.replace("\\", "/")
    if file.modules & {"pytest", "unittest"}:
        return True
    tests = [n for n in file.nodes if isinstance(n, FUNCTIONS) and n.name.startswith("test_")]
    asserts = any(isinstance(n, ast.Assert) for f in tests for n in walk(f)) or any(
        isinstance(n, ast.Call) and (key(n.func) or "").startswith("self.assert")
        for n in file.nodes
    )
    named, kept = _TEST_NAME.search(path), _TEST_FOLDER.search(path)
    return bool(named and kept or asserts and (named or kept))


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


# loops


FEW = 10  # rounds that a reader takes in at a glance
MANY = 100  # rounds over which a little a round becomes much


# What a model is made of, and the terms of one loss: as many as somebody wrote down.
_PARTS = re.compile(
    r"(layer|block|stage|head|scale|level|branch|module|model|criterion|criteria|term|(^|_)net|"
    r"discriminator|generator|expert|agent|modalit|domain|weight|param|group|device|gpu|metric|loss|"
    r"critic|actor|teacher|member|optimi[sz]er)"
    r"(e?s|_?(list|dict|names?|keys|fns?|weights?))$|"
    r"^(losses|keys|tasks|inputs|views|crops|clips|batch_?group|micro_?batches)$",
    re.I,
)


# Functions in a list were put there by hand.
_FUNCTIONS = re.compile(
    r"(^|_|\.)(fn|func|function|callback|hook|transform|update)_?s$|_fns$", re.I
)

_COUNTS = re.compile(
    r"accum|critic|(inner|outer)_?steps$|"
    r"(layer|head|scale|level|stage|block|agent|player|member|expert|actor|domain)s$|"
    r"branches$|modalities$",
    re.I,
)


def few_rounds(loop: Any, file: Any = None) -> bool:
    """A loop whose rounds were written down one by one: over a literal, a small range, the parts of
    a model, the terms of a loss.
    """
    over = getattr(loop, "iter", None)
    if over is None:
        generators = getattr(loop, "generators", None)
        over = generators[0].iter if generators else None
    if over is None:
        return False
    while isinstance(over, ast.Call) and over.args:
        if method(over) == "range":
            end = over.args[-1] if len(over.args) < 3 else over.args[1]
            last = constant(end)
            if isinstance(last, int):
                return last <= FEW
            return bool(_COUNTS.search(key(end) or ""))
        if method(over) not in ("enumerate", "reversed", "sorted", "list", "tqdm", "zip"):
            break
        if any(_FUNCTIONS.search(key(a) or "") for a in over.args):
            return True
        over = over.args[0]
    if isinstance(over, (ast.List, ast.Tuple, ast.Dict, ast.Set)):
        return True
    if _FUNCTIONS.search(key(over) or ""):
        return True
    if file is not None and isinstance(over, ast.Name) and over.id in _written_down(file):
        return True
    if file is not None and isinstance(over, ast.Attribute):
        if {key(over), over.attr} & set(_written_down(file)):
            return True  # for name in self.names, where names = ["r.png", "g.png"]
    if isinstance(over, ast.Attribute) and over.attr.isupper():
        return True  # for t in self.TEMPERATURES
    if isinstance(over, ast.Call) and isinstance(over.func, ast.Attribute):
        if over.func.attr not in ("items", "values", "keys"):
            return over.func.attr in ("children", "modules", "parameters", "named_parameters")
        over = over.func.value
    return bool(_PARTS.search((key(over) or "").split(".")[-1]))


def many_rounds(loop: Any) -> bool:
    """A loop that is seen to go on for long: without an end, or a range of a hundred and more."""
    if isinstance(loop, ast.While):
        return constant(loop.test) in (True, 1)
    over = getattr(loop, "iter", None)
    if not isinstance(over, ast.Call) or method(over) != "range" or not over.args:
        return False
    last = constant(over.args[-1] if len(over.args) < 3 else over.args[1])
    return isinstance(last, int) and last >= MANY


UNKNOWN = 50  # rounds of a loop whose end is not written down


def rounds_around(file: Any, s: Any, loops: Any = None) -> int:
    """How often a statement runs, as far as the loops around it say so."""
    total = 1
    for loop in file.places[s].loops if loops is None else loops:
        total *= _rounds(file, loop)
    return total


def _rounds(file: Any, loop: Any) -> int:
    if isinstance(loop, ast.While):
        return MANY if constant(loop.test) in (True, 1) else UNKNOWN
    over = getattr(loop, "iter", None)
    while isinstance(over, ast.Call) and over.args and method(over) != "range":
        if method(over) not in ("enumerate", "reversed", "sorted", "list", "tqdm", "zip"):
            break
        over = over.args[0]
    if isinstance(over, ast.Call) and method(over) == "range" and over.args:
        last = constant(over.args[-1] if len(over.args) < 3 else over.args[1])
        if isinstance(last, int):
            return last
        given = _number(file, over.args[-1] if len(over.args) < 3 else over.args[1])
        return given if given is not None else UNKNOWN
    if isinstance(over, (ast.List, ast.Tuple, ast.Set)):
        return len(over.elts)
    if isinstance(over, ast.Name) and over.id in _written_down(file):
        return _written_down(file)[over.id]
    return UNKNOWN


def _number(file: Any, node: Any) -> Any:
    """EPISODES = 2000 at the top of the file, and nowhere else; len(rates) of a short literal"""
    if isinstance(node, ast.Call) and method(node) == "len" and len(node.args) == 1:
        return _written_down(file).get(key(node.args[0]))
    name = key(node) if isinstance(node, ast.Name) else None
    default = _default(file, node) if name else None
    if default is not None:
        return default
    given = [
        constant(n.value)
        for n in file.nodes
        if isinstance(n, ast.Assign) and any(key(t) == name for t in targets(n))
    ]
    return given[0] if name and len(given) == 1 and isinstance(given[0], int) else None


def _default(file: Any, node: Any) -> Any:
    """3 of def profile(model, n_batches=3), or the largest that a call here gives"""
    for f in file.nodes:
        if not isinstance(f, FUNCTIONS) or not any(n is node for n in walk(f)):
            continue
        names = [a.arg for a in f.args.args]
        defaults = dict(zip(reversed(names), reversed(f.args.defaults)))
        defaults.update(
            (a.arg, d) for a, d in zip(f.args.kwonlyargs, f.args.kw_defaults) if d is not None
        )
        if node.id not in defaults:
            continue
        given = [defaults[node.id]]
        for c in file.nodes:
            if isinstance(c, ast.Call) and method(c) == f.name:
                if len(c.args) >= len(names):
                    return None
                given.append(keyword(c, node.id) or defaults[node.id])
        numbers = [constant(g) for g in given]
        return max(numbers) if all(type(n) is int for n in numbers) else None
    return None


def _written_down(file: Any) -> Any:
    """Names that stand for a short literal wherever they are set, and how long that is."""
    if not hasattr(file, "_written_down"):
        short, other = {}, set()
        # items.append(x) beside items = [], which no loop repeats: an entry of the literal
        begun = {
            (file.places[s].function, key(t))
            for s in file.statements
            if isinstance(s, ast.Assign) and isinstance(s.value, ast.List)
            for t in s.targets
        }
        once = {
            s.value
            for s in file.statements
            if isinstance(s, ast.Expr)
            and isinstance(s.value, ast.Call)
            and isinstance(s.value.func, ast.Attribute)
            and s.value.func.attr == "append"
            and not file.places[s].loops
            and isinstance(s.value.func.value, ast.Name)
            and (file.places[s].function, s.value.func.value.id) in begun
        }
        for n in file.nodes:
            if isinstance(n, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For)):
                entries = _entries(getattr(n, "value", None))
                # train, test = first, second: the names stand for what is in the tuple
                unpacked = any(isinstance(t, (ast.Tuple, ast.List)) for t in _aims(n))
                few = isinstance(entries, list) and len(entries) <= 2 * FEW and not unpacked
                for t in targets(n):
                    if few and isinstance(n, ast.Assign):
                        short[key(t)] = max(len(entries), short.get(key(t), 0))
                    else:
                        other.add(key(t))
            elif isinstance(n, ast.arg):
                other.add(n.arg)
            elif isinstance(n, ast.Call) and method(n) in ("append", "extend", "add"):
                name = key(n.func.value) if isinstance(n.func, ast.Attribute) else None
                if n in once:
                    short[name] = short.get(name, 0) + 1
                else:
                    other.add(name)
        file._written_down = {k: n for k, n in short.items() if n and k not in other}
    return file._written_down


def _entries(value: Any) -> Any:
    """The entries of a literal; of ["a", "b"] if both else ["a"] the longer ones"""
    if isinstance(value, ast.IfExp):
        sides = [_entries(value.body), _entries(value.orelse)]
        return max(sides, key=len) if all(isinstance(x, list) for x in sides) else None
    return getattr(value, "elts", getattr(value, "keys", None))


def _aims(n: Any) -> Any:
    return n.targets if isinstance(n, ast.Assign) else [n.target]


def short_window(loop: Any, name: str) -> bool:
    """Is the variable begun anew after each window of gradient accumulation? Such a window is a few
    rounds long.
    """
    for n in walk(loop):
        if not isinstance(n, ast.If):
            continue
        words = " ".join(
            (key(x) or "") for x in walk(n.test) if isinstance(x, (ast.Name, ast.Attribute))
        )
        if not re.search(r"accum|sync_gradients|micro", words, re.I):
            continue
        for s in walk(n):
            if isinstance(s, (ast.Assign, ast.AugAssign)) and any(
                key(t) == name for t in targets(s)
            ):
                return isinstance(s, ast.Assign)
    return False


def of_this_round(file: Any, s: ast.stmt) -> bool:
    """Does the statement call something that the loop around it made or goes through? A block of a
    model, not a model that is given batches.
    """
    place = file.places.get(s)
    if place is None or not place.loops:
        return False
    loop = place.loops[-1]
    made = {key(t) for x in walk(loop) if isinstance(x, (ast.Assign, ast.For)) for t in targets(x)}
    called = {
        key(n.func)
        for n in walk_here(s)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
    }
    return bool(called & made)


def pads_to_longest(file: Any) -> bool:
    """Batches of many shapes."""
    for n in file.nodes:
        if not isinstance(n, ast.Call):
            continue
        if method(n) in ("pad_sequence", "DataCollatorWithPadding", "DataCollatorForSeq2Seq"):
            return keyword(n, "pad_to_multiple_of") is None
        if constant(keyword(n, "padding")) in (True, "longest"):
            return True
    return False


def under_a_switch(file: Any, s: ast.stmt) -> bool:
    """Does an option or a flag decide whether the statement runs?"""
    return any(
        not any(isinstance(n, ast.Name) and n.id == "__name__" for n in walk(i.test))
        for i in file.places[s].ifs
        if isinstance(i, ast.If)
    )


_PRETRAINED = re.compile(
    r"pre_?train|imagenet|model_zoo|backbone|basenet|-[0-9a-f]{8}\.pth|init_?weight|download", re.I
)


def published(file: Any, s: ast.stmt) -> bool:
    """Weights that somebody else has trained: they are saved from the CPU as a rule. The path may be
    set a line above.
    """
    asked = {n.id for n in walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    set_here = [
        n.value
        for n in file.nodes
        if isinstance(n, ast.Assign)
        and isinstance(n.value, (ast.Constant, ast.JoinedStr, ast.BinOp))
        and any(isinstance(t, ast.Name) and t.id in asked for t in n.targets)
    ]
    names = {key(t) for t in targets(s)} - {None}
    around = file.places[s].function if s in file.places else None
    beside = [  # state = load_url(address) in the other branch
        n
        for n in walk(around or file.tree)
        if isinstance(n, ast.Assign)
        and isinstance(n.value, ast.Call)
        and method(n.value) in ("load_url", "load_state_dict_from_url")
        and names & {key(t) for t in n.targets}
    ]
    return bool(beside) or any(_of_others(x) for x in [s, *set_here])


def _of_others(s: ast.AST) -> bool:
    return any(
        _PRETRAINED.search(
            n.value if isinstance(n, ast.Constant) else n.id if isinstance(n, ast.Name) else n.attr
        )
        for n in walk(s)
        if isinstance(n, (ast.Name, ast.Attribute))
        or isinstance(n, ast.Constant)
        and isinstance(n.value, str)
    )


def has_optimizer(file: Any) -> bool:
    """Is an optimizer restored from a checkpoint here, or saved with one?"""
    return any(
        isinstance(n, ast.Call)
        and isinstance(n.func, ast.Attribute)
        and n.func.attr in ("load_state_dict", "state_dict")
        and "opt" in (key(n.func.value) or "").lower()
        for n in file.nodes
    )


SHORT = 64  # rounds between two emptyings that keep little


def small_window(file: Any, loop: Any, name: str) -> bool:
    """if step % 20 == 0: update(samples); samples = []"""
    for n in walk(loop):
        if not isinstance(n, ast.If):
            continue
        every = [
            x.right.value if isinstance(x.right, ast.Constant) else _number(file, x.right)
            for x in walk(n.test)
            if isinstance(x, ast.BinOp) and isinstance(x.op, ast.Mod)
        ]
        if not any(isinstance(e, int) and e <= SHORT for e in every):
            continue
        for x in walk(n):
            if isinstance(x, ast.Assign) and any(key(t) == name for t in targets(x)):
                return True
            if isinstance(x, ast.Call) and isinstance(x.func, ast.Attribute):
                if x.func.attr == "clear" and key(x.func.value) == name:
                    return True
    return False


def stops_when_full(loop: Any) -> bool:
    """if sum(len(z) for z in kept) >= limit: break, if index == 0: ... else: break"""
    inside = walk(loop) if isinstance(loop, (ast.For, ast.While)) else ()
    for n in inside:
        for body, reached in (("body", (ast.Gt, ast.GtE, ast.Eq)), ("orelse", _BELOW)):
            last = getattr(n, body)[-1:] if isinstance(n, ast.If) else []
            if last and isinstance(last[0], (ast.Break, ast.Return)) and _compares(n.test, reached):
                return True
    return False


_BELOW = (ast.Lt, ast.LtE, ast.Eq)


def _compares(test: ast.expr, operators: Any) -> bool:
    return any(
        isinstance(c, ast.Compare)
        and isinstance(c.ops[0], operators)
        and not any(isinstance(x, ast.Constant) and x.value is None for x in c.comparators)
        for c in walk(test)
    )


def put_back(file: Any, s: Any) -> bool:
    """row = self.rows[i]; ...; self.rows[i] = pad(row): an entry that was there before. Not where
    somebody asks first whether it is, or comes here because it is not.
    """
    target = s.targets[0] if isinstance(s, ast.Assign) else None
    place = file.places.get(s)
    if not isinstance(target, ast.Subscript) or place is None or place.function is None:
        return False
    if place.handler:
        return False
    read = False
    for n in walk(place.function):
        if isinstance(n, ast.Compare) and any(
            isinstance(o, (ast.In, ast.NotIn, ast.Is, ast.IsNot)) for o in n.ops
        ):
            words = {key(x) for x in walk(n) if isinstance(x, (ast.Name, ast.Attribute))}
            if key(target.value) in words:
                return False
        if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Load):
            read = read or n.lineno < s.lineno and _same_entry(n, target)
    return read


def keeps_little(file: Any, s: Any) -> bool:
    """What a dataset keeps: a number each, as many as a limit says, or a few in all"""
    return _puts_number(s) or _under_a_bound(file, s) or _few_samples(file, s)


_NUMBERS_OF = re.compile(
    r"^(rand(range|int|om|bits)?|getrandbits|len|int|float|hash|id|time|perf_counter)$"
)
_BOUND = re.compile(r"max|limit|capac|budget|cache_?(size|per)|size$|quota", re.I)


def _puts_number(s: Any) -> bool:
    """self.seeds.append(random.randrange(2**32))"""
    value = getattr(s, "value", None)
    if isinstance(s, ast.Expr) and isinstance(value, ast.Call) and value.args:
        value = value.args[-1]
    return isinstance(value, ast.Call) and bool(_NUMBERS_OF.match(method(value) or ""))


def _under_a_bound(file: Any, s: Any) -> bool:
    """if count < self.max_cached: self.cache[i] = x"""
    return any(
        isinstance(c, ast.Compare)
        and isinstance(c.ops[0], (ast.Lt, ast.LtE))
        and any(_BOUND.search((key(x) or "").split(".")[-1]) for x in c.comparators)
        for i in (file.places[s].ifs if s in file.places else ())
        if isinstance(i, ast.If)
        for c in walk(i.test)
    )


def _few_samples(file: Any, s: Any) -> bool:
    """def __len__(self): return len(self.NAMES), where NAMES is written out"""
    klass = file.places[s].klass if s in file.places else None
    body = klass.body if klass is not None else []
    short = {
        key(t)
        for a in body
        if isinstance(a, ast.Assign)
        and isinstance(a.value, (ast.List, ast.Tuple))
        and len(a.value.elts) <= 2 * FEW
        for t in a.targets
    }
    return any(
        isinstance(f, FUNCTIONS)
        and f.name == "__len__"
        and any(isinstance(n, ast.Attribute) and n.attr in short for r in f.body for n in walk(r))
        for f in body
    )


def is_the_model(file: Any, s: Any) -> bool:
    """saved = torch.load(path); model = saved["model"]: there is no second one"""
    names = {key(t) for t in targets(s)} if isinstance(s, ast.Assign) else set()
    return any(
        isinstance(n, ast.Assign)
        and isinstance(n.value, ast.Subscript)
        and key(n.value.value) in names
        and any(is_model_name(key(t) or "") for t in targets(n))
        for n in file.nodes
    )


def perhaps_number(s: Any) -> bool:
    """history.append(found.get("epoch", -1))"""
    call = s.value if isinstance(s, ast.Expr) else None
    given = call.args[-1] if isinstance(call, ast.Call) and call.args else None
    if not isinstance(given, ast.Call) or method(given) != "get" or len(given.args) != 2:
        return False
    default = given.args[1]
    if isinstance(default, ast.UnaryOp):
        default = default.operand
    return isinstance(default, ast.Constant) and type(default.value) in (int, float)


def moved_entry(s: Any) -> bool:
    """states[user] = (states[user][0].cuda(), states[user][1].cuda()): made of itself alone"""
    target = s.targets[0] if isinstance(s, ast.Assign) else None
    if not isinstance(target, ast.Subscript):
        return False
    own = {n.id for n in walk(target) if isinstance(n, ast.Name)}
    used = {n.id for n in walk(s.value) if isinstance(n, ast.Name)}
    return used <= own and any(
        isinstance(n, ast.Subscript) and _same_entry(n, target) for n in walk(s.value)
    )


def _same_entry(one: ast.Subscript, other: ast.Subscript) -> bool:
    return all(
        ast.dump(a).replace("Store", "Load") == ast.dump(b).replace("Store", "Load")
        for a, b in ((one.value, other.value), (one.slice, other.slice))
    )


def exclusive(file: Any, one: Any, other: Any) -> bool:
    """Do the two statements stand in different branches of a condition?"""
    for i in file.places[one].ifs:
        if not isinstance(i, ast.If):
            continue
        sides = [{x for b in body for x in walk(b)} for body in (i.body, i.orelse)]
        if any(one in a and other in b for a, b in (sides, sides[::-1])):
            return True
    return False


def ends_the_run(s: Any) -> bool:
    """exit(), sys.exit(0), or the name of nothing, with which people stop a script"""
    value = s.value if isinstance(s, ast.Expr) else None
    if isinstance(value, ast.Call):
        return method(value) in ("exit", "quit", "_exit")
    return isinstance(value, ast.Name) and bool(
        re.match(r"^(stop|exit|quit|halt|end|asdf?|xxx+|breakpoint|die)$", value.id, re.I)
    )


def _switched_off(file: Any) -> Any:
    """if plots: of a function that says plots = False and sets it nowhere else; if DEBUG: of a file"""
    values: Any = {}  # (function, name) -> what it is set to; None where that is no constant
    given = set()
    for n in file.nodes:
        if isinstance(n, ast.arg):
            given.add(n.arg)
        elif isinstance(n, (ast.Global, ast.Nonlocal)):
            given.update(n.names)
        elif isinstance(n, (ast.Import, ast.ImportFrom)):
            given.update(a.asname or a.name for a in n.names)
    for s in file.statements:
        simple = isinstance(s, ast.Assign) and isinstance(s.value, ast.Constant)
        for t in targets(s):
            if isinstance(t, ast.Name):
                values.setdefault((file.places[s].function, t.id), []).append(
                    s.value.value if simple else None
                )
    off = set()
    for s in file.statements:
        if not isinstance(s, ast.If) or not isinstance(s.test, ast.Name) or s.test.id in given:
            continue
        function = file.places[s].function
        found = values.get((function, s.test.id)) or values.get((None, s.test.id)) or [None]
        if all(v is False or type(v) is int and v == 0 for v in found):
            off.add(s)
    return off


def never_reached(file: Any) -> Any:
    """Lines behind what ends a block: return, raise, break, continue, exit(). Lines under a switch
    that is written down as off.
    """
    if not hasattr(file, "_never_reached"):
        lines = set()
        off = _switched_off(file)
        for n in file.nodes:
            for name in ("body", "orelse", "finalbody"):
                block = getattr(n, name, None)
                if not isinstance(block, list):
                    continue
                ended = False
                for s in block:
                    if (ended or name == "body" and n in off) and hasattr(s, "lineno"):
                        lines.update(range(s.lineno, (s.end_lineno or s.lineno) + 1))
                    last = (ast.Return, ast.Raise, ast.Break, ast.Continue)
                    ended = ended or isinstance(s, last) or ends_the_run(s)
        file._never_reached = lines
    return file._never_reached


def ends_there(file: Any, s: Any) -> bool:
    """if test_only: data = torch.load(path); evaluate(); exit()"""
    for i in file.places[s].ifs:
        for body in (i.body, i.orelse) if isinstance(i, ast.If) else ():
            if not any(x is s for b in body for x in walk(b)):
                continue
            last = body[-1]
            if isinstance(last, (ast.Return, ast.Raise)):
                return True
            if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
                if method(last.value) in ("exit", "quit", "_exit"):
                    return True
    return False


# Names of what there is one number or one word of for each sample.
SMALL = re.compile(
    r"label|target|path|name|file|vocab|(^|_)ys?($|_)|(ids?|idx|index|indices|mask)s?($|_)|"
    r"(^|_)(mean|std|weights?|scale|lengths?|classes|rewards?|dones?)($|_)",
    re.I,
)


def higher_order(loop: Any) -> bool:
    """grads = torch.autograd.grad(loss, weights, create_graph=True): the gradient of the whole inner
    loop is wanted
    """
    return any(
        isinstance(n, ast.Call)
        and (asked := keyword(n, "create_graph")) is not None
        and constant(asked) is not False
        for n in walk(loop)
    )


def missing_key(file: Any, s: Any) -> bool:
    """if task not in self.nets: self.nets[task] = copy.deepcopy(self.net): one for each task, made
    when it is first asked for
    """
    target = s.targets[0] if isinstance(s, ast.Assign) else None
    return isinstance(target, ast.Subscript) and any(
        isinstance(i, ast.If)
        and isinstance(i.test, ast.Compare)
        and isinstance(i.test.ops[0], ast.NotIn)
        and key(i.test.comparators[0]) == key(target.value)
        for i in file.places[s].ifs
    )
