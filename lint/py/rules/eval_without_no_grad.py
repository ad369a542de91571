"""Evaluation that builds a graph.

severity: warning
remedy: no_grad

eval() switches dropout and batch norm, not autograd. Without no_grad every activation of the
batch is kept for a backward that never comes.

Instead: Put the loop under `with torch.no_grad():` (or `torch.inference_mode()`), or decorate
the function with it.
"""

import ast
import re
from typing import Any, Iterator, Optional, Set

from ..calls import called_without_grad
from ..evaluation import (
    BATCHES,
    HELD_OUT,
    _frozen,
    begins_with_grad,
    clears_gradients,
    grad_off_for_good,
    measures,
    other_branch_is_quiet,
    whole_split,
)
from ..findings import Finding, finding
from ..flow import Scope, calls_module, in_order, scopes
from ..names import LOOPS, File, constant, key, method, once, own, targets, walk, walk_here
from ..passes import over_data
from ..reasons import all_words, functions_around, small_problem, without_torch
from ..values import Node

_DEVICE = re.compile(r"cuda|device|gpu|accelerat|^mps|fabric|lightning|^to$", re.I)


def _on_the_host(file: Any, line: int) -> bool:
    """A script that reads a model's weights, asks it and nowhere names a device: the activations of
    one pass lie in host memory
    """
    return _names_no_device(file)


@once
def _names_no_device(file: File) -> bool:
    words = all_words(file)
    reads = words & {"load_state_dict()", "from_pretrained()", "load_model()"}
    return bool(reads) and "backward()" not in words and not any(map(_DEVICE.search, words))


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
    return (single or alone) and not any(map(_DEVICE.search, all_words(file)))


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
        for f in functions_around(file, line)
        for n in walk(f)
    )


# `test` alone: names that begin with test_ are unit tests.
_EVALUATES = re.compile(
    r"^_?(eval|evaluate|validate|validation|predict|infer|inference)(_|$)|^_?test$"
)


def check(file: File) -> Iterator[Finding]:
    if "torch" not in file.modules or grad_off_for_good(file):
        return
    for scope in scopes(file):
        if scope.function is not None and (
            called_without_grad(file, scope.function.name)
            or scope.function.name.endswith(("_step", "forward"))
        ):
            continue
        if not _steers_grad(scope):
            yield from _in_scope(file, scope)


def phases(file: File) -> Iterator[Finding]:
    """for phase in ['train', 'val']: one loop for both, without set_grad_enabled"""
    if "torch" not in file.modules or grad_off_for_good(file):
        return
    for scope in scopes(file):
        if _steers_grad(scope):
            continue
        for loop in scope.statements:
            if not isinstance(loop, (ast.For, ast.AsyncFor)):
                continue
            told_by = _flags(loop) | ({key(loop.target)} if _two_phases(loop) else set())
            hit = _untrained_forward(file, scope, loop, told_by) if told_by else None
            if hit is not None:
                yield hit


def _flags(loop: Any) -> Set[Optional[str]]:
    """learning in learning = split == "train"; net.train(learning), and what it is made from"""
    found: Set[Optional[str]] = set()
    for s in loop.body:
        value = s.value if isinstance(s, ast.Assign) else None
        if not isinstance(value, ast.Compare) or not isinstance(value.ops[0], (ast.Eq, ast.NotEq)):
            continue
        word = constant(value.comparators[0])
        if isinstance(word, str) and (word.startswith("train") or HELD_OUT.search(word)):
            flags = {key(t) for t in targets(s)}
            if any(_sets_mode(n, flags) for x in loop.body for n in walk(x)):
                found |= flags | {key(value.left)}
    return found - {None}


def _sets_mode(n: Node, flags: Any) -> bool:
    """net.train(learning); if learning: net.train()"""
    if isinstance(n, ast.If):
        asked = any(key(x) in flags for x in walk_here(n.test) if isinstance(x, ast.Name))
        return asked and any(
            isinstance(x, ast.Call) and method(x) in ("train", "eval")
            for b in n.body
            for x in walk(b)
        )
    return isinstance(n, ast.Call) and method(n) == "train" and any(key(a) in flags for a in n.args)


def _two_phases(loop: Any) -> bool:
    """A loop over written-out names of which one is held out and one is trained on."""
    if not isinstance(loop.iter, (ast.List, ast.Tuple)) or key(loop.target) is None:
        return False
    constants = [e.value for e in loop.iter.elts if isinstance(e, ast.Constant)]
    names = [n for n in constants if isinstance(n, str)]
    return any(HELD_OUT.search(n) for n in names) and any(n.startswith("train") for n in names)


def _untrained_forward(file: File, scope: Scope, loop: Any, phase: Any) -> Optional[Finding]:
    """The forward pass that runs in both phases, where backward runs in one."""
    if not any(_asks(i, phase) for s in in_order(loop.body) for i in file.places[s].ifs):
        return None
    conditional = [
        s
        for s, _ in scope.differentiated
        if loop in file.places[s].loops and any(_asks(i, phase) for i in file.places[s].ifs)
    ]
    if not conditional:
        return None
    for s in in_order(loop.body):
        place = file.places[s]
        if place.no_grad or len(place.loops) < 2 or any(_asks(i, phase) for i in place.ifs):
            continue
        for node in own(s):
            name = calls_module(node, scope)
            if name and isinstance(node, ast.Call) and node.args + node.keywords:
                return finding(
                    "eval-without-no-grad",
                    s,
                    "this forward pass of `%s` runs in both phases: in the one without backward it "
                    "still builds the graph, which holds every activation of the batch" % name,
                )
    return None


