"""Questions that several rules ask of a file: how often does this run, how much does it keep, can
it be reached at all?
"""

import ast
import re
from typing import Any, Dict, Set

from .flow import is_model_name
from .names import FUNCTIONS, constant, key, keyword, method, once, targets, walk, walk_here

# Learners that take gradients inside of their forward pass, in evaluation too: what they sum up or
# keep is differentiated later.
ADAPTS = re.compile(
    r"maml|meta_?sgd|reptile|task_update|inner_(lr|loop|steps?|train)|second_order|fast_weights|"
    r"functional_forward|langevin|(^|_)(snf|ebm|hmc|mala)($|_)",
    re.I,
)


def adapts(tree: Any) -> bool:
    return any(
        ADAPTS.search(n.id if isinstance(n, ast.Name) else n.attr)
        for n in walk(tree)
        if isinstance(n, (ast.Name, ast.Attribute))
    )


# loops


FEW = 10  # rounds that a reader takes in at a glance
MANY = 100  # rounds over which a little a round becomes much


# What a model is made of, and the terms of one loss: as many as somebody wrote down.
_PARTS = re.compile(
    r"(layer|block|stage|head|scale|level|branch|module|model|criterion|criteria|term|(^|_)net|"
    r"discriminator|generator|expert|agent|modalit|domain|weight|param|group|device|gpu|metric|loss|"
    r"critic|actor|teacher|member|optimi[sz]er)"
    r"(e?s|_?(list|dict|names?|keys|fns?|weights?))$|"
    r"^(losses|keys|tasks|inputs|views|crops|clips|batch_?group|micro_?batches)$",
    re.I,
)


# Functions in a list were put there by hand.
_FUNCTIONS = re.compile(
    r"(^|_|\.)(fn|func|function|callback|hook|transform|update)_?s$|_fns$", re.I
)

_COUNTS = re.compile(
    r"accum|critic|(inner|outer)_?steps$|"
    r"(layer|head|scale|level|stage|block|agent|player|member|expert|actor|domain)s$|"
    r"branches$|modalities$",
    re.I,
)


def few_rounds(loop: Any, file: Any = None) -> bool:
    """A loop whose rounds were written down one by one: over a literal, a small range, the parts of
    a model, the terms of a loss.
    """
    over = getattr(loop, "iter", None)
    if over is None:
        generators = getattr(loop, "generators", None)
        over = generators[0].iter if generators else None
    if over is None:
        return False
    while isinstance(over, ast.Call) and over.args:
        if method(over) == "range":
            end = over.args[-1] if len(over.args) < 3 else over.args[1]
            last = constant(end)
            if isinstance(last, int):
                return last <= FEW
            return bool(_COUNTS.search(key(end) or ""))
        if method(over) not in ("enumerate", "reversed", "sorted", "list", "tqdm", "zip"):
            break
        if any(_FUNCTIONS.search(key(a) or "") for a in over.args):
            return True
        over = over.args[0]
    if isinstance(over, (ast.List, ast.Tuple, ast.Dict, ast.Set)):
        return True
    if _FUNCTIONS.search(key(over) or ""):
        return True
    if file is not None and isinstance(over, ast.Name) and over.id in _written_down(file):
        return True
    if file is not None and isinstance(over, ast.Attribute):
        if {key(over), over.attr} & set(_written_down(file)):
            return True  # for name in self.names, where names = ["r.png", "g.png"]
    if isinstance(over, ast.Attribute) and over.attr.isupper():
        return True  # for t in self.TEMPERATURES
    if isinstance(over, ast.Call) and isinstance(over.func, ast.Attribute):
        if over.func.attr not in ("items", "values", "keys"):
            return over.func.attr in ("children", "modules", "parameters", "named_parameters")
        over = over.func.value
    return bool(_PARTS.search((key(over) or "").split(".")[-1]))


