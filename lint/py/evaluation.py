"""Evaluation that builds graphs nobody uses, or that keeps its outputs on the card."""

import ast
import re
from typing import Any, Dict, List, Optional, Set

from .evidence import ADAPTS, FEW, adapts, ends_the_run, rounds_around
from .flow import in_order, is_model_name
from .names import File, constant, key, keyword, method, once, own, targets, text, walk, walk_here

HELD_OUT = re.compile(r"(^|_|\.)(val|valid|validation|test|dev|eval|evaluation|holdout)", re.I)
# for sample in batch, for i in range(batch_size): inside of one batch
ONE_BATCH = re.compile(r"^(\w*_batch|batch|minibatch|batch_size|bsz|batch_dict)($|\.|\[)", re.I)
BATCHES = re.compile(r"load|dataset|batch|_dl$|^dl$|_iter|generator", re.I)


def grad_off_for_good(file: File) -> bool:
    """torch.set_grad_enabled(False) as a statement, anywhere; code for PyTorch before 0.4, which
    says volatile=True instead.
    """
    return any(
        isinstance(n, ast.keyword) and n.arg == "volatile" and constant(n.value) is not False
        for n in file.nodes
    ) or any(
        (file.callee(call) or "").endswith("set_grad_enabled")
        and call.args
        and constant(call.args[0]) is not True
        for s in file.statements
        if isinstance(s, ast.Expr)
        for call in _chosen(s.value)
    )


def _chosen(node: ast.expr) -> List[ast.Call]:
    """enable(True) if training else enable(False): either of the two"""
    if isinstance(node, ast.IfExp):
        return _chosen(node.body) + _chosen(node.orelse)
    return [node] if isinstance(node, ast.Call) else []


def begins_with_grad(node: ast.AST) -> bool:
    """loss = torch.tensor(0.0, requires_grad=True): it is given back for its gradient"""
    return (
        isinstance(node, ast.Call)
        and method(node) in ("tensor", "zeros", "ones")
        and constant(keyword(node, "requires_grad")) is True
    )


def clears_gradients(loop: Any) -> bool:
    """zero_grad() without a backward in sight: gradients are wanted, a helper takes them."""
    return any(
        isinstance(n, ast.Call) and method(n) == "zero_grad"
        for s in in_order(loop.body)
        for n in own(s)
    )


def measures(file: File, s: ast.stmt) -> bool:
    """A few rounds that somebody wrote down, or input that is made up on the spot: a benchmark, a
    look at the shapes. The graph of one batch is all it ever holds.
    """
    place = file.places.get(s)
    if _adapts(file) or _on_cpu_only(file) or _handed_a_model(file, s):
        return True
    function = place.function if place is not None else None
    if _makes_loss(function) or _DRAWS.search(getattr(function, "name", "")):
        return True
    if place is not None and place.loops:
        if rounds_around(file, s) <= FEW or stops_early(file, s) or _one_state(place.loops[-1]):
            return True
        if _shown_one_by_one(s, place.loops[-1]):
            return True
        if _cases(place.loops[-1]):
            return True
    if _given_made_up(file, s) or _one_sample(file, s):
        return True
    return _on_host(file, s) or not (place and place.loops[1:]) and _drawn(s)


@once
def _adapts(file: File) -> bool:
    names = set(file.aliases.values())
    return adapts(file.tree) or any(ADAPTS.search(n) for n in names)


def _handed_a_model(file: File, s: ast.stmt) -> bool:
    """scores = method(x, y, model=model): what it does with the model is not seen here"""
    return any(
        isinstance(n, ast.Call)
        and method(n) not in file.functions
        and any(is_model_name(key(a) or "") for a in [*n.args, *(k.value for k in n.keywords)])
        for n in walk_here(s)
    )


_DRAWS = re.compile(
    r"(^|_)(vis|viz|visuali[sz]\w*|plot\w*|draw\w*|traversals?|interpolat\w*|gifs?|demo)(_|$)", re.I
)


def _on_cpu_only(file: File) -> bool:
    """device = torch.device("cpu"), and no card anywhere"""
    return not uses_card(file) and any(
        isinstance(n, ast.Call)
        and (file.callee(n) or "") == "torch.device"
        and n.args
        and constant(n.args[0]) == "cpu"
        for n in file.nodes
    )


def _makes_loss(function: Any) -> bool:
    """def perceptual_loss(self, real, fake): what it returns is differentiated elsewhere"""
    name = getattr(function, "name", "")
    return bool(re.search(r"loss|criterion|penalty", name, re.I)) and not HELD_OUT.search(name)


_CASES = re.compile(r"(^|_)(cases|prompts|patterns|probes)$", re.I)


