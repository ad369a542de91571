"""Evaluation that builds graphs nobody uses, or that keeps its outputs on the card."""

import ast
import re
from typing import Iterator, List, Optional, Set

from . import rules
from .calls import called_without_grad
from .evidence import ADAPTS, FEW, adapts, ends_the_run, rounds_around
from .flow import Scope, calls_module, in_order, is_model_name, scopes
from .names import LOOPS, constant, key, keyword, method, own, targets, walk, walk_here

_HELD_OUT = re.compile(r"(^|_|\.)(val|valid|validation|test|dev|eval|evaluation|holdout)", re.I)
# `test` alone: names that begin with test_ are unit tests.
_EVALUATES = re.compile(
    r"^_?(eval|evaluate|validate|validation|predict|infer|inference)(_|$)|^_?test$"
)
# for sample in batch, for i in range(batch_size): inside of one batch
_ONE_BATCH = re.compile(r"^(\w*_batch|batch|minibatch|batch_size|bsz|batch_dict)($|\.|\[)", re.I)
_BATCHES = re.compile(r"load|dataset|batch|_dl$|^dl$|_iter|generator", re.I)


def check(file) -> Iterator[dict]:
    if "torch" not in file.modules or _grad_off_for_good(file):
        return
    for scope in scopes(file):
        if scope.function is not None and (
            called_without_grad(file, scope.function.name)
            or scope.function.name.endswith(("_step", "forward"))
        ):
            continue
        if not _steers_grad(scope):
            yield from _in_scope(file, scope)


def phases(file) -> Iterator[dict]:
    """for phase in ['train', 'val']: one loop for both, without set_grad_enabled"""
    if "torch" not in file.modules or _grad_off_for_good(file):
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


def _flags(loop) -> Set[Optional[str]]:
    """learning in learning = split == "train"; net.train(learning), and what it is made from"""
    found: Set[Optional[str]] = set()
    for s in loop.body:
        value = s.value if isinstance(s, ast.Assign) else None
        if not isinstance(value, ast.Compare) or not isinstance(value.ops[0], (ast.Eq, ast.NotEq)):
            continue
        word = constant(value.comparators[0])
        if isinstance(word, str) and (word.startswith("train") or _HELD_OUT.search(word)):
            flags = {key(t) for t in targets(s)}
            if any(_sets_mode(n, flags) for x in loop.body for n in walk(x)):
                found |= flags | {key(value.left)}
    return found - {None}


def _sets_mode(n, flags) -> bool:
    """net.train(learning); if learning: net.train()"""
    if isinstance(n, ast.If):
        asked = any(key(x) in flags for x in walk_here(n.test) if isinstance(x, ast.Name))
        return asked and any(
            isinstance(x, ast.Call) and method(x) in ("train", "eval")
            for b in n.body
            for x in walk(b)
        )
    return isinstance(n, ast.Call) and method(n) == "train" and any(key(a) in flags for a in n.args)


def _two_phases(loop) -> bool:
    """A loop over written-out names of which one is held out and one is trained on."""
    if not isinstance(loop.iter, (ast.List, ast.Tuple)) or key(loop.target) is None:
        return False
    constants = [e.value for e in loop.iter.elts if isinstance(e, ast.Constant)]
    names = [n for n in constants if isinstance(n, str)]
    return any(_HELD_OUT.search(n) for n in names) and any(n.startswith("train") for n in names)


def _untrained_forward(file, scope: Scope, loop, phase) -> Optional[dict]:
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
            if name and node.args + node.keywords:
                return rules.finding(
                    "eval-without-no-grad",
                    s,
                    "this forward pass of `%s` runs in both phases: in the one without backward it "
                    "still builds the graph, which holds every activation of the batch" % name,
                )
    return None


def _asks(condition, phase) -> bool:
    return isinstance(condition, ast.If) and any(
        key(n) in phase for n in walk_here(condition.test) if isinstance(n, ast.Name)
    )


def _grad_off_for_good(file) -> bool:
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


