"""Module keeps its outputs.

severity: error
remedy: detach

What is stored on the module outlives the step, in training together with its graph.

Instead: Store `x.detach()` (or `.item()`), and empty the list when it has been read:
`self.outputs.clear()` at the end of the epoch.
"""

import ast
import re
from typing import Any, Iterator, Optional, Tuple

from ..attributes import made_in, stored
from ..calls import scope_of
from ..evidence import SMALL
from ..findings import Finding, finding
from ..flow import (
    CARD,
    GRAPH,
    PARAMETER,
    Scope,
    bounded_containers,
    in_order,
    module_classes,
)
from ..keeping import cleared_in, detached, feeds_any_loss, module_containers, source
from ..names import FUNCTIONS, File, constant, key, method, walk, walk_here
from ..reasons import cleared_by_function, empties, volatile, whole, without_torch


def kept_by_module(file: File) -> Iterator[Finding]:
    """self.outputs.append(x) in forward, training_step or validation_step"""
    modules = module_classes(file)
    for name in modules:
        c = file.classes[name]
        for function in [f for f in c.body if isinstance(f, FUNCTIONS)]:
            if function.name in ("forward", "training_step"):
                yield from _module_keeps(file, c, function, GRAPH)
            elif function.name in ("validation_step", "test_step"):
                yield from _module_keeps(file, c, function, CARD)


def _module_keeps(file: File, c: Any, function: Any, origin: str) -> Iterator[Finding]:
    scope = scope_of(file, function)
    for kept in scope.trace.kept:
        shared = kept.how in ("append", "store") and kept.container in module_containers(file)
        if not kept.container.startswith("self.") and not shared:
            continue
        # What comes into forward has a graph too. Only where the module builds upon its own last
        # value is that sure to grow: running = 0.9 * running + 0.1 * x.mean()
        grows = kept.how == "chain" and any(
            o.startswith(PARAMETER) and not SMALL.search(o[len(PARAMETER) :]) for o in kept.origins
        )
        if origin not in kept.origins and not (grows and function.name == "forward"):
            continue
        if kept.how == "call" and "." not in kept.container or kept.container in scope.feeds:
            continue
        if kept.container in bounded_containers(file) or "metric" in kept.container.lower():
            continue
        # self.outputs["loss"] goes with self.outputs = {"loss": []}
        whole = kept.container.split("[")[0]
        cleared = cleared_in(file.tree, kept.container) or cleared_in(file.tree, whole)
        if cleared and not (origin == GRAPH and function.name == "training_step"):
            continue
        if feeds_any_loss(file, kept.container) or _used_elsewhere_for_loss(c, kept.container):
            continue
        if origin == GRAPH:
            message = "`%s` is kept in `%s` by every call of %s, with its graph" % (
                source(kept.value),
                kept.container,
                function.name,
            )
        else:
            message = "`%s` is kept in `%s` by every call of %s and nothing empties it" % (
                source(kept.value),
                kept.container,
                function.name,
            )
        edits = detached(kept.value) if origin == GRAPH and kept.how != "call" else None
        yield finding(
            "module-keeps-tensors", kept.statement, message, edits, proven=origin == CARD or grows
        )


def _used_elsewhere_for_loss(c: ast.ClassDef, container: str) -> bool:
    """A method named after a loss reads it: get_losses() sums what forward() gathered."""
    for f in c.body:
        if isinstance(f, FUNCTIONS) and re.search(r"loss|penalty|regulari", f.name):
            if any(key(n) == container for n in walk_here(f) if isinstance(n, ast.Attribute)):
                return True
    return False