def _cases(loop: ast.stmt) -> bool:
    """for name, series in test_cases.items(): somebody wrote them down"""
    over = getattr(loop, "iter", None)
    if isinstance(over, ast.Call) and isinstance(over.func, ast.Attribute):
        over = over.func.value
    return over is not None and bool(_CASES.search(key(over) or ""))


_NOISE = re.compile(r"noise|(^|_)z(_|$)|(^|_|\.)z_?samples?$|fixed_|latents?$", re.I)


def _drawn(s: ast.stmt) -> bool:
    """pictures = generator(self.fixed_noise): as many as somebody looks at"""
    given = [
        key(a)
        for n in walk_here(s)
        if isinstance(n, ast.Call)
        for a in n.args
        if isinstance(a, (ast.Name, ast.Attribute))
    ]
    return bool(given) and all(g and _NOISE.search(g) for g in given)


def _on_host(file: File, s: ast.stmt) -> bool:
    """net = net.cpu(); net(z): a look at the sizes, away from the card"""
    place = file.places.get(s)
    if place is None or place.function is None:
        return False
    called = {key(n.func) for n in walk_here(s) if isinstance(n, ast.Call)} - {None}
    return any(
        isinstance(n, ast.Assign)
        and any(key(t) in called for t in targets(n))
        and any(isinstance(c, ast.Call) and method(c) == "cpu" for c in walk_here(n.value))
        for n in walk(place.function)
    )


_STATE = re.compile(r"^(next_?|cur(rent)?_?|new_?)?(state|obs|observation)(_?(t|n|tensor))?$", re.I)


def _one_sample(file: File, s: ast.stmt) -> bool:
    """net(state), and net(row.unsqueeze(0)) outside of a loop over a dataset"""
    loops = file.places[s].loops if s in file.places else ()
    over_data = bool(loops) and names_data(loops[-1]) and not _counts(loops[-1])
    over = getattr(loops[-1], "iter", None) if over_data else None
    if over is not None and _EXEMPLARS.search(key(over) or ""):
        over_data = False  # some samples of each class
    given = [a for n in walk_here(s) if isinstance(n, ast.Call) for a in n.args]
    return any(_STATE.match((key(a) or "").split(".")[-1]) for a in given) or (
        not over_data
        and any(
            method(n) == "unsqueeze"
            and constant(n.args[0] if n.args else keyword(n, "dim")) == 0
            or n.args
            and method(n) in ("view", "reshape")
            and constant(_first(n.args[0])) == 1
            or n.args
            and method(n) in ("tensor", "as_tensor", "LongTensor", "FloatTensor", "Tensor")
            and isinstance(n.args[0], ast.List)
            and len(n.args[0].elts) == 1
            for a in given + _made_of(file, s, given)
            for n in walk_here(a)
            if isinstance(n, ast.Call)
        )
    )


def _first(node: ast.expr) -> Any:
    """1 of view((1, -1))"""
    return node.elts[0] if isinstance(node, (ast.Tuple, ast.List)) and node.elts else node


_EXEMPLARS = re.compile(r"exemplar|proto|support|anchors?$", re.I)


def _counts(loop: Any) -> bool:
    """for i in range(len(dataset)): net(dataset[i].unsqueeze(0))"""
    return isinstance(loop.iter, ast.Call) and method(loop.iter) in ("range", "trange")


def names_data(loop: ast.stmt) -> bool:
    """for x in tqdm(dataset): not the next token, nor the sentences somebody asks about"""
    return isinstance(loop, ast.For) and any(
        _DATA.search((key(n) or "").split(".")[-1]) or BATCHES.search(key(n) or "")
        for n in walk_here(loop.iter)
        if isinstance(n, (ast.Name, ast.Attribute))
    )


_DATA = re.compile(
    r"(^|_)(ds|data|dataset|test|val|valid|dev|train|corpus|samples|examples)s?($|_)"
)


def _made_of(file: File, s: ast.stmt, given: Any) -> List[Any]:
    """ids = torch.tensor(text).unsqueeze(0), in the same function as net(ids[:, :-1])"""
    names = {key(n) for a in given for n in walk(a) if isinstance(n, ast.Name)}
    place = file.places.get(s)
    around = place.function if place is not None else None
    made = [n for n in (walk(around) if around is not None else ()) if isinstance(n, ast.Assign)]
    # shown = ids; shown = ids[:, -512:]: the same by another name
    for n in made:
        if isinstance(n.value, (ast.Name, ast.Subscript)) and any(
            key(t) in names for t in targets(n)
        ):
            names.add(key(n.value) or key(getattr(n.value, "value", None)))
    return [n.value for n in made if any(key(t) in names for t in targets(n))]