def _chosen(node) -> List[ast.Call]:
    """enable(True) if training else enable(False): either of the two"""
    if isinstance(node, ast.IfExp):
        return _chosen(node.body) + _chosen(node.orelse)
    return [node] if isinstance(node, ast.Call) else []


def begins_with_grad(node) -> bool:
    """loss = torch.tensor(0.0, requires_grad=True): it is given back for its gradient"""
    return (
        isinstance(node, ast.Call)
        and method(node) in ("tensor", "zeros", "ones")
        and constant(keyword(node, "requires_grad")) is True
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


def _in_scope(file, scope: Scope) -> Iterator[dict]:
    evaluated = set()
    done = set()
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


def clears_gradients(loop) -> bool:
    """zero_grad() without a backward in sight: gradients are wanted, a helper takes them."""
    return any(
        isinstance(n, ast.Call) and method(n) == "zero_grad"
        for s in in_order(loop.body)
        for n in own(s)
    )


def measures(file, s: ast.stmt) -> bool:
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


def _adapts(file) -> bool:
    if not hasattr(file, "_adapts"):
        names = set(file.aliases.values())
        file._adapts = adapts(file.tree) or any(ADAPTS.search(n) for n in names)
    return file._adapts


def _handed_a_model(file, s: ast.stmt) -> bool:
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


def _on_cpu_only(file) -> bool:
    """device = torch.device("cpu"), and no card anywhere"""
    return not uses_card(file) and any(
        isinstance(n, ast.Call)
        and (file.callee(n) or "") == "torch.device"
        and n.args
        and constant(n.args[0]) == "cpu"
        for n in file.nodes
    )


def _makes_loss(function) -> bool:
    """def perceptual_loss(self, real, fake): what it gives is differentiated elsewhere"""
    name = getattr(function, "name", "")
    return bool(re.search(r"loss|criterion|penalty", name, re.I)) and not _HELD_OUT.search(name)


_CASES = re.compile(r"(^|_)(cases|prompts|patterns|probes)$", re.I)


def _cases(loop) -> bool:
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


def _on_host(file, s: ast.stmt) -> bool:
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


def _one_sample(file, s: ast.stmt) -> bool:
    """net(state), and net(row.unsqueeze(0)) outside of a loop over a dataset"""
    loops = file.places[s].loops if s in file.places else ()
    over_data = bool(loops) and names_data(loops[-1]) and not _counts(loops[-1])
    if over_data and _EXEMPLARS.search(key(loops[-1].iter) or ""):
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


def _first(node):
    """1 of view((1, -1))"""
    return node.elts[0] if isinstance(node, (ast.Tuple, ast.List)) and node.elts else node


_EXEMPLARS = re.compile(r"exemplar|proto|support|anchors?$", re.I)


def _counts(loop) -> bool:
    """for i in range(len(dataset)): net(dataset[i].unsqueeze(0))"""
    return isinstance(loop.iter, ast.Call) and method(loop.iter) in ("range", "trange")


def names_data(loop) -> bool:
    """for x in tqdm(dataset): not the next token, nor the sentences somebody asks about"""
    return isinstance(loop, ast.For) and any(
        _DATA.search((key(n) or "").split(".")[-1]) or _BATCHES.search(key(n) or "")
        for n in walk_here(loop.iter)
        if isinstance(n, (ast.Name, ast.Attribute))
    )


_DATA = re.compile(
    r"(^|_)(ds|data|dataset|test|val|valid|dev|train|corpus|samples|examples)s?($|_)"
)


def _made_of(file, s: ast.stmt, given) -> list:
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


def _one_state(loop) -> bool:
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


def _shown_one_by_one(s: ast.stmt, loop) -> bool:
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


def stops_early(file, s: ast.stmt) -> bool:
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


def _counted(loops) -> Set[str]:
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


def _given_made_up(file, s: ast.stmt) -> bool:
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


def _asks_something(argument) -> bool:
    """model(x) of print(model(x).shape), which is looked at by itself"""
    return any(
        isinstance(n, ast.Call) and not _makes(n) and method(n) not in _MOVES
        for n in walk_here(argument)
    )


def _made_up(file, function) -> Set[str]:
    """Names that hold torch.randn(1, 3, 224, 224).cuda() and the like wherever a function, or else
    the file, sets them.
    """
    if not hasattr(file, "_made_up"):
        file._made_up = {}
    if function not in file._made_up:
        # What another function calls x is another thing, unless this one only reads it.
        here = list(walk(function)) if function is not None else file.nodes
        file._made_up[function] = _made_in(here)
        if function is not None:
            set_here = {key(t) for n in here if isinstance(n, _SETS) for t in _named(n)}
            file._made_up[function] |= _made_up(file, None) - set_here
    return file._made_up[function]


def _made_in(nodes) -> Set[str]:
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


def _named(n) -> List[ast.AST]:
    """What a statement, a loop or a parameter gives a value"""
    if isinstance(n, ast.arg):
        return [ast.Name(id=n.arg)]
    if isinstance(n, ast.Assign):
        return list(targets(n))
    return [x for x in walk(n.target) if isinstance(x, ast.Name)]


def _moved(value) -> Optional[str]:
    """x of x.to(device)"""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        if value.func.attr in _MOVES:
            return key(value.func.value)
    return None


def _makes(call: ast.Call) -> bool:
    return method(call) in _MAKERS or method(call) in _OF_NUMPY


def _synthetic(value, made: Set[str]) -> bool:
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


def _feeds_later(scope: Scope, loop) -> bool:
    """Does a backward behind the loop use what the loop makes?"""
    later = [s for s, _ in scope.differentiated if s.lineno > loop.end_lineno]
    made = {key(t) for s in in_order(loop.body) for t in targets(s)} | {
        key(n.func.value)
        for s in in_order(loop.body)
        for n in own(s)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)
    }
    return bool(later) and bool(made & scope.feeds)


