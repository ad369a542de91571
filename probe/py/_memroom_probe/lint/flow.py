"""Which values drag a graph behind them.

A tensor made in grad mode keeps alive every activation it was computed from. The rules below ask
whether such a value outlives the iteration that made it. The analysis walks a function's statements
in order, with a set of variables that carry a graph; what it does not know it takes as carrying
none, so that a finding is nearly always right.
"""

import ast

from .names import FUNCTIONS, LOOPS, calls, constant, key, method, own, targets, walk_here

# Methods whose result carries no graph: numbers, detached tensors, integer results, facts about the
# tensor.
CLEAN_METHODS = frozenset(
    """item detach detach_ tolist numpy size dim numel argmax argmin argsort eq ne gt lt ge le long int bool
    nonzero get_device element_size data_ptr is_cuda sign floor ceil round nelement stride any all isnan isinf count_nonzero
    requires_grad_""".split()
)
CLEAN_ATTRIBUTES = frozenset(
    "data shape device dtype grad grad_fn requires_grad is_leaf ndim is_cuda layout names".split()
)
# Torch functions with integer or boolean results, or that step out of the graph.
CLEAN_FUNCTIONS = frozenset(
    """argmax argmin argsort eq ne gt lt ge le isnan isinf is_tensor numel no_grad zeros_like ones_like rand_like
    randn_like empty_like full_like bincount unique histc tensor as_tensor from_numpy save equal allclose isfinite sign""".split()
)
PAIRS = frozenset(
    "max min topk sort kthvalue median mode cummax cummin".split()
)  # (values, indices)


class Scope:
    """One function, or the module's own statements."""

    def __init__(self, file, body, function=None):
        self.file, self.body, self.function = file, body, function
        self.statements = list(in_order(body))
        self.backwards = [(s, v) for s in self.statements for v in backward_values(s)]
        self.losses = {key(v) for _, v in self.backwards if key(v)}
        self.modules = module_names(file)
        self.feeds = self._feeding_the_loss()

    def has_backward(self, loop):
        inside = set(in_order(loop.body))
        return any(s in inside for s, _ in self.backwards)

    def _feeding_the_loss(self):
        """Variables that take part in what is differentiated: they must keep their graph."""
        feeds = set()
        for _, value in self.backwards:
            feeds.update(variables(value))
        changed = True
        while changed:
            changed = False
            for s in self.statements:
                if not isinstance(s, (ast.Assign, ast.AugAssign, ast.AnnAssign)) or s.value is None:
                    continue
                if any(key(t) in feeds for t in targets(s)):
                    new = variables(s.value) - feeds
                    # `total = total + loss; loss.backward()`: what flows into the loss, not out of
                    # it
                    feeds |= new
                    changed = changed or bool(new)
        return feeds


def in_order(body):
    """Every statement of a block and of the blocks in it, not of functions and classes defined
    there.
    """
    for s in body:
        yield s
        if isinstance(s, FUNCTIONS + (ast.ClassDef,)):
            continue
        for field in ("body", "orelse", "finalbody"):
            yield from in_order(getattr(s, field, []))
        for h in getattr(s, "handlers", []):
            yield from in_order(h.body)
        for c in getattr(s, "cases", []):
            yield from in_order(c.body)


def variables(expression):
    return {
        k
        for k in (
            key(n)
            for n in walk_here(expression)
            if isinstance(n, (ast.Name, ast.Attribute, ast.Subscript))
        )
        if k
    }


def backward_values(statement):
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
            ):
                yield node.args[0]
            elif owner not in ("autograd", "super"):
                yield innermost(receiver)


def innermost(node):
    """loss in scaler.scale(loss), in (loss / 4), in loss.mean() and in loss[0]."""
    while True:
        if isinstance(node, ast.Call) and method(node) == "scale" and node.args:
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


def module_names(file):
    """Variables that are modules: somebody asks them for parameters, puts them in a mode, or they
    are made from a class here.
    """
    if hasattr(file, "_module_names"):
        return file._module_names
    found = set()
    own_modules = {
        name
        for name, c in file.classes.items()
        if any((file.dotted(b) or "").endswith(("Module", "PreTrainedModel")) for b in c.bases)
    }
    for node in ast.walk(file.tree):
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
                    and k not in ("self", "pd", "df")
                ):
                    found.add(k)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            if (file.callee(node.value) or "").split(".")[-1] in own_modules:
                found.update(k for k in map(key, node.targets) if k)
    file._module_names = found
    return found