def _asks(condition: Any, phase: Any) -> bool:
    return isinstance(condition, ast.If) and any(
        key(n) in phase for n in walk_here(condition.test) if isinstance(n, ast.Name)
    )


def _steers_grad(scope: Scope) -> bool:
    """The scope asks for gradients of its own (adversarial examples, saliency): leave it alone."""
    return any(
        isinstance(node, ast.Call)
        and (
            (scope.file.callee(node) or "").endswith("autograd.grad")
            or method(node) in ("requires_grad_", "enable_grad", "set_grad_enabled")
            or begins_with_grad(node)
        )
        for s in scope.statements
        for node in own(s)
    )


def _in_scope(file: File, scope: Scope) -> Iterator[Finding]:
    evaluated = set()
    done: Set[Any] = set()
    said = False  # one finding for all single forward passes: they need one no_grad
    for s in scope.statements:
        for call in [n for n in own(s) if isinstance(n, ast.Call)]:
            name = key(call.func.value) if isinstance(call.func, ast.Attribute) else None
            if name and method(call) == "eval" and not call.args:
                evaluated.add(name)
            elif name and method(call) == "train":
                training = not call.args or constant(call.args[0]) is not False
                evaluated.discard(name) if training else evaluated.add(name)
        if isinstance(s, ast.Assign) and isinstance(s.value, ast.Call):
            evaluated -= {k for k in map(key, targets(s)) if k and not _stays(s.value, k)}
        if s in done or file.places[s].no_grad:
            continue
        if isinstance(s, LOOPS):
            if scope.has_backward(s) or _feeds_later(scope, s) or clears_gradients(s):
                continue
            hit = _forward_with_grad(file, scope, s, evaluated)
            if hit is not None:
                done.update(in_order(s.body))
                yield hit
        elif scope.backwards and (file.places[s].loops or whole_split(s)):
            hit = _single_forward(scope, s, evaluated)
            if hit is not None and not said:
                said = True
                yield hit


def _stays(value: ast.Call, name: str) -> bool:
    """model = model.eval().cuda(), DataParallel(model): still in eval mode. model = build(): not"""
    return any(key(n) == name for n in walk(value) if isinstance(n, (ast.Name, ast.Attribute)))


def _feeds_later(scope: Scope, loop: Any) -> bool:
    """Does a backward behind the loop use what the loop makes?"""
    later = [s for s, _ in scope.differentiated if s.lineno > loop.end_lineno]
    made = {key(t) for s in in_order(loop.body) for t in targets(s)} | {
        key(n.func.value)
        for s in in_order(loop.body)
        for n in own(s)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)
    }
    return bool(later) and bool(made & scope.feeds)


def _forward_with_grad(file: File, scope: Scope, loop: Any, evaluated: Any) -> Optional[Finding]:
    held_out = isinstance(loop, ast.For) and _is_held_out(file, scope, loop)
    if other_branch_is_quiet(file, loop):
        return None
    for s in in_order(loop.body):
        if file.places[s].no_grad:
            continue
        for node in own(s):
            if not isinstance(node, ast.Call) or not node.args + node.keywords:
                continue
            name = calls_module(node, scope)
            if not name or name in _frozen(file):
                continue
            if name in evaluated:
                why = "`%s` is in eval mode, but its forward pass still builds the graph" % name
            elif held_out and name in scope.modules:
                why = "this loop evaluates `%s` and builds the graph of every forward pass" % name
            else:
                continue
            return finding(
                "eval-without-no-grad",
                s,
                why + ": each batch holds its activations for a backward that never comes",
                hint=measures(file, s),
            )
    return None


def _is_held_out(file: File, scope: Scope, loop: ast.For) -> bool:
    """A loop over data that is not trained on: by the loader's name, or by the function's."""
    if scope.klass is not None:
        return False  # a method may be called under no_grad from another file
    names = [key(n) or "" for n in walk_here(loop.iter) if isinstance(n, (ast.Name, ast.Attribute))]
    if any(HELD_OUT.search(n) and BATCHES.search(n) for n in names):
        return True
    return (
        scope.function is not None
        and bool(_EVALUATES.match(scope.function.name))
        and any(BATCHES.search(n) for n in names)
    )


def _single_forward(scope: Scope, s: ast.stmt, evaluated: Any) -> Optional[Finding]:
    """val_loss = criterion(model(x_val), y_val) beside a training loop"""
    if not isinstance(s, ast.Assign) or any(key(t) in scope.feeds for t in targets(s)):
        return None
    for node in own(s):
        name = calls_module(node, scope)
        if name not in evaluated or name in _frozen(scope.file):
            continue
        if isinstance(node, ast.Call) and node.args + node.keywords:
            return finding(
                "eval-without-no-grad",
                s,
                "`%s` is in eval mode, but its forward pass still builds the graph: all its "
                "activations are held for a backward that never comes" % name,
                hint=measures(scope.file, s) or _is_plotted(scope, s),
            )
    return None


def _is_plotted(scope: Scope, s: ast.stmt) -> bool:
    """plt.plot(x, net(x)): as many points as a picture shows"""
    names = {key(t) for t in targets(s)} - {None}
    return any(
        isinstance(n, ast.Call)
        and (scope.file.callee(n) or "").startswith("matplotlib.")
        and any(isinstance(x, ast.Name) and x.id in names for a in n.args for x in walk(a))
        for other in scope.statements
        for n in own(other)
    )


CHECKS = (
    check,
    phases,
)
HINTS = (
    without_torch,
    _not_over_data,
    _on_the_host,
    _one_on_the_host,
    _gradients_of_inputs,
    small_problem,
)