def _forward_with_grad(file, scope: Scope, loop, evaluated) -> Optional[dict]:
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
            return rules.finding(
                "eval-without-no-grad",
                s,
                why + ": each batch holds its activations for a backward that never comes",
                loop=loop.lineno,
                hint=measures(file, s),
            )
    return None


# Networks of metrics, which switch the gradients of their parameters off when they are made.
_BORN_FROZEN = re.compile(r"^(\w*InceptionV3\w*|LPIPS|PerceptualLoss|FrechetInceptionDistance)$")


def other_branch_is_quiet(file, loop) -> bool:
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


def _frozen(file) -> Set[str]:
    """Models whose parameters need no gradients: without a graph nothing is held."""
    if not hasattr(file, "_frozen"):
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
        file._frozen = found
    return file._frozen


def _is_held_out(file, scope: Scope, loop: ast.For) -> bool:
    """A loop over data that is not trained on: by the loader's name, or by the function's."""
    if scope.klass is not None:
        return False  # a method may be called under no_grad from another file
    names = [key(n) or "" for n in walk_here(loop.iter) if isinstance(n, (ast.Name, ast.Attribute))]
    if any(_HELD_OUT.search(n) and _BATCHES.search(n) for n in names):
        return True
    return (
        scope.function is not None
        and bool(_EVALUATES.match(scope.function.name))
        and any(_BATCHES.search(n) for n in names)
    )


