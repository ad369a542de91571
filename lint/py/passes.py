"""How much goes through the model at one line: a dataset, or a look at something.

Evaluation with gradients costs memory that counts where batches of data go through the model, or
where each round goes on from the graph of the one before. A beam that is searched for one picture,
a converted layer that is compared or a prompt that is tried hold the graph of one small input.
"""

import ast
import re
from typing import Any, List, Set

from .evaluation import names_data, whole_split
from .names import FUNCTIONS, key, method, targets, walk, walk_here

# for i in range(n_batches), range(steps_per_epoch), range(len(test_set))
_MANY = re.compile(
    r"batch|iter|sample|data|image|example|_set$|steps_per|num_(test|val|eval)", re.I
)
_ASKS_FOR_MORE = re.compile(r"^(next|__next__|anext)$|(next|get|sample|fetch)_?\w*batch", re.I)
# Turns what the model gives into something without a graph.
_CUTS = frozenset(
    "argmax argmin topk sort sample multinomial item tolist numpy detach max cpu_numpy data".split()
)
_MOVES = frozenset("to cuda cpu float half double long view reshape unsqueeze squeeze".split())
DEPTH = 3


def over_data(file: Any, line: int) -> bool:
    """Does what stands at this line run for the batches of a dataset, round after round?"""
    here = [s for s in file.statements if s.lineno == line]
    return any(_runs_over_data(file, s, DEPTH) for s in here)


def _runs_over_data(file: Any, s: ast.stmt, depth: int) -> bool:
    place = file.places[s]
    if any(_is_over_data(file, loop, s) for loop in place.loops):
        return True
    if any(_goes_on(loop, s) for loop in place.loops[-1:]):
        return True
    # model(x_test), or model(graph) after each epoch: all of it at once
    if whole_split(s) or any(_trains(loop) for loop in place.loops):
        return True
    if place.function is None:
        return depth == DEPTH and not place.loops
    if not depth:
        return False
    callers = _callers(file, place.function)
    return any(_runs_over_data(file, c, depth - 1) for c in callers)


def _callers(file: Any, function: Any) -> List[ast.stmt]:
    """The statements of this file that call a function, or hand it to somebody who does"""
    if not hasattr(file, "_named_at"):
        file._named_at = {}
        for s in file.statements:
            if isinstance(s, FUNCTIONS + (ast.ClassDef,)):
                continue
            for n in _own(s):
                name = getattr(n, "attr", None) or getattr(n, "id", None)
                if name is not None:
                    file._named_at.setdefault(name, {})[s] = None
    inside = set(walk(function))
    return [s for s in file._named_at.get(function.name, ()) if s not in inside]


