"""Calls that do harm inside a training loop."""

import ast
import re

from . import evidence, rules
from .calls import resolve
from .flow import (
    backward_values,
    calls_module,
    in_order,
    innermost,
    is_model_name,
    scopes,
    variables,
)
from .keeping import cut_or_begun
from .names import LOOPS, calls, constant, key, keyword, method, own, targets, walk


def retain_graph(file):
    """loss.backward(retain_graph=True) where nothing needs the graph again"""
    for scope in scopes(file):
        for s in scope.statements:
            place = file.places.get(s)
            if not place or not place.loops:
                continue
            for call in [n for n in own(s) if isinstance(n, ast.Call)]:
                if method(call) != "backward":
                    continue
                if constant(keyword(call, "create_graph")) is True:
                    yield rules.finding(
                        "backward-create-graph",
                        s,
                        "backward(create_graph=True) gives every parameter a gradient with a "
                        "graph: parameter and gradient refer to each other and are not freed",
                    )
                elif constant(keyword(call, "retain_graph")) is True and _is_last(
                    scope, place.loops[-1], call
                ):
                    yield rules.finding(
                        "retain-graph-in-loop",
                        s,
                        "the graph is kept after backward, and nothing behind it in the loop "
                        "differentiates it again: it stays beside the next one",
                        hint=_begun_before(scope, place.loops[-1]) or _carries_state(scope.file),
                    )


_RESULT = re.compile(r"emb|feat|prob|value|entrop|adv|loss|logit|pred|out|hidden|state$|code", re.I)


def _of_a_model(call, s) -> bool:
    """text = clip_model.encode_text(tokens), values, log_probs = self.gather(): results of a model
    by another name
    """
    if not isinstance(call.func, ast.Attribute):
        return False
    owner = key(call.func.value) or ""
    return (is_model_name(owner) or owner == "self") and any(
        _RESULT.search(key(t) or "") for t in targets(s)
    )


def _carries_state(file) -> bool:
    """y, self.hidden = self.rnn(x, self.hidden), cut once in several rounds: those between go back
    through this graph
    """
    return any(
        cut_or_begun(file, name, s)
        for s in file.statements
        if isinstance(s, ast.Assign) and isinstance(s.value, ast.Call)
        for name in {k for k in map(key, targets(s)) if k and "." in k}
        & {key(n) for a in s.value.args for n in walk(a) if isinstance(n, ast.Attribute)}
    )


def _begun_before(scope, loop) -> bool:
    """Does the loop use a tensor that was computed before it? Then every round may need that part
    of the graph again.
    """
    used = {
        n.id
        for s in [*loop.body, getattr(loop, "iter", None)]
        if s is not None
        for n in walk(s)
        if isinstance(n, ast.Name)
    }
    for s in scope.statements:
        if not isinstance(s, ast.Assign) or s.lineno >= loop.lineno:
            continue
        made = any(
            isinstance(n, ast.Call)
            and (
                calls_module(n, scope) is not None
                or (scope.file.callee(n) or "").startswith("torch.nn.functional.")
                # actions = torch.cat(actions_of_agents): made of what other loops computed
                or (scope.file.callee(n) or "") in ("torch.cat", "torch.stack")
                or _of_a_model(n, s)
            )
            for n in own(s)
        )
        names = {key(t) for t in targets(s)} - set(scope.modules)
        if made and used & names:
            return True
    return False