def carries(node, env, scope):
    """Does this expression drag a graph behind it?"""
    if isinstance(node, (ast.Name, ast.Subscript)) and key(node) in env:
        return True
    if isinstance(node, ast.Attribute):
        if key(node) in env:
            return True
        return node.attr not in CLEAN_ATTRIBUTES and carries(node.value, env, scope)
    if isinstance(node, ast.Call):
        return call_carries(node, env, scope)
    if isinstance(node, ast.BinOp):
        return carries(node.left, env, scope) or carries(node.right, env, scope)
    if isinstance(node, ast.UnaryOp):
        return not isinstance(node.op, ast.Not) and carries(node.operand, env, scope)
    if isinstance(node, ast.IfExp):
        return carries(node.body, env, scope) or carries(node.orelse, env, scope)
    if isinstance(node, (ast.Tuple, ast.List)):
        return any(carries(e, env, scope) for e in node.elts)
    if isinstance(node, ast.Dict):
        return any(carries(v, env, scope) for v in node.values if v is not None)
    if isinstance(node, ast.Subscript):
        if isinstance(node.value, ast.Call) and method(node.value) in PAIRS:
            index = node.slice
            index = getattr(index, "value", index) if index.__class__.__name__ == "Index" else index
            if constant(index) == 1:
                return False
        return carries(node.value, env, scope)
    if isinstance(node, ast.Starred):
        return carries(node.value, env, scope)
    return False


def call_carries(call, env, scope):
    name = method(call)
    if isinstance(call.func, ast.Attribute):
        dotted = scope.file.dotted(call.func) or ""
        if dotted.startswith("torch."):
            return name not in CLEAN_FUNCTIONS and any(carries(a, env, scope) for a in call.args)
        if name in CLEAN_METHODS:
            return False
        return carries(call.func.value, env, scope)
    if name == "sum":
        return any(carries(a, env, scope) for a in call.args)
    return False  # float(), len(), a helper of the user's: not known to carry


def calls_module(node, scope):
    """A forward pass: model(x), self.model(x), model.forward(x)."""
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Attribute) and node.func.attr == "forward":
        k = key(node.func.value)
    else:
        k = key(node.func)
    return k if k in scope.modules else None


class Walk:
    """Goes through a scope in order and calls `see(statement, env)` before each statement's effect."""

    def __init__(self, scope, see):
        self.scope, self.see = scope, see

    def run(self):
        self.block(self.scope.body, set())

    def block(self, body, env):
        for s in body:
            if isinstance(s, FUNCTIONS + (ast.ClassDef,)):
                continue
            self.see(s, env)
            self.effect(s, env)
            if isinstance(s, LOOPS):
                self.block(s.body, env)  # what the first round leaves behind is there in the second
                self.block(s.body, env)
                self.block(s.orelse, env)
            elif isinstance(s, ast.If):
                other = set(env)
                self.block(s.body, env)
                self.block(s.orelse, other)
                env |= other
            else:
                for field in ("body", "orelse", "finalbody"):
                    self.block(getattr(s, field, []), env)
                for h in getattr(s, "handlers", []):
                    self.block(h.body, env)
                for c in getattr(s, "cases", []):
                    self.block(c.body, env)

    def effect(self, s, env):
        """What the statement makes of the variables it assigns."""
        if isinstance(s, ast.Delete):
            env.difference_update(k for k in map(key, s.targets) if k)
            return
        if isinstance(s, ast.AugAssign):
            return  # a sum that swallows a graph is a finding of its own, not a source of more
        if not isinstance(s, (ast.Assign, ast.AnnAssign)) or s.value is None:
            return
        place = self.scope.file.places.get(s)
        off = place is not None and place.no_grad
        goals = targets(s)
        pair = isinstance(s.value, ast.Call) and method(s.value) in PAIRS and len(goals) == 2
        for i, goal in enumerate(goals):
            k = key(goal)
            if not k:
                continue
            graph = not off and not (pair and i == 1) and self.makes_graph(k, s.value, env)
            env.add(k) if graph else env.discard(k)

    def makes_graph(self, name, value, env):
        if carries(value, env, self.scope):
            return True
        if calls_module(value, self.scope):
            return True
        # A variable that is differentiated got its graph from a call we cannot see into:
        # criterion(out, y).
        return (
            name in self.scope.losses
            and isinstance(value, (ast.Call, ast.BinOp))
            and not is_clean(value, self.scope)
        )


def is_clean(value, scope):
    """True for a call whose result certainly carries no graph."""
    if isinstance(value, ast.Call):
        name = method(value)
        if isinstance(value.func, ast.Name):
            return name in ("float", "int", "len", "str")
        dotted = scope.file.dotted(value.func) or ""
        return name in CLEAN_FUNCTIONS if dotted.startswith("torch.") else name in CLEAN_METHODS
    return False


def scopes(file):
    """The module's own statements and every function, each once."""
    if not hasattr(file, "_scopes"):
        file._scopes = [Scope(file, file.tree.body)] + [
            Scope(file, n.body, n) for n in ast.walk(file.tree) if isinstance(n, FUNCTIONS)
        ]
    return file._scopes


def resets(loop, name, scope):
    """Is the variable begun anew inside this loop (total = 0, losses = [], losses.clear())?"""
    for s in in_order(loop.body):
        if isinstance(s, (ast.Assign, ast.AnnAssign)) and s.value is not None:
            if any(key(t) == name for t in targets(s)) and name not in variables(s.value):
                return True
        if isinstance(s, ast.Delete) and any(
            (key(t) or key(getattr(t, "value", t))) == name for t in s.targets
        ):
            return True
        for c in calls(s) if isinstance(s, ast.Expr) else ():
            if (
                method(c) in ("clear", "pop", "popleft", "reset")
                and isinstance(c.func, ast.Attribute)
                and key(c.func.value) == name
            ):
                return True
    return False
