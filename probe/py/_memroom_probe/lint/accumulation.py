"""Gradient accumulation done wrong."""

import ast
import re

from . import rules
from .evaluation import stops_early
from .flow import backward_values, in_order, innermost, scopes
from .names import LOOPS, calls, constant, key, method, own, targets, walk


def check(file):
    for scope in scopes(file):
        for loop in [s for s in scope.statements if isinstance(s, LOOPS)]:
            window = _window(file, loop)
            if window:
                yield from _zeroed(loop, window)
                yield from _unscaled(file, loop, window)
                yield from _scheduler(file, loop, window)
                yield from _last(scope, loop, window)


def summed_before_backward(file):
    """window = window + loss / n; if i % n == 0: window.backward()"""
    if "torch" not in file.modules:
        return
    for scope in scopes(file):
        for loop in [s for s in scope.statements if isinstance(s, LOOPS)]:
            late = set()  # what is differentiated once in several rounds
            for s in _direct(loop.body):
                if isinstance(s, ast.If) and _counts(s.test):
                    for inner in in_order(s.body):
                        late.update(key(v) for v in backward_values(inner))
            late.discard(None)
            for s in _direct(loop.body):
                if not isinstance(s, (ast.Assign, ast.AugAssign)) or not late:
                    continue
                name = next((key(t) for t in targets(s) if key(t) in late), None)
                adds = (
                    isinstance(s, ast.AugAssign)
                    and isinstance(s.op, ast.Add)
                    or isinstance(s, ast.Assign)
                    and isinstance(s.value, ast.BinOp)
                    and isinstance(s.value.op, ast.Add)
                    and name in (key(s.value.left), key(s.value.right))
                )
                if name and adds:
                    yield rules.finding(
                        "accumulation-keeps-graphs",
                        s,
                        "the losses of several micro-batches are added up before one backward: "
                        "the graphs and activations of all of them live at once",
                    )


def never_cleared(file):
    """backward and optimizer.step in a loop, and nothing in the whole file that clears gradients"""
    if "torch" not in file.modules or _may_clear(file):
        return
    # Plain names only: what a class keeps in self, a parent class in another file may clear.
    made = {
        t.id
        for n in file.nodes
        if isinstance(n, ast.Assign)
        and isinstance(n.value, ast.Call)
        and _optimizer(file.callee(n.value) or "")
        for t in n.targets
        if isinstance(t, ast.Name)
    }
    for scope in scopes(file):
        for loop in [s for s in scope.statements if isinstance(s, LOOPS)]:
            direct = list(_direct(loop.body))
            if not any(True for s in direct for _ in backward_values(s)):
                continue
            # An optimizer made in the loop is given fresh tensors, which have no gradients yet.
            fresh = {key(t) for s in in_order(loop.body) for t in targets(s)}
            for s in direct:
                for call in calls(s) if isinstance(s, ast.Expr) else ():
                    if (
                        method(call) == "step"
                        and isinstance(call.func, ast.Attribute)
                        and key(call.func.value) in made - fresh
                        and not call.args
                        and not call.keywords
                    ):
                        yield rules.finding(
                            "gradients-never-cleared",
                            s,
                            "`%s` steps on the sum of all gradients since the start: nothing in this file ever clears them"
                            % key(call.func.value),
                            hint=stops_early(file, s),
                        )


def _optimizer(name):
    """torch.optim.Adam, but neither a scheduler nor one that calls a closure."""
    return (
        name.startswith("torch.optim.")
        and name.split(".")[2][:1].isupper()
        and not name.endswith("LBFGS")
    )


# What an optimizer may be handed to without its gradients being cleared there; anything else might
# clear them.
_HARMLESS = ("step", "unscale_", "print", "len", "id", "type", "isinstance", "update")


def _may_clear(file):
    """Something that clears gradients, or that is given a model or optimizer and might."""
    for node in file.nodes:
        if isinstance(node, (ast.Name, ast.Attribute)) and "zero_grad" in (
            getattr(node, "attr", None) or getattr(node, "id", "")
        ):
            return True
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and "zero_grad" in node.value
        ):
            return True
        if (
            isinstance(node, ast.Attribute)
            and node.attr == "grad"
            and isinstance(node.ctx, (ast.Store, ast.Del))
        ):
            return True
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Attribute)
            and node.value.attr == "grad"
            and node.attr in ("zero_", "fill_", "mul_", "copy_")
        ):
            return True
        if (
            isinstance(node, ast.Call)
            and method(node) not in _HARMLESS
            and "lr_scheduler" not in (file.callee(node) or "")
        ):
            if any(
                "opt" in (key(a) or "").lower()
                for a in list(node.args) + [k.value for k in node.keywords]
            ):
                return True
    return False