def _is_last(scope, loop, call):
    """No other use of gradients follows in the loop, and the graph is the loop's own."""
    each = key(innermost(call.func.value)) if isinstance(call.func, ast.Attribute) else None
    if each and any(
        each in variables(t) for t in targets(loop)
    ):  # for one in losses: they share a graph
        return False
    uses = [
        node
        for s in in_order(loop.body)
        for node in own(s)
        if isinstance(node, ast.Call)
        and (
            method(node) in ("backward", "manual_backward")
            or (key(node.func) or "").endswith("autograd.grad")
        )
    ]
    if any(
        u is not call and (u.lineno, u.col_offset) > (call.lineno, call.col_offset) for u in uses
    ):
        return False
    if _used_behind(scope, loop) or _taken_from(loop, each):
        return False
    if isinstance(innermost(call.func.value), ast.Subscript):
        return False  # losses[i].backward(): made elsewhere, and they may share a graph
    if len(uses) > 1 and not all(
        constant(keyword(u, "retain_graph")) is True for u in uses if u is not call
    ):
        return False  # turns of a GAN: which graph is shared cannot be told
    # A loss made before the loop is differentiated again and again: then the graph is needed.
    made = {key(t) for s in in_order(loop.body) for t in targets(s)} | {
        key(t) for t in targets(loop)
    }
    receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
    name = key(innermost(receiver)) if receiver is not None else None
    return name is None or name in made or name.split(".")[0] in made


def _used_behind(scope, loop):
    """Behind an inner loop the outer one differentiates again: perhaps what the inner one made."""
    around = scope.file.places[loop].loops
    return bool(around) and any(
        s.lineno > loop.end_lineno
        for s, _ in scope.differentiated
        if s in set(in_order(around[-1].body))
    )


def _taken_from(loop, name):
    """loss = losses.pop(k), loss = losses[k]: made elsewhere, and they may share a graph"""
    return any(
        isinstance(s, ast.Assign)
        and any(key(t) == name for t in s.targets)
        and (
            isinstance(s.value, ast.Subscript)
            or isinstance(s.value, ast.Call)
            and method(s.value) in ("pop", "get")
        )
        for s in in_order(loop.body)
    )


def empty_cache(file):
    """torch.cuda.empty_cache() at every step"""
    for scope in scopes(file):
        for s in scope.statements:
            place = file.places.get(s)
            if not place or not place.loops or place.handler or not isinstance(s, ast.Expr):
                continue
            for call in calls(s):
                name = file.callee(call) or ""
                if not name.endswith("cuda.empty_cache"):
                    continue
                loop = place.loops[-1]
                guarded = [i for i in place.ifs if loop in file.places[i].loops]
                # once an epoch (after an inner loop over batches) is nobody's bottleneck
                if scope.has_backward(loop) and not guarded and _direct_backward(loop):
                    yield rules.finding(
                        "empty-cache-in-loop",
                        s,
                        "the cache is emptied at every step: the next step asks the driver for the same memory again, slowly, and the peak is the same",
                        hint=_measures_memory(file, loop)
                        or evidence.few_rounds(loop, file)
                        or evidence.rounds_around(file, s) <= evidence.FEW,
                    )


_READINGS = re.compile(
    r"^(reset_(max|peak)_memory_\w+|memory_stats|max_memory_(allocated|reserved))$"
)


def _measures_memory(file, loop) -> bool:
    """torch.cuda.reset_peak_memory_stats() in the same loop: the peak of each step is wanted"""
    return any(isinstance(n, ast.Call) and _READINGS.match(method(n) or "") for n in walk(loop))


def _direct_backward(loop):
    from .accumulation import _direct

    return any(True for s in _direct(loop.body) for _ in backward_values(s))


def loss_to_cpu(file):
    """loss.cpu().backward(), in the belief that backward then runs on the CPU"""
    for scope in scopes(file):
        moved = {}
        for s in scope.statements:
            if isinstance(s, ast.Assign) and len(s.targets) == 1 and key(s.targets[0]):
                name = key(s.targets[0])
                if _to_cpu(file, s.value) or _scalar_to_cpu(file, scope, s.value, name):
                    moved[name] = s
                elif key(s.value) in moved or _arithmetic_on(s.value, moved):
                    moved[name] = moved[next(iter(variables(s.value) & set(moved)))]
                elif _returns_on_cpu(file, scope, s.value):
                    moved[name] = _returns_on_cpu(file, scope, s.value)
                else:
                    moved.pop(name, None)
            for value in backward_values(s):
                hit = moved.get(key(value) or "")
                if hit is None and not any(_to_cpu(file, n) for n in own(s) if n is not value):
                    continue
                yield rules.finding(
                    "loss-to-cpu-before-backward",
                    hit or s,
                    "moving the loss to the CPU moves one number: backward still runs where the "
                    "forward pass ran, with all its memory",
                )