def many_rounds(loop: Any) -> bool:
    """A loop that is seen to go on for long: without an end, or a range of a hundred and more."""
    if isinstance(loop, ast.While):
        return constant(loop.test) in (True, 1)
    over = getattr(loop, "iter", None)
    if not isinstance(over, ast.Call) or method(over) != "range" or not over.args:
        return False
    last = constant(over.args[-1] if len(over.args) < 3 else over.args[1])
    return isinstance(last, int) and last >= MANY


UNKNOWN = 50  # rounds of a loop whose end is not written down


def rounds_around(file: Any, s: Any, loops: Any = None) -> int:
    """How often a statement runs, as far as the loops around it say so."""
    total = 1
    for loop in file.places[s].loops if loops is None else loops:
        total *= _rounds(file, loop)
    return total


def _rounds(file: Any, loop: Any) -> int:
    if isinstance(loop, ast.While):
        return MANY if constant(loop.test) in (True, 1) else UNKNOWN
    over = getattr(loop, "iter", None)
    while isinstance(over, ast.Call) and over.args and method(over) != "range":
        if method(over) not in ("enumerate", "reversed", "sorted", "list", "tqdm", "zip"):
            break
        over = over.args[0]
    if isinstance(over, ast.Call) and method(over) == "range" and over.args:
        last = constant(over.args[-1] if len(over.args) < 3 else over.args[1])
        if isinstance(last, int):
            return last
        given = _number(file, over.args[-1] if len(over.args) < 3 else over.args[1])
        return given if given is not None else UNKNOWN
    if isinstance(over, (ast.List, ast.Tuple, ast.Set)):
        return len(over.elts)
    if isinstance(over, ast.Name) and over.id in _written_down(file):
        return _written_down(file)[over.id]
    return UNKNOWN


def _number(file: Any, node: Any) -> Any:
    """EPISODES = 2000 at the top of the file, and nowhere else; len(rates) of a short literal"""
    if isinstance(node, ast.Call) and method(node) == "len" and len(node.args) == 1:
        return _written_down(file).get(key(node.args[0]))
    name = key(node) if isinstance(node, ast.Name) else None
    default = _default(file, node) if name else None
    if default is not None:
        return default
    given = [
        constant(n.value)
        for n in file.nodes
        if isinstance(n, ast.Assign) and any(key(t) == name for t in targets(n))
    ]
    return given[0] if name and len(given) == 1 and isinstance(given[0], int) else None


def _default(file: Any, node: Any) -> Any:
    """3 of def profile(model, n_batches=3), or the largest that a call here gives"""
    for f in file.nodes:
        if not isinstance(f, FUNCTIONS) or not any(n is node for n in walk(f)):
            continue
        names = [a.arg for a in f.args.args]
        defaults = dict(zip(reversed(names), reversed(f.args.defaults)))
        defaults.update(
            (a.arg, d) for a, d in zip(f.args.kwonlyargs, f.args.kw_defaults) if d is not None
        )
        if node.id not in defaults:
            continue
        given = [defaults[node.id]]
        for c in file.nodes:
            if isinstance(c, ast.Call) and method(c) == f.name:
                if len(c.args) >= len(names):
                    return None
                given.append(keyword(c, node.id) or defaults[node.id])
        numbers = [constant(g) for g in given]
        return max(numbers) if all(type(n) is int for n in numbers) else None
    return None


@once
def _written_down(file: Any) -> Dict[str, int]:
    """Names that stand for a short literal wherever they are set, and how long that is."""
    short: Dict[Any, int] = {}
    other: Set[Any] = set()
    # items.append(x) beside items = [], which no loop repeats: an entry of the literal
    begun = {
        (file.places[s].function, key(t))
        for s in file.statements
        if isinstance(s, ast.Assign) and isinstance(s.value, ast.List)
        for t in s.targets
    }
    straight = {
        s.value
        for s in file.statements
        if isinstance(s, ast.Expr)
        and isinstance(s.value, ast.Call)
        and isinstance(s.value.func, ast.Attribute)
        and s.value.func.attr == "append"
        and not file.places[s].loops
        and isinstance(s.value.func.value, ast.Name)
        and (file.places[s].function, s.value.func.value.id) in begun
    }
    for n in file.nodes:
        if isinstance(n, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For)):
            entries = _entries(getattr(n, "value", None))
            # train, test = first, second: the names stand for what is in the tuple
            unpacked = any(isinstance(t, (ast.Tuple, ast.List)) for t in _aims(n))
            few = isinstance(entries, list) and len(entries) <= 2 * FEW and not unpacked
            for t in targets(n):
                if few and isinstance(n, ast.Assign):
                    short[key(t)] = max(len(entries), short.get(key(t), 0))
                else:
                    other.add(key(t))
        elif isinstance(n, ast.arg):
            other.add(n.arg)
        elif isinstance(n, ast.Call) and method(n) in ("append", "extend", "add"):
            name = key(n.func.value) if isinstance(n.func, ast.Attribute) else None
            if n in straight:
                short[name] = short.get(name, 0) + 1
            else:
                other.add(name)
    return {k: n for k, n in short.items() if n and k not in other}