class Window:
    """An optimizer step taken once in several iterations: `if (i + 1) % n == 0: optimizer.step()`."""

    def __init__(self, condition, step):
        self.condition, self.step = condition, step


def _direct(body):
    """Statements of a loop's own body: through with and try, not into ifs and inner loops."""
    for s in body:
        yield s
        if isinstance(s, (ast.With, ast.AsyncWith, ast.Try)):
            yield from _direct(s.body)


def _window(file, loop):
    own_statements = list(_direct(loop.body))
    if not any(True for s in own_statements for _ in backward_values(s)):
        return None
    for s in own_statements:
        if not isinstance(s, ast.If) or not (_counts(s.test) or _counted(s.test, loop)):
            continue
        inside = list(in_order(s.body))
        steps = [call for inner in inside for call in _steps(inner)]
        if not steps or any(True for inner in inside for _ in backward_values(inner)):
            continue
        # Another optimizer that steps outside: not a window but turns, as a GAN's generator and
        # critic take them.
        if any(True for other in in_order(loop.body) if other not in inside for _ in _steps(other)):
            continue
        return Window(s, steps[0])
    return None


def _steps(statement):
    for node in own(statement):
        if (
            isinstance(node, ast.Call)
            and method(node) == "step"
            and isinstance(node.func, ast.Attribute)
        ):
            owner = (key(node.func.value) or "").lower()
            if "sched" in owner or "scaler" in owner and not node.args:
                continue
            if "optim" in owner or owner in (
                "opt",
                "self.opt",
                "scaler",
                "self.scaler",
                "sgd",
                "adam",
            ):
                yield node


def _counts(test):
    """A modulo compared with something: (i + 1) % n == 0, not i % n."""
    return any(isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mod) for n in walk(test))


def _counted(test, loop):
    """at = (at + 1) % n; if at == 0"""
    names = {key(n) for n in walk(test) if isinstance(n, (ast.Name, ast.Attribute))}
    return isinstance(test, ast.Compare) and any(
        isinstance(s, ast.Assign)
        and names & {key(t) for t in targets(s)} - {None}
        and (_counts(s.value) or isinstance(s.value, ast.Call) and method(s.value) == "divmod")
        for s in _direct(loop.body)
    )


def _saves_gradients(loop):
    """buffer = [b + p.grad for b, p in zip(buffer, weights)]: what is zeroed was added up before"""
    return any(
        isinstance(s, (ast.Assign, ast.AugAssign))
        and not any(isinstance(t, ast.Attribute) and t.attr == "grad" for t in targets(s))
        and any(isinstance(n, ast.Attribute) and n.attr == "grad" for n in walk(s.value))
        for s in in_order(loop.body)
    )


def _zeroed(loop, window):
    if _saves_gradients(loop):
        return
    inside = set(in_order(window.condition.body))
    for s in _direct(loop.body):
        if s in inside or not isinstance(s, ast.Expr):
            continue
        for call in calls(s):
            if method(call) == "zero_grad":
                yield rules.finding(
                    "zero-grad-each-micro-step",
                    s,
                    "gradients are zeroed at every micro-step, the optimizer steps once in several: all but the last micro-batch are thrown away",
                    moved_to=window.step.lineno,
                )


def _unscaled(file, loop, window):
    if any(isinstance(n, ast.Call) and constant(_reduction(n)) == "sum" for n in file.nodes):
        return
    for s in _direct(loop.body):
        for value in backward_values(s):
            name = key(value)
            if not name or _scaled(loop, s, name) or _divides_by_steps(file):
                continue
            yield rules.finding(
                "accumulation-unscaled",
                s,
                "`%s` is not divided by the number of accumulated micro-batches: gradients are that many times too large"
                % name,
                hint=_of_another(window),
            )


_STEPS = re.compile(r"accum|micro", re.I)


_OTHER_WINDOWS = re.compile(r"print|log|disp|report|freq|interval|save|eval|show", re.I)


def _of_another(window):
    """`if i % print_freq == 0: optimizer.step()`: what is meant by it only its author knows."""
    return any(
        _OTHER_WINDOWS.search(key(n) or "")
        for n in walk(window.condition.test)
        if isinstance(n, (ast.Name, ast.Attribute))
    )


def _divides_by_steps(file):
    """term = criterion(out, y) / self.accumulation_steps, wherever: its author knows of it"""
    return any(
        isinstance(n, ast.BinOp)
        and isinstance(n.op, ast.Div)
        and _STEPS.search(key(innermost(n.right)) or "")
        or isinstance(n, ast.AugAssign)
        and isinstance(n.op, ast.Div)
        and _STEPS.search(key(n.value) or "")
        for n in file.nodes
    )