def _single_forward(scope: Scope, s: ast.stmt, evaluated) -> Optional[dict]:
    """val_loss = criterion(model(x_val), y_val) beside a training loop"""
    if not isinstance(s, ast.Assign) or any(key(t) in scope.feeds for t in targets(s)):
        return None
    for node in own(s):
        name = calls_module(node, scope)
        if name in evaluated and name not in _frozen(scope.file) and node.args + node.keywords:
            return rules.finding(
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


_FROZEN = re.compile(
    r"(^|_|\.)(teacher|ref|reference|frozen|perceptual|vgg|lpips)(_?(model|net|network|policy))?$",
    re.I,
)


def frozen_models(file) -> Iterator[dict]:
    """teacher(x) in the training loop with its graph: a model that nothing updates"""
    if "torch" not in file.modules or _grad_off_for_good(file) or _freezes(file):
        return
    idle = {k for k in _eval_only(file) if _FROZEN.search(k)} - _optimized(file)
    for scope in scopes(file):
        said = set()
        for s in scope.statements:
            place = file.places[s]
            if place.no_grad or not place.loops or not isinstance(s, ast.Assign):
                continue
            if not any(scope.has_backward(loop) for loop in place.loops):
                continue
            for node in own(s):
                name = calls_module(node, scope)
                if name in idle and name not in said and node.args + node.keywords:
                    if _of_a_trained(scope, place.loops[-1], node, idle):
                        continue
                    said.add(name)
                    yield rules.finding(
                        "frozen-model-with-grad",
                        s,
                        "`%s` is only evaluated and no optimizer updates it, yet its forward pass "
                        "builds a graph: its activations are held until backward, and its weights "
                        "get gradients" % name,
                    )


def _of_a_trained(scope: Scope, loop, call: ast.Call, idle) -> bool:
    """fake = generator(x); features = vgg(fake): the gradients go through vgg to the generator"""
    given = {n.id for a in call.args for n in walk(a) if isinstance(n, ast.Name)}
    for s in in_order(loop.body):
        if isinstance(s, ast.Assign) and s.lineno < call.lineno:
            makers = {calls_module(n, scope) for n in own(s)} - {None}
            if makers - idle and any(key(t) in given for t in targets(s)):
                return True
    return False


def _freezes(file) -> bool:
    """Does the file switch gradients off for any parameter? Which ones is hard to tell."""
    return any(
        isinstance(n, ast.Attribute)
        and n.attr in ("requires_grad", "requires_grad_")
        or isinstance(n, ast.keyword)
        and n.arg == "requires_grad"
        or isinstance(n, ast.Name)
        and re.search(r"freeze|requires_grad", n.id)
        or isinstance(n, ast.Attribute)
        and "freeze" in n.attr
        for n in file.nodes
    )


def _eval_only(file):
    """Models that are put into eval mode here, and never into training mode."""
    evaluated, trained = set(), set()
    for n in file.nodes:
        if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call):
            if method(n.value) == "eval" or any(
                isinstance(c, ast.Call) and method(c) == "eval" for c in _chain(n.value)
            ):
                evaluated.update(k for k in map(key, n.targets) if k)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute):
            if n.func.attr == "eval" and key(n.func.value):
                evaluated.add(key(n.func.value))
            elif n.func.attr == "train" and constant(n.args[0] if n.args else None) is not False:
                trained.add(key(n.func.value))
    return evaluated - trained


def _chain(call):
    """The calls of build().to(device).eval(), outermost first."""
    while isinstance(call, ast.Call):
        yield call
        call = call.func.value if isinstance(call.func, ast.Attribute) else None


def _optimized(file):
    """Models whose parameters somebody asks for: an optimizer, an average, a clipping."""
    return {
        key(n.func.value)
        for n in file.nodes
        if isinstance(n, ast.Call)
        and method(n) in ("parameters", "named_parameters", "modules", "children")
        and isinstance(n.func, ast.Attribute)
    }


def over_batches(loop) -> bool:
    if not isinstance(loop, ast.For):
        return False
    return any(
        _BATCHES.search(key(n) or "") and not _ONE_BATCH.search(key(n) or "")
        for n in walk_here(loop.iter)
        if isinstance(n, (ast.Name, ast.Attribute))
    )


def uses_card(file) -> bool:
    """Does the file name a card anywhere?"""
    if not hasattr(file, "_uses_card"):
        file._uses_card = any(
            isinstance(n, ast.Attribute)
            and n.attr == "cuda"
            or isinstance(n, ast.Constant)
            and isinstance(n.value, str)
            and n.value.startswith("cuda")
            for n in file.nodes
        )
    return file._uses_card