def _own(s: ast.stmt) -> List[ast.AST]:
    """The expressions of a statement, lambdas among them, without the blocks below it"""
    found: List[ast.AST] = []
    for field, value in ast.iter_fields(s):
        if field in ("body", "orelse", "finalbody", "handlers", "decorator_list", "cases"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                found.extend(walk(child))
    return found


def _trains(loop: Any) -> bool:
    return any(isinstance(n, ast.Attribute) and "backward" in n.attr for n in walk(loop))


def _is_over_data(file: Any, loop: Any, s: ast.stmt) -> bool:
    if isinstance(loop, ast.While):
        return any(isinstance(n, ast.Call) and _ASKS_FOR_MORE.search(method(n)) for n in walk(loop))
    over = loop.iter
    if isinstance(over, ast.Call) and method(over) in ("range", "trange", "count"):
        return _counts_batches(over) or any(
            isinstance(n, ast.Call) and _ASKS_FOR_MORE.search(method(n)) for n in walk(loop)
        )
    if names_data(loop) or _named_after_data(file, over):
        return True
    return _is_given(loop, s)


def _counts_batches(over: ast.Call) -> bool:
    """range(0, len(x), size), range(n_batches), trange(len(loader))"""
    if len(over.args) == 3:
        return True
    return any(
        isinstance(n, (ast.Name, ast.Attribute)) and _MANY.search((key(n) or "").split(".")[-1])
        for a in over.args
        for n in walk(a)
    )


def _named_after_data(file: Any, over: ast.AST) -> bool:
    """pbar of pbar = tqdm(loader)"""
    names = {n.id for n in walk_here(over) if isinstance(n, ast.Name)}
    return any(
        isinstance(n, ast.Assign)
        and any(key(t) in names for t in n.targets)
        and names_data(ast.For(target=n.targets[0], iter=n.value, body=[], orelse=[]))
        for n in file.nodes
    )


def _is_given(loop: Any, s: ast.stmt) -> bool:
    """for x, y in pairs: model(x.cuda()): what the model gets is what the loop hands out"""
    if isinstance(loop.iter, ast.Call) and method(loop.iter) == "tolist":
        return False
    names = {n.id for n in walk(loop.target) if isinstance(n, ast.Name)}
    for n in walk_here(loop):
        if isinstance(n, ast.Assign) and _moved(n.value) & names:
            names |= {key(t) or "" for t in targets(n)}
    return any(
        isinstance(n, ast.Call) and any(_moved(a) & names for a in n.args) for n in walk_here(s)
    )


def _moved(value: ast.AST) -> Set[str]:
    """x of x, x.to(device), x["image"].cuda()"""
    while True:
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            if value.func.attr not in _MOVES:
                return set()
            value = value.func.value
        elif isinstance(value, ast.Subscript):
            value = value.value
        elif isinstance(value, ast.Starred):
            value = value.value
        else:
            break
    return {value.id} if isinstance(value, ast.Name) else set()


def _goes_on(loop: Any, s: ast.stmt) -> bool:
    """for t in steps: noise = model(x, t); x = x - noise: the graph of every round holds those before"""
    given = {n.id for c in walk_here(s) if isinstance(c, ast.Call) for n in _names(c.args)}
    made = {key(t) for t in targets(s)} - {None}
    grown = True
    while grown:
        grown = False
        for n in walk_here(loop):
            if not isinstance(n, ast.Assign) or _cuts(n.value):
                continue
            if any(x.id in made for x in _names([n.value])):
                new = {key(t) for t in targets(n)} - {None} - made
                grown = grown or bool(new)
                made |= new
    return bool(given & made) and not _cuts(s)


def _names(nodes: List[Any]) -> List[ast.Name]:
    return [n for a in nodes for n in walk_here(a) if isinstance(n, ast.Name)]


def _cuts(node: ast.AST) -> bool:
    return any(isinstance(n, ast.Attribute) and n.attr in _CUTS for n in walk_here(node))


_UPDATES = re.compile(r"(^|_)(steps?|updates?|iters?|iterations?)($|_)|batch", re.I)
_EPOCHS = re.compile(r"epoch|episode|fold|trial|(^|_)runs?($|_)", re.I)
_SHORT = 1000  # rounds of a loop that somebody wrote down


def each_batch(file: Any, line: int) -> bool:
    """Does what stands at this line run once a batch, not once an epoch?"""
    return any(_each_batch(file, s, DEPTH) for s in file.statements if s.lineno == line)


def _each_batch(file: Any, s: ast.stmt, depth: int) -> bool:
    place = file.places[s]
    if any(map(_goes_by_batches, place.loops)):
        return True
    if place.function is None or not depth:
        return False
    callers = _callers(file, place.function)
    if not place.loops and not callers:
        return True  # def training_step(), which a trainer of another file calls for each batch
    return any(_each_batch(file, c, depth - 1) for c in callers)


def _goes_by_batches(loop: Any) -> bool:
    """for x, y in loader, for step in range(num_steps), for i in range(200000), while step < last"""
    head = [loop.target, loop.iter] if isinstance(loop, ast.For) else [loop.test]
    inside = [n for h in head for n in walk(h)]
    names = [
        (key(n) or "").split(".")[-1] for n in inside if isinstance(n, (ast.Name, ast.Attribute))
    ]
    if any(isinstance(n, ast.Constant) and _is_many(n.value) for n in inside):
        return True
    if any(map(_UPDATES.search, names)):
        return True
    if isinstance(loop, ast.While):
        return any(isinstance(n, ast.Call) and _ASKS_FOR_MORE.search(method(n)) for n in walk(loop))
    counted = isinstance(loop.iter, ast.Call) and method(loop.iter) in ("range", "trange", "count")
    return not counted and not any(map(_EPOCHS.search, names))


def _is_many(number: Any) -> bool:
    return isinstance(number, int) and number >= _SHORT