def kept_by_callback(file: File) -> Iterator[Finding]:
    """class Keep(Callback): on_train_batch_end puts the step's outputs into a list"""
    for c in file.classes.values():
        if not any((file.dotted(b) or "").split(".")[-1].endswith("Callback") for b in c.bases):
            continue
        for function in [f for f in c.body if isinstance(f, FUNCTIONS)]:
            if not re.match(
                r"on_(train_|validation_|test_|predict_)?(batch|step)_end$", function.name
            ):
                continue
            scope = scope_of(file, function)
            for s in scope.statements if "train" in function.name else ():
                made = _kept_of_module(file, scope, s)
                if made is not None:
                    yield finding(
                        "module-keeps-tensors",
                        s,
                        "`%s` is made by the module with its graph, and `%s` keeps it from batch to "
                        "batch" % made,
                        proven=True,
                    )
            for kept in scope.trace.kept:
                shown = {o[len(PARAMETER) :] for o in kept.origins if o.startswith(PARAMETER)}
                if (
                    kept.how == "append"
                    and kept.container.startswith("self.")
                    and shown & {"outputs", "batch", "loss"}
                    and kept.container not in bounded_containers(file)
                    and not cleared_in(file.tree, kept.container)
                    # self.losses["train"] goes with self.losses = defaultdict(list)
                    and not cleared_in(file.tree, kept.container.split("[")[0])
                    and "keras" not in file.modules
                ):
                    yield finding(
                        "module-keeps-tensors",
                        kept.statement,
                        "`%s` of every batch is kept in `%s` and nothing empties it"
                        % (source(kept.value), kept.container),
                        proven=True,
                    )


_CUTS = ("detach", "item", "cpu", "numpy", "tolist", "float", "argmax")


def _kept_of_module(file: File, scope: Scope, s: ast.stmt) -> Optional[Tuple[str, str]]:
    """z = pl_module.encoder(x); self.seen.append(z): (z, self.seen), where gradients are on"""
    call = s.value if isinstance(s, ast.Expr) else None
    if not isinstance(call, ast.Call) or method(call) != "append" or len(call.args) != 1:
        return None
    container = key(call.func.value) if isinstance(call.func, ast.Attribute) else None
    name = key(call.args[0])
    if not container or not container.startswith("self.") or not name:
        return None
    if container in bounded_containers(file) or file.places[s].no_grad:
        return None
    made = [
        x for x in scope.statements if isinstance(x, ast.Assign) and name in map(key, x.targets)
    ]
    by_module = made and all(
        isinstance(x.value, ast.Call)
        and (key(x.value.func) or "").split(".")[0] == "pl_module"
        and method(x.value) not in _CUTS
        and not file.places[x].no_grad
        for x in made
    )
    return (name, container) if by_module else None


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
        name = whole(call.func.value)
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
            any(empties(n, name) for n in inside) or _emptied_outside(file, place.klass, name)
        ):
            return True
    return False


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


def module_keeps_last(file: Any) -> Iterator[Finding]:
    """self.last = h in a torch module's forward(), with its graph"""
    if "torch" not in file.modules:
        return
    for c in file.classes.values():
        if not any((file.dotted(b) or "").split(".")[-1] == "Module" for b in c.bases):
            continue
        for f in [f for f in c.body if isinstance(f, FUNCTIONS) and f.name == "forward"]:
            made = made_in(f)
            for s in [x for x in in_order(f.body) if isinstance(x, ast.Assign)]:
                name, kept = stored(s)
                if not name or not made & {n.id for n in walk(kept) if isinstance(n, ast.Name)}:
                    continue
                cut = any(
                    isinstance(n, ast.Call) and method(n) in ("detach", "item", "cpu", "numpy")
                    for n in walk(kept)
                )
                if cut or file.places[s].no_grad or any(key(n) == name for n in walk(kept)):
                    continue
                yield finding(
                    "module-keeps-tensors",
                    s,
                    "`%s` keeps the last tensor of `%s`, with its graph, until the next forward "
                    "pass" % (name, c.name),
                    hint=True,
                )


CHECKS = (
    module_keeps_last,
    kept_by_module,
    kept_by_callback,
)
HINTS = (
    without_torch,
    volatile,
    _emptied_by_method,
    cleared_by_function,
    _if_asked,
)