def _one_state(loop: Any) -> bool:
    """action = net(state).argmax(); env.step(action): one state at a time. Or one picture, that
    every round shows, or a round that waits for somebody to look.
    """
    return any(
        isinstance(n, ast.Call)
        and method(n) in ("imshow", "waitKey", "input", "breakpoint", "set_trace")
        for s in loop.body
        if not isinstance(s, ast.If)
        for n in own(s)
    ) or any(
        isinstance(n, ast.Call)
        and method(n) in ("step", "render")
        and isinstance(n.func, ast.Attribute)
        and "env" in (key(n.func.value) or "").lower()
        for n in walk(loop)
    )


def _shown_one_by_one(s: ast.stmt, loop: ast.stmt) -> bool:
    """net(picture.unsqueeze(0)), and a picture of the result in the same round"""
    single = any(
        isinstance(n, ast.Call)
        and (method(n) in ("unsqueeze", "expand_dims"))
        and any(constant(a) == 0 for a in n.args)
        or isinstance(n, ast.Subscript)
        and constant(getattr(n.slice, "value", n.slice)) is None
        and isinstance(getattr(n.slice, "value", n.slice), ast.Constant)
        for n in walk_here(s)
    )
    return single and any(
        isinstance(n, ast.Call) and method(n) in ("imshow", "savefig", "save_image", "imsave")
        for n in walk(loop)
    )


def stops_early(file: File, s: ast.stmt) -> bool:
    """for i, batch in enumerate(loader): ...; break, or only `if i < 4:`"""
    place = file.places[s]
    if any(
        isinstance(x, ast.Break)
        or ends_the_run(x)
        or isinstance(x, ast.If)
        and isinstance(x.test, ast.Compare)
        and isinstance(x.body[-1], ast.Break)
        and isinstance(constant(x.test.comparators[0]), int)
        and constant(x.test.comparators[0]) <= FEW
        and key(x.test.left) in _counted(place.loops)
        for x in place.loops[-1].body
    ):
        return True
    return any(
        isinstance(i, ast.If)
        and isinstance(i.test, ast.Compare)
        and isinstance(i.test.left, ast.Name)
        and isinstance(i.test.ops[0], (ast.Lt, ast.LtE, ast.Eq))
        and isinstance(constant(i.test.comparators[0]), int)
        and 0 <= constant(i.test.comparators[0]) <= FEW
        and i.test.left.id in _counted(place.loops)
        and any(x is s for x in in_order(i.body))
        for i in place.ifs
    )


def _counted(loops: Any) -> Set[str]:
    """i of for i, batch in enumerate(loader)"""
    return {
        n.id
        for loop in loops
        if isinstance(loop, ast.For)
        for n in walk(loop.target)
        if isinstance(n, ast.Name)
    }


_MAKERS = frozenset(
    "linspace arange randn rand zeros ones randint empty full Tensor zeros_like ones_like rand_like "
    "randn_like empty_like full_like".split()
)
_MOVES = frozenset("to cuda float half bfloat16 double cpu unsqueeze".split())
_OF_NUMPY = frozenset("from_numpy as_tensor tensor".split())
_SETS = (ast.arg, ast.For, ast.AsyncFor, ast.AugAssign, ast.comprehension, ast.Assign)


def _given_made_up(file: File, s: ast.stmt) -> bool:
    """model(dummy), model(torch.zeros(1, 3, size, size).cuda()): a warm-up, a look at the shapes"""
    made = _made_up(file, file.places[s].function if s in file.places else None)
    given = [
        a
        for n in walk_here(s)
        if isinstance(n, ast.Call) and not _makes(n) and method(n) not in _MOVES
        for a in [*n.args, *(k.value for k in n.keywords)]
        if not isinstance(a, ast.Constant) and not _asks_something(a)
    ]
    return bool(given) and all(_synthetic(a, made) for a in given)


def _asks_something(argument: ast.expr) -> bool:
    """model(x) of print(model(x).shape), which is looked at by itself"""
    return any(
        isinstance(n, ast.Call) and not _makes(n) and method(n) not in _MOVES
        for n in walk_here(argument)
    )


def _made_up(file: File, function: Any) -> Set[str]:
    """Names that hold torch.randn(1, 3, 224, 224).cuda() and the like wherever a function, or else
    the file, sets them.
    """
    known = _made_up_by_function(file)
    if function not in known:
        # What another function calls x is another thing, unless this one only reads it.
        here = list(walk(function)) if function is not None else file.nodes
        known[function] = _made_in(here)
        if function is not None:
            set_here = {key(t) for n in here if isinstance(n, _SETS) for t in _named(n)}
            known[function] |= _made_up(file, None) - set_here
    return known[function]


@once
def _made_up_by_function(file: File) -> Dict[Optional[ast.AST], Set[str]]:
    return {}  # filled as somebody asks