def _entries(value: Any) -> Any:
    """The entries of a literal; of ["a", "b"] if both else ["a"] the longer ones"""
    if isinstance(value, ast.IfExp):
        sides = [_entries(value.body), _entries(value.orelse)]
        return max(sides, key=len) if all(isinstance(x, list) for x in sides) else None
    return getattr(value, "elts", getattr(value, "keys", None))


def _aims(n: Any) -> Any:
    return n.targets if isinstance(n, ast.Assign) else [n.target]


def short_window(loop: Any, name: str) -> bool:
    """Is the variable begun anew after each window of gradient accumulation? Such a window is a few
    rounds long.
    """
    for n in walk(loop):
        if not isinstance(n, ast.If):
            continue
        words = " ".join(
            (key(x) or "") for x in walk(n.test) if isinstance(x, (ast.Name, ast.Attribute))
        )
        if not re.search(r"accum|sync_gradients|micro", words, re.I):
            continue
        for s in walk(n):
            if isinstance(s, (ast.Assign, ast.AugAssign)) and any(
                key(t) == name for t in targets(s)
            ):
                return isinstance(s, ast.Assign)
    return False


def of_this_round(file: Any, s: ast.stmt) -> bool:
    """Does the statement call something that the loop around it made or goes through? A block of a
    model, not a model that is given batches.
    """
    place = file.places.get(s)
    if place is None or not place.loops:
        return False
    loop = place.loops[-1]
    made = {key(t) for x in walk(loop) if isinstance(x, (ast.Assign, ast.For)) for t in targets(x)}
    called = {
        key(n.func)
        for n in walk_here(s)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
    }
    return bool(called & made)


def pads_to_longest(file: Any) -> bool:
    """Batches of many shapes."""
    for n in file.nodes:
        if not isinstance(n, ast.Call):
            continue
        if method(n) in ("pad_sequence", "DataCollatorWithPadding", "DataCollatorForSeq2Seq"):
            return keyword(n, "pad_to_multiple_of") is None
        if constant(keyword(n, "padding")) in (True, "longest"):
            return True
    return False


def under_a_switch(file: Any, s: ast.stmt) -> bool:
    """Does an option or a flag decide whether the statement runs?"""
    return any(
        not any(isinstance(n, ast.Name) and n.id == "__name__" for n in walk(i.test))
        for i in file.places[s].ifs
        if isinstance(i, ast.If)
    )


_PRETRAINED = re.compile(
    r"pre_?train|imagenet|model_zoo|backbone|basenet|-[0-9a-f]{8}\.pth|init_?weight|download", re.I
)


