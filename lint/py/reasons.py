"""When a finding is only a hint.

A rule sees a form. Whether the form costs memory in this file may hang on something the file does
not show: then the finding becomes a hint, which is printed on request and never counted.

HINTS in a rule's file names its reasons. A reason is a function of the file and the finding's line;
its docstring shows the form that it looks for. Here are those that several rules have.
"""

import ast
import re
from typing import Any, Callable, Dict, List, Set, Tuple

from .evidence import adapts, never_reached
from .findings import Finding
from .names import FUNCTIONS, constant, key, method, once, targets, walk
from .spent import FREED

Reason = Callable[[Any, int], bool]


def hints(file: Any, found: List[Finding], of_rule: Dict[str, Tuple[Reason, ...]]) -> List[Finding]:
    """The findings, with those marked that this file does not prove."""
    for finding in found:
        reasons = OF_ANY + of_rule[finding.rule]
        if any(reason(file, finding.line) for reason in reasons):
            finding.hint = True
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
    retired = [f for f in functions_around(file, line) if _says_deprecated(f)]
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


def without_torch(file: Any, line: int) -> bool:
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


def small_problem(file: Any, line: int) -> bool:
    """gym.make("CartPole-v1"): the network has a few thousand weights"""
    return _controls(file)


@once
def _controls(file: Any) -> bool:
    return any(
        isinstance(n, ast.Constant) and isinstance(n.value, str) and _CONTROL.match(n.value)
        for n in file.nodes
    )


def loss_of_small_problem(file: Any, line: int) -> bool:
    """losses.append(loss) on CartPole: backward() has freed what the graph held, and the nodes of a
    few layers stay. What no backward() goes through, such as the values in a replay buffer, is kept
    whole.
    """
    return small_problem(file, line) and any(
        isinstance(n, (ast.Name, ast.Attribute)) and "loss" in (key(n) or "").split(".")[-1].lower()
        for s in file.statements
        if s.lineno == line and isinstance(s, (ast.Expr, ast.Assign, ast.AugAssign))
        for n in walk(s)
    )


def functions_around(file: Any, line: int) -> List[Any]:
    return [
        n
        for n in file.nodes
        if isinstance(n, FUNCTIONS) and n.lineno < line <= (n.end_lineno or n.lineno)
    ]


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


def adapting_function(file: Any, line: int) -> bool:
    """def inner_loop(...): what a learner that adapts keeps is differentiated later"""
    return adapts(_around(file, line, FUNCTIONS))


_MEASURED = re.compile(
    r"(^|[_/])(profile|profiler|profiling|bench\w*|timing|latency|throughput)(_|\.py$)", re.I
)


def measured(file: Any, line: int) -> bool:
    """A script that measures does it on purpose."""
    return bool(_MEASURED.search(file.path.replace("\\", "/")))


def _around(file: Any, line: int, kinds: Any) -> Any:
    """The outermost function or class around a line; the file where there is none"""
    around = [
        n for n in file.nodes if isinstance(n, kinds) and n.lineno <= line <= (n.end_lineno or 0)
    ]
    return min(around, key=lambda n: n.lineno) if around else file.tree


def volatile(file: Any, line: int) -> bool:
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


_STEPS = re.compile(r"backward|optimi[sz]e|^update|^step$|_step$", re.I)

_TAKES = re.compile(r"backward|optimi[sz]e|^update_|train_step|_step$", re.I)
_NOTES = re.compile(r"sched|plateau|meter|metric|logger|writer|ema|average|stat", re.I)


def before_a_step(file: Any, line: int) -> bool:
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


def read_first(file: Any, line: int) -> bool:
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


def whole(node: Any) -> Any:
    """self.kept of self.kept["val"] and of self.kept[session]"""
    while isinstance(node, ast.Subscript):
        node = node.value
    return key(node)


def empties(n: ast.AST, name: str) -> bool:
    """del x[:], x = [], x[key] = [], x.clear(), x[key].clear()"""
    if isinstance(n, ast.Delete):
        return any(whole(t) == name for t in n.targets)
    if isinstance(n, ast.Assign):
        fresh = isinstance(n.value, (ast.List, ast.Dict))
        return any(key(t) == name or fresh and whole(t) == name for t in n.targets)
    return (
        isinstance(n, ast.Call)
        and method(n) == "clear"
        and isinstance(n.func, ast.Attribute)
        and whole(n.func.value) == name
    )


def grad_turned_off(file: Any, line: int) -> bool:
    """toggle_grad(net, False), then weights that go through an average of themselves: no graph is
    made where nothing wants gradients
    """
    functions = functions_around(file, line)
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


MEMORY = re.compile(r"memory|bank|exemplar|proto|anchor|centroid|buffer|replay", re.I)


def deleted_by_caller(file: Any, line: int) -> bool:
    """def resume(path): saved = torch.load(path); return saved, and del saved where it is called"""
    around = {f.name for f in functions_around(file, line)}
    got = {
        key(t)
        for n in file.nodes
        if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call) and method(n.value) in around
        for t in targets(n)
    } - {None}
    return any(isinstance(n, ast.Delete) and got & {key(t) for t in n.targets} for n in file.nodes)


def all_words(file: Any) -> Set[str]:
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


def cleared_by_function(file: Any, line: int) -> bool:
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
        empties(n, name)
        for name in kept & at_top
        for f in file.plain_functions.values()
        for n in walk(f)
    )


# Rules that go by the form of the code. The abstract run follows the values themselves: where it
# sees nothing kept, the form alone proves nothing.
_BY_FORM = frozenset(
    "loss-graph-accumulated graph-kept-in-list graph-kept-here module-keeps-tensors "
    "outputs-kept-on-card".split()
)


def agreed(found: List[Finding], told: List[Finding]) -> None:
    """Marks what a rule of forms says and the abstract run does not bear out: neither at this line
    nor at the other end of the same story.
    """
    lines = {f.line for f in told}
    graphs = {f.line for f in told if f.rule != "outputs-kept-on-card"}
    spent = {f.line: f.message for f in told if f.message.endswith(FREED)}
    for f in found:
        if f.rule == "graph-kept-in-list":
            f.message = spent.get(f.line, f.message)
        if f.rule in _BY_FORM and not f.proven:
            borne = lines if f.rule == "outputs-kept-on-card" else graphs
            if f.line not in borne and f.through not in borne:
                f.hint = True


# Makes a finding of any rule a hint.
OF_ANY: Tuple[Reason, ...] = (_in_a_test, _unreached, _deprecated)