def _reduction(call):
    return next((k.value for k in call.keywords if k.arg == "reduction"), None)


def _scaled(loop, backward, name):
    """Is the loss divided (or multiplied by a weight) before or in backward?"""
    for s in _direct(loop.body):
        for node in own(s):
            if (
                isinstance(node, ast.BinOp)
                and isinstance(node.op, (ast.Div, ast.Mult))
                and name in (key(innermost(node.left)), key(node.right))
            ):
                return True
            # a helper that is given the loss may scale it: accelerator.backward,
            # amp.scale_loss(loss, optimizer)
            if isinstance(node, ast.Call) and method(node) in ("scale_loss", "accumulate"):
                return True
            if isinstance(node, ast.Call) and method(node) == "backward" and node.args:
                return True  # accelerator, fabric and deepspeed divide by themselves
        if (
            isinstance(s, ast.AugAssign)
            and key(s.target) == name
            and isinstance(s.op, (ast.Div, ast.Mult))
        ):
            return True
        if isinstance(s, ast.If):
            for inner in in_order(s.body):
                if (
                    isinstance(inner, ast.Assign)
                    and any(key(t) == name for t in inner.targets)
                    and isinstance(inner.value, ast.BinOp)
                ):
                    return True
                if isinstance(inner, ast.AugAssign) and key(inner.target) == name:
                    return True
        if (
            isinstance(s, ast.Assign)
            and any(key(t) == name for t in s.targets)
            and _divides(s.value)
        ):
            return True
    return False


def _divides(value):
    return any(
        isinstance(n, ast.BinOp) and isinstance(n.op, (ast.Div, ast.Mult)) for n in walk(value)
    )


def _scheduler(file, loop, window):
    inside = set(in_order(window.condition.body))
    for s in _direct(loop.body):
        if s in inside or not isinstance(s, ast.Expr):
            continue
        for call in calls(s):
            if (
                method(call) == "step"
                and isinstance(call.func, ast.Attribute)
                and "sched" in (key(call.func.value) or "").lower()
            ):
                name = key(call.func.value) or ""
                if _counts_batches(file, name):
                    continue
                yield rules.finding(
                    "scheduler-each-micro-step",
                    s,
                    "the scheduler steps at every micro-step, the optimizer once in several: a "
                    "schedule that counts optimizer steps runs ahead",
                    hint=name.startswith("self.") and not _made(file, name),
                )


def _made(file, name):
    """The statements that set a scheduler."""
    return [
        s
        for s in file.statements
        if isinstance(s, ast.Assign) and any(key(t) == name for t in targets(s))
    ]


def _counts_batches(file, name):
    """OneCycleLR(optimizer, total_steps=epochs * len(loader)): as long as there are batches"""
    made = [s.value for s in _made(file, name) if isinstance(s.value, ast.Call)]
    given = [a for c in made for a in [*c.args, *(k.value for k in c.keywords)]]
    words = {key(n) for a in given for n in walk(a) if isinstance(n, (ast.Name, ast.Attribute))}
    for s in file.statements:  # total = epochs * len(loader)
        if isinstance(s, ast.Assign) and any(key(t) in words for t in targets(s)):
            given.append(s.value)
    asked = [n for a in given for n in walk(a)]
    return any(isinstance(n, ast.Call) and key(n.func) == "len" for n in asked) and not any(
        re.search(r"accum|accu_|micro|grad", key(n) or "", re.I)
        for n in asked
        if isinstance(n, (ast.Name, ast.Attribute))
    )


def _last(scope, loop, window):
    """A loop with an end whose last window may be partial, and nothing that steps for it."""
    if not isinstance(loop, ast.For) or any(
        isinstance(n, ast.BoolOp) and isinstance(n.op, ast.Or) for n in walk(window.condition.test)
    ):
        return
    names = {n.id for n in walk(window.condition.test) if isinstance(n, ast.Name)}
    if (
        not any(isinstance(n, ast.Call) and method(n) == "enumerate" for n in walk(loop.iter))
        or "enumerate" in names
    ):
        return
    for body in _blocks(scope.body):
        if loop in body:
            later = body[body.index(loop) + 1 :] + loop.orelse
            if any(True for s in in_order(later) for _ in _steps(s)):
                return
    yield rules.finding(
        "last-window-dropped",
        window.condition,
        "when the number of batches is not a multiple of the window, the last gradients are dropped or leak into the next epoch",
    )


def _blocks(body):
    yield body
    for s in body:
        for field in ("body", "orelse", "finalbody"):
            inner = getattr(s, field, None)
            if (
                isinstance(inner, list)
                and inner
                and not isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            ):
                yield from _blocks(inner)
        for h in getattr(s, "handlers", []):
            yield from _blocks(h.body)