def published(file: Any, s: ast.stmt) -> bool:
    """Weights that somebody else has trained: they are saved from the CPU as a rule. The path may be
    set a line above.
    """
    asked = {n.id for n in walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    set_here = [
        n.value
        for n in file.nodes
        if isinstance(n, ast.Assign)
        and isinstance(n.value, (ast.Constant, ast.JoinedStr, ast.BinOp))
        and any(isinstance(t, ast.Name) and t.id in asked for t in n.targets)
    ]
    names = {key(t) for t in targets(s)} - {None}
    around = file.places[s].function if s in file.places else None
    beside = [  # state = load_url(address) in the other branch
        n
        for n in walk(around or file.tree)
        if isinstance(n, ast.Assign)
        and isinstance(n.value, ast.Call)
        and method(n.value) in ("load_url", "load_state_dict_from_url")
        and names & {key(t) for t in n.targets}
    ]
    return bool(beside) or any(_of_others(x) for x in [s, *set_here])


def _of_others(s: ast.AST) -> bool:
    return any(
        _PRETRAINED.search(
            n.id if isinstance(n, ast.Name) else getattr(n, "attr", None) or str(constant(n))
        )
        for n in walk(s)
        if isinstance(n, (ast.Name, ast.Attribute))
        or isinstance(n, ast.Constant)
        and isinstance(n.value, str)
    )


def has_optimizer(file: Any) -> bool:
    """Is an optimizer restored from a checkpoint here, or saved with one?"""
    return any(
        isinstance(n, ast.Call)
        and isinstance(n.func, ast.Attribute)
        and n.func.attr in ("load_state_dict", "state_dict")
        and "opt" in (key(n.func.value) or "").lower()
        for n in file.nodes
    )


SHORT = 64  # rounds between two emptyings that keep little


def small_window(file: Any, loop: Any, name: str) -> bool:
    """if step % 20 == 0: update(samples); samples = []"""
    for n in walk(loop):
        if not isinstance(n, ast.If):
            continue
        every = [
            x.right.value if isinstance(x.right, ast.Constant) else _number(file, x.right)
            for x in walk(n.test)
            if isinstance(x, ast.BinOp) and isinstance(x.op, ast.Mod)
        ]
        if not any(isinstance(e, int) and e <= SHORT for e in every):
            continue
        for x in walk(n):
            if isinstance(x, ast.Assign) and any(key(t) == name for t in targets(x)):
                return True
            if isinstance(x, ast.Call) and isinstance(x.func, ast.Attribute):
                if x.func.attr == "clear" and key(x.func.value) == name:
                    return True
    return False


def stops_when_full(loop: Any) -> bool:
    """if sum(len(z) for z in kept) >= limit: break, if index == 0: ... else: break"""
    inside = walk(loop) if isinstance(loop, (ast.For, ast.While)) else ()
    for n in inside:
        for body, reached in (("body", (ast.Gt, ast.GtE, ast.Eq)), ("orelse", _BELOW)):
            last = getattr(n, body)[-1:] if isinstance(n, ast.If) else []
            if last and isinstance(last[0], (ast.Break, ast.Return)) and _compares(n.test, reached):
                return True
    return False


_BELOW = (ast.Lt, ast.LtE, ast.Eq)


def _compares(test: ast.expr, operators: Any) -> bool:
    return any(
        isinstance(c, ast.Compare)
        and isinstance(c.ops[0], operators)
        and not any(isinstance(x, ast.Constant) and x.value is None for x in c.comparators)
        for c in walk(test)
    )


def put_back(file: Any, s: Any) -> bool:
    """row = self.rows[i]; ...; self.rows[i] = pad(row): an entry that was there before. Not where
    somebody asks first whether it is, or comes here because it is not.
    """
    target = s.targets[0] if isinstance(s, ast.Assign) else None
    place = file.places.get(s)
    if not isinstance(target, ast.Subscript) or place is None or place.function is None:
        return False
    if place.handler:
        return False
    read = False
    for n in walk(place.function):
        if isinstance(n, ast.Compare) and any(
            isinstance(o, (ast.In, ast.NotIn, ast.Is, ast.IsNot)) for o in n.ops
        ):
            words = {key(x) for x in walk(n) if isinstance(x, (ast.Name, ast.Attribute))}
            if key(target.value) in words:
                return False
        if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Load):
            read = read or n.lineno < s.lineno and _same_entry(n, target)
    return read


def keeps_little(file: Any, s: Any) -> bool:
    """What a dataset keeps: a number each, as many as a limit says, or a few in all"""
    return _puts_number(s) or _under_a_bound(file, s) or _few_samples(file, s)