def _returns_on_cpu(file, scope, call):
    """return criterion(out, y).cpu(), or of a name that was moved: in a function of this file that
    is called here
    """
    function = resolve(scope, call) if isinstance(call, ast.Call) else None
    if function is None:
        return None
    moved = {}
    for s in in_order(function.body):
        if isinstance(s, ast.Assign) and _to_cpu(file, s.value):
            moved.update((key(t), s) for t in targets(s))
        elif isinstance(s, ast.Return) and _to_cpu(file, s.value):
            return s
        elif isinstance(s, ast.Return) and key(s.value) in moved:
            return moved[key(s.value)]
    return None


def _arithmetic_on(value, names):
    return isinstance(value, ast.BinOp) and bool(variables(value) & set(names))


def _to_cpu(file, node):
    """x.cpu(), x.to("cpu"), x.to(torch.device("cpu")), x.to(device="cpu"): of one tensor, not of
    a model's outputs that a loss is computed from.
    """
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    owner = node.func.value
    return (_is_loss(owner) or _one_number(owner)) and _on_cpu(file, node)


def _on_cpu(file, node):
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr == "cpu":
        return True
    if node.func.attr != "to":
        return False
    where = node.args[0] if node.args else keyword(node, "device")
    if isinstance(where, ast.Call) and (file.callee(where) or "").endswith("device"):
        where = where.args[0] if where.args else None
    return constant(where) == "cpu" or (key(where) or "").lower() in ("cpu", "cpu_device")


def _scalar_to_cpu(file, scope, node, name):
    """loss = measure(out, y).cpu(), whatever it is called, and loss.backward(): what has a backward
    without arguments is one number
    """
    return _on_cpu(file, node) and any(
        isinstance(call, ast.Call)
        and method(call) == "backward"
        and not call.args
        and isinstance(call.func, ast.Attribute)
        and key(call.func.value) == name
        for s, _ in scope.differentiated
        for call in own(s)
    )


def _one_number(node):
    """x.mean(), x.sum(): what is left of a batch before it is differentiated"""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("mean", "sum")
        and not node.args
        and not node.keywords
    )


def _is_loss(node):
    node = innermost(node)
    name = key(node) or (method(node) if isinstance(node, ast.Call) else "")
    return bool(
        re.search(r"loss|criterion|cost|objective|error|cross_entropy|kl_div", name or "", re.I)
    )


def zeroed_gradients(file):
    """zero_grad(set_to_none=False)"""
    for node in file.nodes:
        if isinstance(node, ast.Call) and method(node) == "zero_grad":
            value = keyword(node, "set_to_none")
            if value is None and node.args:
                value = node.args[0]
            if constant(value) is False:
                yield rules.finding(
                    "gradients-kept-as-zeros",
                    node,
                    "gradients are filled with zeros instead of freed: they stay allocated through the forward pass",
                    [
                        [
                            value.lineno,
                            value.col_offset,
                            value.end_lineno,
                            value.end_col_offset,
                            "True",
                        ]
                    ],
                )


def gradcheck(file):
    """gradcheck in a training loop"""
    for scope in scopes(file):
        for s in scope.statements:
            place = file.places.get(s)
            if place and place.loops and scope.has_backward(place.loops[-1]):
                for node in own(s):
                    if isinstance(node, ast.Call) and method(node) in (
                        "gradcheck",
                        "gradgradcheck",
                    ):
                        yield rules.finding(
                            "gradcheck-is-no-profiler",
                            s,
                            "gradcheck compares gradients with finite differences in double precision: it measures no memory and needs a lot of it",
                        )


