"""JAX."""

import ast
import re
from typing import Iterator, List

from . import rules
from .evidence import few_rounds
from .flow import bounded_containers, in_order, resets, scopes
from .names import FUNCTIONS, key, method, own, targets, walk

_COMPILES = ("jax.jit", "jax.pmap", "flax.nnx.jit", "equinox.filter_jit")


def compiled_in_loop(file) -> Iterator[dict]:
    """step = jax.jit(...) in every round: each is traced and compiled anew"""
    if not {"jax", "flax", "equinox"} & file.modules:
        return
    for scope in scopes(file):
        for s in scope.statements:
            loops = file.places[s].loops
            if not loops:
                continue
            if isinstance(s, FUNCTIONS):
                made = any(
                    (file.dotted(d.func if isinstance(d, ast.Call) else d) or "") in _COMPILES
                    for d in s.decorator_list
                )
                name = s.name
            elif isinstance(s, ast.Assign) and isinstance(s.value, ast.Call):
                made = (file.callee(s.value) or "") in _COMPILES
                name = key(s.targets[0]) or ""
            else:
                continue
            if any(loops[-1] in file.places[i].loops for i in file.places[s].ifs):
                continue  # only in some rounds
            if made and _called_with_steps(loops[-1], name) and not _depends(s, loops[-1]):
                yield rules.finding(
                    "jit-in-loop",
                    s,
                    "every round of the loop makes a new compiled function: it is traced and "
                    "compiled again, and the program of each round takes memory of its own",
                )


def _put(s: ast.stmt):
    """(container, value) of log.append(value) and log[step] = value"""
    if isinstance(s, ast.Expr) and isinstance(s.value, ast.Call):
        call = s.value
        if method(call) == "append" and call.args and isinstance(call.func, ast.Attribute):
            return key(call.func.value), call.args[0]
    if isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Subscript):
        if not isinstance(s.targets[0].slice, ast.Constant):
            return key(s.targets[0].value), s.value
    return None, None


def _entries(value) -> List[str]:
    """The variables of params, (params, loss) and {"params": params}"""
    if isinstance(value, (ast.Tuple, ast.List)):
        return [key(e) or "" for e in value.elts]
    if isinstance(value, ast.Dict):
        return [key(e) or "" for e in value.values]
    return [key(value) or ""] if value is not None else []


_TREES = re.compile(r"^(all_)?(grads?|gradients|params|opt_state|train_state|state|updates)$")


def trees_kept(file) -> Iterator[dict]:
    """log.append(grads) in every step: a copy of the model's size on the device"""
    if not {"jax", "flax", "equinox", "optax"} & file.modules:
        return
    for s in file.statements:
        loops = file.places[s].loops
        if not loops:
            continue
        name, value = _put(s)
        kept = next((k for k in _entries(value) if _TREES.match(k)), "")
        if not name or not kept:
            continue
        made = any(
            isinstance(x, ast.Assign)
            and isinstance(x.value, ast.Call)
            and any(key(t) == kept for t in targets(x))
            for x in in_order(loops[-1].body)
        )
        if made and not file.places[s].ifs and not few_rounds(loops[-1]):
            if resets(loops[-1], name, None) or name in bounded_containers(file):
                continue
            if not _steps(file, kept):
                continue
            yield rules.finding(
                "model-copies-kept",
                s,
                "every round keeps `%s` in `%s`: one more copy of the model's size on the device"
                % (kept, name),
            )


def _steps(file, kept: str) -> bool:
    """Does the file differentiate? `state` alone may be that of an environment."""
    differentiates = any(
        isinstance(n, ast.Call) and method(n) in ("value_and_grad", "grad", "apply_gradients")
        for n in file.nodes
    )
    trains = any(
        isinstance(n, ast.Call)
        and method(n) in ("apply_gradients", "TrainState", "create_train_state")
        for n in file.nodes
    )
    return differentiates and (kept != "state" or trains)