_NUMBERS_OF = re.compile(
    r"^(rand(range|int|om|bits)?|getrandbits|len|int|float|hash|id|time|perf_counter)$"
)
_BOUND = re.compile(r"max|limit|capac|budget|cache_?(size|per)|size$|quota", re.I)


def _puts_number(s: Any) -> bool:
    """self.seeds.append(random.randrange(2**32))"""
    value = getattr(s, "value", None)
    if isinstance(s, ast.Expr) and isinstance(value, ast.Call) and value.args:
        value = value.args[-1]
    return isinstance(value, ast.Call) and bool(_NUMBERS_OF.match(method(value) or ""))


def _under_a_bound(file: Any, s: Any) -> bool:
    """if count < self.max_cached: self.cache[i] = x"""
    return any(
        isinstance(c, ast.Compare)
        and isinstance(c.ops[0], (ast.Lt, ast.LtE))
        and any(_BOUND.search((key(x) or "").split(".")[-1]) for x in c.comparators)
        for i in (file.places[s].ifs if s in file.places else ())
        if isinstance(i, ast.If)
        for c in walk(i.test)
    )


def _few_samples(file: Any, s: Any) -> bool:
    """def __len__(self): return len(self.NAMES), where NAMES is written out"""
    klass = file.places[s].klass if s in file.places else None
    body = klass.body if klass is not None else []
    short = {
        key(t)
        for a in body
        if isinstance(a, ast.Assign)
        and isinstance(a.value, (ast.List, ast.Tuple))
        and len(a.value.elts) <= 2 * FEW
        for t in a.targets
    }
    return any(
        isinstance(f, FUNCTIONS)
        and f.name == "__len__"
        and any(isinstance(n, ast.Attribute) and n.attr in short for r in f.body for n in walk(r))
        for f in body
    )


def is_the_model(file: Any, s: Any) -> bool:
    """saved = torch.load(path); model = saved["model"]: there is no second one"""
    names = {key(t) for t in targets(s)} if isinstance(s, ast.Assign) else set()
    return any(
        isinstance(n, ast.Assign)
        and isinstance(n.value, ast.Subscript)
        and key(n.value.value) in names
        and any(is_model_name(key(t) or "") for t in targets(n))
        for n in file.nodes
    )


def perhaps_number(s: Any) -> bool:
    """history.append(found.get("epoch", -1))"""
    call = s.value if isinstance(s, ast.Expr) else None
    given = call.args[-1] if isinstance(call, ast.Call) and call.args else None
    if not isinstance(given, ast.Call) or method(given) != "get" or len(given.args) != 2:
        return False
    default = given.args[1]
    if isinstance(default, ast.UnaryOp):
        default = default.operand
    return isinstance(default, ast.Constant) and type(default.value) in (int, float)


def moved_entry(s: Any) -> bool:
    """states[user] = (states[user][0].cuda(), states[user][1].cuda()): made of itself alone"""
    target = s.targets[0] if isinstance(s, ast.Assign) else None
    if not isinstance(target, ast.Subscript):
        return False
    own = {n.id for n in walk(target) if isinstance(n, ast.Name)}
    used = {n.id for n in walk(s.value) if isinstance(n, ast.Name)}
    return used <= own and any(
        isinstance(n, ast.Subscript) and _same_entry(n, target) for n in walk(s.value)
    )


def _same_entry(one: ast.Subscript, other: ast.Subscript) -> bool:
    return all(
        ast.dump(a).replace("Store", "Load") == ast.dump(b).replace("Store", "Load")
        for a, b in ((one.value, other.value), (one.slice, other.slice))
    )


def exclusive(file: Any, one: Any, other: Any) -> bool:
    """Do the two statements stand in different branches of a condition?"""
    for i in file.places[one].ifs:
        if not isinstance(i, ast.If):
            continue
        sides = [{x for b in body for x in walk(b)} for body in (i.body, i.orelse)]
        if any(one in a and other in b for a, b in (sides, sides[::-1])):
            return True
    return False


