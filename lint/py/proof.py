"""Which edits certainly change no result.

`lint --fix` writes into the user's file, so an edit is applied only where everything that could
tell the two versions apart has been ruled out. What is not proven here is shown as a diff.

One edit can be proven: `total += loss` becomes `total += loss.detach()`. detach() gives the same
numbers without the graph. So the result is the same if `loss` is certainly a tensor, and if
nothing reads `total` except as a number. A `total` that is returned, printed whole (a tensor prints
its grad_fn) or handed on may be differentiated later: not proven.

Never proven: `zero_grad(set_to_none=True)`. An optimizer skips a parameter whose gradient is None;
with a gradient of zeros it still applies momentum and weight decay. Nor a detach() of what is kept
in a list: the list may feed a later loss, and what is in it may be a tuple or a dict.
"""

import ast
from typing import Any, Dict, List, Optional

from .flow import Scope
from .names import FUNCTIONS, children, targets, walk, walk_here

# Functions that can read a local variable by its name.
_READS_BY_NAME = frozenset("locals vars eval exec globals breakpoint set_trace dir".split())
_SAME_NUMBER = frozenset("cpu cuda double float mean sum squeeze detach".split())
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div)


def detach_changes_nothing(
    scope: Scope, loop: ast.stmt, statement: ast.stmt, value: ast.AST
) -> bool:
    """Is `total += value` the same with `value.detach()`?"""
    if scope.function is None or "torch" not in scope.file.modules:
        return False  # a module's variable can be read from another file
    loss = _tensor_name(value)
    goal = targets(statement)[0]
    return (
        loss is not None
        and isinstance(goal, ast.Name)
        and _is_differentiated(scope, loop, statement, loss)
        and _read_as_number(scope.function, goal.id)
    )


def _tensor_name(value: ast.AST) -> Optional[str]:
    """loss in `loss`, `loss * n`, `loss / n`: the result of arithmetic on a tensor is a tensor."""
    while isinstance(value, ast.BinOp) and isinstance(value.op, (ast.Mult, ast.Div)):
        value = value.left
    return value.id if isinstance(value, ast.Name) else None


def _is_differentiated(scope: Scope, loop: Any, statement: ast.stmt, name: str) -> bool:
    """`name.backward()` stands in the same block as the sum and `name` is assigned once in the
    loop: then what is summed has a backward(), so it is a tensor.
    """
    block = _block_of(loop.body, statement)
    if block is None:
        return False
    differentiated = any(
        isinstance(s, ast.Expr)
        and isinstance(s.value, ast.Call)
        and isinstance(s.value.func, ast.Attribute)
        and s.value.func.attr == "backward"
        and isinstance(s.value.func.value, ast.Name)
        and s.value.func.value.id == name
        for s in block
    )
    assigned = [
        n
        for n in walk(loop)
        if isinstance(n, ast.Name) and n.id == name and not isinstance(n.ctx, ast.Load)
    ]
    return differentiated and len(assigned) == 1


def _block_of(body: List[ast.stmt], statement: ast.stmt) -> Optional[List[ast.stmt]]:
    if statement in body:
        return body
    for s in body:
        for field in ("body", "orelse", "finalbody"):
            found = _block_of(getattr(s, field, []), statement)
            if found is not None:
                return found
    return None


def _read_as_number(function: Any, name: str) -> bool:
    """Every use of the variable is a sum, or ends in a plain number."""
    for node in walk(function):
        if isinstance(node, (ast.Global, ast.Nonlocal)) and name in node.names:
            return False
        if isinstance(node, ast.Call) and _called(node) in _READS_BY_NAME:
            return False
        if (
            isinstance(node, FUNCTIONS + (ast.Lambda, ast.ClassDef))
            and node is not function
            and any(isinstance(n, ast.Name) and n.id == name for n in walk(node))
        ):
            return False
    if any(a.arg == name for a in walk(function.args) if isinstance(a, ast.arg)):
        return False
    parents = {c: n for n in walk_here(function) for c in children(n)}
    uses = [n for n in walk_here(function) if isinstance(n, ast.Name) and n.id == name]
    return all(_harmless(use, parents) for use in uses)


def _called(call: ast.Call) -> str:
    f = call.func
    return f.id if isinstance(f, ast.Name) else f.attr if isinstance(f, ast.Attribute) else ""


def _harmless(use: ast.Name, parents: Dict[ast.AST, ast.AST]) -> bool:
    parent = parents.get(use)
    if isinstance(parent, ast.AugAssign) and parent.target is use:
        return isinstance(parent.op, _ARITHMETIC)
    if isinstance(use.ctx, ast.Store):
        if isinstance(parent, ast.Tuple):  # total, count = 0, 0
            values = getattr(parents.get(parent), "value", None)
            return (
                isinstance(values, ast.Tuple)
                and len(values.elts) == len(parent.elts)
                and _is_number(values.elts[parent.elts.index(use)])
            )
        return isinstance(parent, ast.Assign) and (
            _is_number(parent.value) or _sums_itself(parent, use.id)
        )
    if isinstance(use.ctx, ast.Del):
        return True
    return _ends_in_number(use, parents)


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def _sums_itself(assign: ast.Assign, name: str) -> bool:
    value = assign.value
    return (
        len(assign.targets) == 1
        and isinstance(value, ast.BinOp)
        and isinstance(value.op, ast.Add)
        and name in [getattr(value.left, "id", None), getattr(value.right, "id", None)]
    )


def _ends_in_number(node: ast.AST, parents: Dict[ast.AST, ast.AST]) -> bool:
    """Does what is computed from this use become a plain number before anything else sees it?"""
    while True:
        parent = parents.get(node)
        if isinstance(parent, ast.BinOp) and isinstance(parent.op, _ARITHMETIC):
            node = parent
        elif isinstance(parent, ast.Attribute) and isinstance(parents.get(parent), ast.Call):
            if parent.attr == "item":
                return True
            if parent.attr not in _SAME_NUMBER:
                return False
            node = parents[parent]
        elif isinstance(parent, ast.Call):
            return (
                isinstance(parent.func, ast.Name)
                and parent.func.id in ("float", "int")
                and node in parent.args
            )
        elif isinstance(parent, ast.FormattedValue):
            # A tensor of one number formats as that number, but only with a format.
            return parent.format_spec is not None and parent.conversion == -1
        else:
            # `total = total + loss` reaches its Assign through the sum.
            return (
                isinstance(parent, ast.Assign)
                and isinstance(node, ast.BinOp)
                and _sums_itself(parent, getattr(parent.targets[0], "id", ""))
                and parent.value is node
            )