def _made_in(nodes: List[ast.AST]) -> Set[str]:
    made: Set[str] = set()
    other: Set[str] = set()
    for n in nodes:
        if isinstance(n, ast.Assign):
            own_move = _moved(n.value)
            for t in _named(n):
                if own_move and own_move == key(t):
                    continue  # x = x.to(device)
                (made if _synthetic(n.value, made - other) else other).add(key(t))
        elif isinstance(n, _SETS):
            other |= {key(t) for t in _named(n)}
    return made - other


def _named(n: Any) -> List[ast.AST]:
    """What a statement, a loop or a parameter gives a value"""
    if isinstance(n, ast.arg):
        return [ast.Name(id=n.arg)]
    if isinstance(n, ast.Assign):
        return list(targets(n))
    return [x for x in walk(n.target) if isinstance(x, ast.Name)]


def _moved(value: Any) -> Optional[str]:
    """x of x.to(device)"""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        if value.func.attr in _MOVES:
            return text(value.func.value)
    return None


def _makes(call: ast.Call) -> bool:
    return method(call) in _MAKERS or method(call) in _OF_NUMPY


def _synthetic(value: Any, made: Set[str]) -> bool:
    """torch.randn(1, 3, 224, 224).cuda(), what is named after one, a list or a dict of them"""
    while isinstance(value, ast.Call) and method(value) in _MOVES:
        value = value.func.value if isinstance(value.func, ast.Attribute) else None
    if isinstance(value, (ast.Name, ast.Attribute)):
        return key(value) in made
    if isinstance(value, ast.Starred):
        return _synthetic(value.value, made)
    parts = getattr(value, "elts", getattr(value, "values", None))
    if isinstance(parts, list):
        return bool(parts) and all(_synthetic(p, made) for p in parts)
    if not isinstance(value, ast.Call) or not _makes(value):
        return False
    if method(value).endswith("_like"):
        return bool(value.args) and _synthetic(value.args[0], made)
    if method(value) in _OF_NUMPY:
        return bool(value.args) and _synthetic(value.args[0], made)
    return not any(
        isinstance(n, (ast.List, ast.Call)) for a in value.args for n in walk(a)
    ) and not any(k.arg == "data" for k in value.keywords)


# Networks of metrics, which switch the gradients of their parameters off when they are made.
_BORN_FROZEN = re.compile(r"^(\w*InceptionV3\w*|LPIPS|PerceptualLoss|FrechetInceptionDistance)$")


def other_branch_is_quiet(file: File, loop: ast.stmt) -> bool:
    """if quiet: with torch.no_grad(): ... else: the same with gradients, because the caller asks"""
    for i in file.places[loop].ifs:
        if not isinstance(i, ast.If):
            continue
        inside = any(x is loop for x in in_order(i.body))
        other = i.orelse if inside else i.body
        if any(
            isinstance(s, ast.With) and file.places[b].no_grad
            for s in in_order(other)
            if isinstance(s, ast.With)
            for b in s.body[:1]
        ):
            return True
    return False


@once
def _frozen(file: File) -> Set[str]:
    """Models whose parameters need no gradients: without a graph nothing is held."""
    found = set()
    for loop in file.statements:
        if not isinstance(loop, ast.For):
            continue
        owners = {
            key(n.func.value)
            for n in walk_here(loop.iter)
            if isinstance(n, ast.Call)
            and isinstance(n.func, ast.Attribute)
            and n.func.attr in ("parameters", "named_parameters")
        }
        if any(
            isinstance(s, ast.Assign)
            and (key(s.targets[0]) or "").endswith(".requires_grad")
            and constant(s.value) is False
            for s in loop.body
        ):
            found |= {o for o in owners if o}
    for n in file.nodes:
        if isinstance(n, ast.Assign) and any(
            isinstance(c, ast.Call) and _BORN_FROZEN.search(method(c)) for c in walk(n.value)
        ):
            found |= {k for k in map(key, n.targets) if k}
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute):
            off = n.func.attr == "requires_grad_" and n.args and constant(n.args[0]) is False
            if off or n.func.attr == "freeze" and not n.args:
                found.add(key(n.func.value))
    return found


_SPLIT = re.compile(r"^(x|xs|inputs?|data|features|images)_?(test|val|valid|dev)$", re.I)


def whole_split(s: ast.stmt) -> bool:
    """model(x_test): all samples of a split in one pass"""
    return isinstance(s, ast.Assign) and any(
        isinstance(n, ast.Name) and (_SPLIT.match(n.id) or _SPLIT.match(_turned(n.id)))
        for n in walk_here(s.value)
    )


def _turned(name: str) -> str:
    """test_x as x_test"""
    return "_".join(reversed(name.split("_")))


@once
def uses_card(file: File) -> bool:
    """Does the file name a card anywhere?"""
    return any(
        isinstance(n, ast.Attribute)
        and n.attr == "cuda"
        or isinstance(n, ast.Constant)
        and isinstance(n.value, str)
        and n.value.startswith("cuda")
        for n in file.nodes
    )