def ends_the_run(s: Any) -> bool:
    """exit(), sys.exit(0), or the name of nothing, with which people stop a script"""
    value = s.value if isinstance(s, ast.Expr) else None
    if isinstance(value, ast.Call):
        return method(value) in ("exit", "quit", "_exit")
    return isinstance(value, ast.Name) and bool(
        re.match(r"^(stop|exit|quit|halt|end|asdf?|xxx+|breakpoint|die)$", value.id, re.I)
    )


def _switched_off(file: Any) -> Any:
    """if plots: of a function that says plots = False and sets it nowhere else; if DEBUG: of a file"""
    values: Any = {}  # (function, name) -> what it is set to; None where that is no constant
    given = set()
    for n in file.nodes:
        if isinstance(n, ast.arg):
            given.add(n.arg)
        elif isinstance(n, (ast.Global, ast.Nonlocal)):
            given.update(n.names)
        elif isinstance(n, (ast.Import, ast.ImportFrom)):
            given.update(a.asname or a.name for a in n.names)
    for s in file.statements:
        simple = isinstance(s, ast.Assign) and isinstance(s.value, ast.Constant)
        for t in targets(s):
            if isinstance(t, ast.Name):
                values.setdefault((file.places[s].function, t.id), []).append(
                    s.value.value if simple else None
                )
    off = set()
    for s in file.statements:
        if not isinstance(s, ast.If) or not isinstance(s.test, ast.Name) or s.test.id in given:
            continue
        function = file.places[s].function
        found = values.get((function, s.test.id)) or values.get((None, s.test.id)) or [None]
        if all(v is False or type(v) is int and v == 0 for v in found):
            off.add(s)
    return off


@once
def never_reached(file: Any) -> Any:
    """Lines behind what ends a block: return, raise, break, continue, exit(). Lines under a switch
    that is written down as off.
    """
    lines: Set[int] = set()
    off = _switched_off(file)
    for n in file.nodes:
        for name in ("body", "orelse", "finalbody"):
            block = getattr(n, name, None)
            if not isinstance(block, list):
                continue
            ended = False
            for s in block:
                if (ended or name == "body" and n in off) and hasattr(s, "lineno"):
                    lines.update(range(s.lineno, (s.end_lineno or s.lineno) + 1))
                last = (ast.Return, ast.Raise, ast.Break, ast.Continue)
                ended = ended or isinstance(s, last) or ends_the_run(s)
    return lines


def ends_there(file: Any, s: Any) -> bool:
    """if test_only: data = torch.load(path); evaluate(); exit()"""
    for i in file.places[s].ifs:
        for body in (i.body, i.orelse) if isinstance(i, ast.If) else ():
            if not any(x is s for b in body for x in walk(b)):
                continue
            last = body[-1]
            if isinstance(last, (ast.Return, ast.Raise)):
                return True
            if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
                if method(last.value) in ("exit", "quit", "_exit"):
                    return True
    return False


# Names of what there is one number or one word of for each sample.
SMALL = re.compile(
    r"label|target|path|name|file|vocab|(^|_)ys?($|_)|(ids?|idx|index|indices|mask)s?($|_)|"
    r"(^|_)(mean|std|weights?|scale|lengths?|classes|rewards?|dones?)($|_)",
    re.I,
)


def higher_order(loop: Any) -> bool:
    """grads = torch.autograd.grad(loss, weights, create_graph=True): the gradient of the whole inner
    loop is wanted
    """
    return any(
        isinstance(n, ast.Call)
        and (asked := keyword(n, "create_graph")) is not None
        and constant(asked) is not False
        for n in walk(loop)
    )


def missing_key(file: Any, s: Any) -> bool:
    """if task not in self.nets: self.nets[task] = copy.deepcopy(self.net): one for each task, made
    when it is first asked for
    """
    target = s.targets[0] if isinstance(s, ast.Assign) else None
    return isinstance(target, ast.Subscript) and any(
        isinstance(i, ast.If)
        and isinstance(i.test, ast.Compare)
        and isinstance(i.test.ops[0], ast.NotIn)
        and key(i.test.comparators[0]) == key(target.value)
        for i in file.places[s].ifs
    )