def profiler(file):
    """with torch.profiler.profile(): the whole training loop"""
    for scope in scopes(file):
        for s in scope.statements:
            if not isinstance(s, (ast.With, ast.AsyncWith)):
                continue
            for item in s.items:
                call = item.context_expr
                name = (file.callee(call) or "") if isinstance(call, ast.Call) else ""
                if name not in (
                    "torch.profiler.profile",
                    "torch.autograd.profiler.profile",
                ):
                    continue
                if keyword(call, "schedule") is not None:
                    continue
                if constant(keyword(call, "enabled")) is False or call.args:
                    continue
                for inner in in_order(s.body):
                    if (
                        isinstance(inner, LOOPS)
                        and scope.has_backward(inner)
                        and not _breaks(inner)
                        and evidence.rounds_around(file, inner.body[0], [inner]) > evidence.FEW
                    ):
                        yield rules.finding(
                            "profiler-around-loop",
                            s,
                            "the profiler records the whole loop: its events of every step stay in "
                            "host memory until the block ends",
                        )
                        break


def _breaks(loop):
    """A loop that ends after a few steps."""
    if (
        isinstance(loop, ast.For)
        and isinstance(loop.iter, ast.Call)
        and method(loop.iter) == "range"
    ):
        count = constant(loop.iter.args[-1]) if loop.iter.args else None
        if isinstance(count, int) and count <= 100:
            return True
    return any(isinstance(n, ast.Break) for n in walk(loop))


def anomaly_mode(file):
    """torch.autograd.set_detect_anomaly(True) left on"""
    for s in file.statements:
        if not isinstance(s, ast.Expr) or not isinstance(s.value, ast.Call):
            continue
        if (file.callee(s.value) or "").endswith("autograd.set_detect_anomaly") and s.value.args:
            if constant(s.value.args[0]) is True:
                yield rules.finding(
                    "anomaly-mode-on",
                    s,
                    "anomaly detection is on for the whole run: every operation keeps a stack "
                    "trace, and every gradient is checked",
                    hint=evidence.under_a_switch(file, s)
                    or _is_a_switch(file, s)
                    or _tries_out(file, s),
                )


def _tries_out(file, s) -> bool:
    """if __name__ == "__main__": in a file of layers, which nothing in it trains"""
    return bool(file.places[s].ifs) and not any(
        isinstance(n, ast.Call)
        and method(n) in ("step", "fit", "train", "main", "run")
        or isinstance(n, ast.Call)
        and re.search(r"train|epoch", method(n) or "")
        for n in file.nodes
    )


def _is_a_switch(file, s) -> bool:
    """def enable_debug_mode(): whoever calls it wants it"""
    return bool(re.search(r"debug|anomal", getattr(file.places[s].function, "name", ""), re.I))


def hooks_in_loop(file):
    """model.register_forward_hook(hook) in every round, with nothing that removes it"""
    for scope in scopes(file):
        for s in scope.statements:
            place = file.places.get(s)
            if not place or not place.loops or not isinstance(s, ast.Expr):
                continue  # a handle that is kept may be removed
            call = s.value
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                continue
            if call.func.attr not in _MODULE_HOOKS or not call.args:
                continue
            loop = next((x for x in place.loops if scope.has_backward(x)), None)
            # for layer in model.modules(): each layer gets one
            if loop is None or _names_own(loop, place, call.func.value):
                continue
            yield rules.finding(
                "hook-in-loop",
                s,
                "every round registers one more hook and none is removed: all of them run at each "
                "pass, with what they hold",
            )


_MODULE_HOOKS = (
    "register_forward_hook",
    "register_forward_pre_hook",
    "register_full_backward_hook",
    "register_backward_hook",
)


def _names_own(loop, place, owner):
    """Is the module made anew in the loop that trains? Then its hooks go with it."""
    names = variables(owner)
    made = {key(x) for s in in_order(loop.body) for x in targets(s)}
    inner = {key(x) for other in place.loops if other is not loop for x in targets(other)}
    return bool(names & (made - inner))