def static_argument_changes(file) -> Iterator[dict]:
    """@partial(jax.jit, static_argnames=("epsilon",)), called with another epsilon in each round"""
    if not {"jax", "flax", "equinox"} & file.modules:
        return
    compiled = {}  # name: (where it is compiled, parameters, static ones)
    for s in file.statements:
        if isinstance(s, FUNCTIONS):
            for d in s.decorator_list:
                if _compiles(file, d):
                    compiled[s.name] = (d, [a.arg for a in s.args.args], _static(d))
        elif isinstance(s, ast.Assign) and _compiles(file, s.value) and key(s.targets[0]):
            inner = file.functions.get(key(s.value.args[0]) or "") if s.value.args else None
            names = [a.arg for a in inner.args.args] if inner is not None else []
            compiled[key(s.targets[0])] = (s.value, names, _static(s.value))
    told = set()
    for s in file.statements:
        loops = file.places[s].loops
        for n in own(s) if loops else ():
            found = compiled.get(key(n.func) or "") if isinstance(n, ast.Call) else None
            if found is None or key(n.func) in told:
                continue
            where, names, static = found
            given = dict(zip(names, n.args))
            given.update({i: a for i, a in enumerate(n.args)})
            given.update({k.arg: k.value for k in n.keywords if k.arg})
            changing = [a for k, a in given.items() if k in static and _changes(a, loops[-1])]
            if changing:
                told.add(key(n.func))
                yield rules.finding(
                    "jit-static-changes",
                    where,
                    "`%s` is a static argument and changes in every round (line %d): each value "
                    "is compiled anew, and all programs stay in the cache"
                    % (key(changing[0]) or "it", n.lineno),
                )


def _compiles(file, node) -> bool:
    """jax.jit(f, static_...), partial(jax.jit, static_...)"""
    if not isinstance(node, ast.Call) or not _static(node):
        return False
    if (file.callee(node) or "").split(".")[-1] == "partial":
        return bool(node.args) and (file.dotted(node.args[0]) or "") in _COMPILES
    return (file.callee(node) or "") in _COMPILES


def _static(call) -> set:
    """The names and positions that static_argnames and static_argnums give."""
    return {
        n.value
        for k in call.keywords
        if k.arg in ("static_argnames", "static_argnums")
        for n in walk(k.value)
        if isinstance(n, ast.Constant)
    }


def _changes(value, loop) -> bool:
    """Is it reckoned from the number of the round?"""
    counters = _counters(loop)
    for s in in_order(loop.body):
        if isinstance(s, ast.Assign) and not isinstance(s.value, (ast.Compare, ast.BoolOp)):
            if any(isinstance(n, ast.Name) and n.id in counters for n in walk(s.value)):
                if not any(
                    isinstance(n, (ast.Compare, ast.Mod, ast.FloorDiv)) for n in walk(s.value)
                ):
                    counters |= {t.id for t in targets(s) if isinstance(t, ast.Name)}
    if any(isinstance(n, (ast.Compare, ast.Mod, ast.FloorDiv)) for n in walk(value)):
        return False  # a few values only
    return any(isinstance(n, ast.Name) and n.id in counters for n in walk(value))


def _called_with_steps(loop, name: str) -> bool:
    """Is it called in the same loop, once a round?"""
    return any(
        isinstance(n, ast.Call) and key(n.func) == name for s in in_order(loop.body) for n in own(s)
    ) and not any(
        isinstance(n, ast.Call) and method(n) in ("block_until_ready", "timeit", "perf_counter")
        for s in in_order(loop.body)
        for n in own(s)
    )


_STEPS = re.compile(r"^_?(i|it|iteration|step|epoch|global_step|n_?iter)$", re.I)


def _counters(loop) -> set:
    """The number of the round: for step, batch in enumerate(loader), for step in range(n)"""
    over = getattr(loop, "iter", None)
    if not isinstance(over, ast.Call):
        return set()
    goal = loop.target
    if method(over) == "enumerate" and isinstance(goal, ast.Tuple):
        goal = goal.elts[0]
    elif method(over) not in ("range", "trange"):
        return set()
    return {goal.id} if isinstance(goal, ast.Name) and _STEPS.match(goal.id) else set()


def _depends(s: ast.stmt, loop) -> bool:
    """for model in models: what is compiled belongs to this round"""
    names = {key(t) for t in targets(loop)} | {
        key(t) for x in in_order(loop.body) if x is not s for t in targets(x)
    }
    names -= _counters(loop)
    what = walk(s.value) if isinstance(s, ast.Assign) else walk(s)
    return any(isinstance(n, ast.Name) and n.id in names for n in what)
