"""Cards: what lands on which, and what parallel training keeps there."""

import ast
import functools
import re
from typing import Iterator, List, Optional, Set

from . import evidence, rules
from .evaluation import uses_card
from .flow import Scope, calls_module, in_order, is_model_name, resets, scopes
from .keeping import cleared_in
from .names import (
    FUNCTIONS,
    LOOPS,
    calls,
    constant,
    key,
    keyword,
    method,
    own,
    targets,
    walk,
    walk_here,
)


def _may_train(file) -> bool:
    """Does the file differentiate, or hand a model and its optimizer to something that does?"""
    return any(
        isinstance(n, ast.Call)
        and (
            "backward" in (method(n) or "")
            or method(n) in ("fit", "Trainer")
            or not (file.callee(n) or "").startswith("torch.optim.")
            and any(
                re.search(r"optim", key(a) or "", re.I) and "state_dict" not in (key(a) or "")
                for a in n.args
            )
            or any(k.arg and "optim" in k.arg for k in n.keywords)
        )
        for n in file.nodes
    )


def _only_evaluates(file, s) -> bool:
    """A function that puts the model into eval mode and neither trains nor gives it back."""
    f = file.places[s].function if s in file.places else None
    if f is None:
        return False
    calls = [method(n) for n in walk(f) if isinstance(n, ast.Call)]
    return "eval" in calls and not any(
        c in ("backward", "train", "step", "zero_grad") or "train" in (c or "") for c in calls
    )


def _runs(file, name: str) -> bool:
    """Is the model called, or handed on? One that only lends its weights runs nowhere."""
    root = name.split(".")[0]
    if root == "self":
        return True
    wraps = re.compile(r"DataParallel$|^(zip|print|len|sum)$|count|flops|summary|param")
    return any(
        isinstance(n, ast.Call)
        and (
            key(n.func) in (root, name)
            or not wraps.search(method(n) or "")
            and any(key(a) in (root, name) for a in [*n.args, *(k.value for k in n.keywords)])
        )
        or isinstance(n, ast.Return)
        and key(n.value) == root
        for n in file.nodes
    )


def _unwrapped(file, name: str) -> bool:
    """model = model.module: what is trained is the model on one card"""
    return any(
        isinstance(n, ast.Assign) and key(n.targets[0]) == name and key(n.value) == name + ".module"
        for n in file.nodes
    )


_LOSSES = re.compile(r"criteri|loss", re.I)
_RESTORES = re.compile(r"restor|load_|_load$|resume", re.I)


# A number for each pixel, word of a vocabulary, or point of time. What a classifier gives is a few
# numbers a sample: the first card hardly notices.
_LARGE = re.compile(
    r"vocab|causal_?lm|lm_?head|masked_?lm|language_?model|gpt|llama|seq2seq|translat|caption|"
    r"segment|u_?net|deeplab|pspnet|fcn|mask_?rcnn|heat_?map|super_?res|denois|diffusion|"
    r"pix2pix|cycle_?gan|optical_?flow|inpaint|vocoder|tacotron|wavenet|stylegan",
    re.I,
)


_CLASSES = re.compile(r"^(n|num|nb)?_?(class|classes|label|labels)(_num|_count)?$", re.I)
# One number a sample, whatever the other networks of the file give.
_JUDGES = re.compile(r"(^|[._])(net)?_?(dis|disc|discriminator|critic|classifier|d)(_?net)?$", re.I)


def _large_outputs(file, s, call) -> bool:
    """Is the wrapped model one whose outputs are as large as its inputs, or larger? Its own name or
    what made it says so, or the function that trains it.
    """
    wrapped = key(call.args[0]) if call.args else None
    makers = [
        n.value
        for n in file.nodes
        if isinstance(n, ast.Assign) and wrapped and any(key(t) == wrapped for t in n.targets)
    ]
    names = [getattr(file.places[s].function, "name", "")] + [
        n.id if isinstance(n, ast.Name) else n.attr
        for node in [call, *makers]
        for n in walk(node)
        if isinstance(n, (ast.Name, ast.Attribute))
    ]
    large = [name for name in names if _LARGE.search(name)]
    if any(
        isinstance(n, ast.keyword) and n.arg is not None and _CLASSES.search(n.arg)
        for m in makers
        for n in walk(m)
    ):  # TextNet(vocab_size=v, class_num=c) reads words and gives classes
        large = [name for name in large if "vocab" not in name.lower()]
    return bool(large)


def data_parallel(file) -> Iterator[dict]:
    """nn.DataParallel"""
    if not _may_train(file):
        return  # without a loss nothing but outputs comes together
    for s in file.statements:
        name = key(s.targets[0]) if isinstance(s, ast.Assign) else None
        for call in own(s):
            if not isinstance(call, ast.Call) or (file.callee(call) or "") not in (
                "torch.nn.DataParallel",
                "torch.nn.parallel.DataParallel",
            ):
                continue
            ids = keyword(call, "device_ids")
            if isinstance(ids, (ast.List, ast.Tuple)) and len(ids.elts) < 2:
                continue
            if _only_evaluates(file, s) or name is not None and not _runs(file, name):
                continue
            if call.args and _LOSSES.search(key(call.args[0]) or ""):
                continue  # the loss divided over the cards is the cure
            if name is not None and _unwrapped(file, name):
                continue
            if _RESTORES.search(getattr(file.places[s].function, "name", "")):
                continue  # wrapped so that the names of a checkpoint fit
            yield rules.finding(
                "data-parallel-first-card",
                call,
                "DataParallel gathers the outputs of all cards on the first one"
                + ("" if _loss_inside(file) else _LOSS_THERE),
                hint=not _large_outputs(file, s, call)
                or _has_better(file)
                or bool(call.args and _JUDGES.search(key(call.args[0]) or "")),
            )
            return  # the heads that are wrapped beside it are the same decision


_LOSS_THERE = ", and the loss and its gradients are computed there"


def _loss_inside(file) -> bool:
    """model(input_ids=ids, labels=labels): each card computes its own loss"""
    return any(isinstance(n, ast.keyword) and n.arg == "labels" for n in file.nodes)


def default_card(file) -> Iterator[dict]:
    """model.cuda(5), then x.cuda() without a number"""
    chosen = None
    plain = []
    for node in file.nodes:
        if isinstance(node, ast.Constant) and node.value == "CUDA_VISIBLE_DEVICES":
            return
        if not isinstance(node, ast.Call):
            continue
        if (file.callee(node) or "").endswith("set_device"):
            return
        if not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr == "cuda" and (key(node.func.value) or "") != "torch":
            if not node.args and not node.keywords:
                plain.append(node)
            elif node.args and isinstance(constant(node.args[0]), int) and node.args[0].value > 0:
                chosen = node.args[0].value
        elif node.func.attr == "to" and node.args:
            named = re.match(r"cuda:(\d+)$", str(constant(node.args[0], "")))
            if named and int(named.group(1)) > 0:
                chosen = int(named.group(1))
            elif constant(node.args[0]) == "cuda":
                plain.append(node)
    if chosen is not None and plain:
        first = min(plain, key=lambda n: n.lineno)
        yield rules.finding(
            "default-card",
            first,
            "this goes to card 0 because .cuda() is called without a number, while the model is on "
            "card %d: card 0 carries tensors and a CUDA context too" % chosen,
        )


def unsynced_gradients(file) -> Iterator[dict]:
    """FSDP with no_sync or set_requires_gradient_sync(False)"""
    sharded = any(
        isinstance(n, ast.Call)
        and (file.callee(n) or "").split(".")[-1]
        in ("FullyShardedDataParallel", "FSDP", "fully_shard")
        for n in file.nodes
    )
    if not sharded:
        return
    for s in file.statements:
        if not file.places[s].loops:
            continue
        for node in own(s):
            if not isinstance(node, ast.Call):
                continue
            own_way = isinstance(node.func, ast.Attribute) and key(node.func.value) == "self"
            if own_way:
                continue  # a library's own no_sync
            if method(node) == "no_sync" or (
                method(node) == "set_requires_gradient_sync"
                and node.args
                and constant(node.args[0]) is not True
            ):
                yield rules.finding(
                    "fsdp-unsynced-gradients",
                    node,
                    "without gradient sync each rank keeps the full, unsharded gradients of the "
                    "model until the next sync",
                )


def _behind_a_switch(file, call) -> bool:
    s = next((s for s in file.statements if call in set(own(s))), None)
    return s is not None and evidence.under_a_switch(file, s)


def graphs_per_shape(file) -> Iterator[dict]:
    """torch.compile(mode="reduce-overhead")"""
    for call in file.nodes:
        if not isinstance(call, ast.Call) or (file.callee(call) or "") != "torch.compile":
            continue
        if call.args and re.search(r"optim|step", key(call.args[0]) or "", re.I):
            continue  # what it is given has one shape
        if constant(keyword(call, "mode")) in ("reduce-overhead", "max-autotune"):
            yield rules.finding(
                "cuda-graph-per-shape",
                call,
                'mode="%s" records a CUDA graph for every new input shape, and each keeps its own '
                "memory pool" % constant(keyword(call, "mode")),
                hint=not evidence.pads_to_longest(file) or _behind_a_switch(file, call),
            )


# checkpoints


def checkpoint_kept(file) -> Iterator[dict]:
    """checkpoint = torch.load(path, map_location=device) that lives on while the model trains"""
    if not uses_card(file):
        return
    for scope in scopes(file):
        if not scope.trains:
            continue
        for s in scope.statements:
            if not isinstance(s, ast.Assign) or not isinstance(s.value, ast.Call):
                continue
            if not any(
                t.lineno > s.lineno and not evidence.exclusive(file, s, t) and not _only_tests(t)
                for t, _ in scope.differentiated
            ):
                continue  # loaded after the training, for a test, or instead of it
            name = key(s.targets[0])
            if (file.callee(s.value) or "") != "torch.load" or not name or "." in name:
                continue
            where = _loaded_to(s.value)
            if where is None or not _restores(scope, name) or _dropped(scope, name, s):
                continue
            if evidence.ends_there(file, s) or evidence.is_the_model(file, s):
                continue
            if where == "":
                yield rules.finding(
                    "checkpoint-without-map-location",
                    s,
                    "torch.load without map_location puts the checkpoint on the card it was saved "
                    "from, and `%s` keeps that copy while the model trains" % name,
                    hint=evidence.published(file, s),
                )
                continue
            yield rules.finding(
                "checkpoint-kept",
                s,
                "the checkpoint is loaded to the card, and `%s` keeps that second copy of the "
                "weights%s while the model trains"
                % (name, " and optimizer state" if evidence.has_optimizer(file) else ""),
            )


def _only_tests(s: ast.stmt) -> bool:
    """run_epoch(model, test_set, train=False)"""
    return any(
        isinstance(n, ast.keyword)
        and n.arg in ("train", "training", "is_train", "is_training", "istrain")
        and constant(n.value) is False
        for n in own(s)
    )


_RANKS = (
    "DistributedDataParallel",
    "init_process_group",
    "FullyShardedDataParallel",
    "fully_shard",
)


def checkpoint_of_every_rank(file) -> Iterator[dict]:
    """torch.load(path) without map_location in a program of several ranks: all of them restore it
    to the one card it was saved from.
    """
    if not any(isinstance(n, ast.Call) and method(n) in _RANKS for n in file.nodes):
        return
    for scope in scopes(file):
        if scope.trains:
            continue  # checkpoint_kept says it
        asked = {method(n) for s in scope.statements for n in own(s) if isinstance(n, ast.Call)}
        if "DataParallel" in asked and not asked & set(_RANKS):
            continue  # one process with several cards
        for s in scope.statements:
            if not isinstance(s, ast.Assign) or not isinstance(s.value, ast.Call):
                continue
            name = key(s.targets[0])
            if (file.callee(s.value) or "") != "torch.load" or not name or "." in name:
                continue
            if _file_of_rank(scope, s.value) or _other_branch_maps(file, s):
                continue
            if _loaded_to(s.value) == "" and _restores(scope, name):
                yield rules.finding(
                    "checkpoint-without-map-location",
                    s,
                    "torch.load without map_location puts the checkpoint on the card it was saved "
                    "from: every rank holds a copy of `%s` on that one card" % name,
                )


def _other_branch_maps(file, s) -> bool:
    """if distributed: torch.load(path, map_location=...) else: torch.load(path)"""
    return any(
        isinstance(n, ast.Call)
        and (file.callee(n) or "") == "torch.load"
        and keyword(n, "map_location") is not None
        for i in file.places[s].ifs[-1:]
        if isinstance(i, ast.If)
        for n in walk(i)
    )


def _file_of_rank(scope: Scope, call: ast.Call) -> bool:
    """torch.load(f"shard_{rank}.pt"): each rank has a file of its own, saved from its own card."""
    names = {key(a) for a in call.args[:1]}
    told: List[ast.AST] = list(call.args[:1])
    for _ in range(3):
        for s in scope.statements:
            if isinstance(s, ast.Assign) and names & {key(t) for t in targets(s)}:
                told.append(s.value)
                names.update(key(n) for n in walk_here(s.value) if isinstance(n, ast.Name))
    return any(
        isinstance(n, (ast.Name, ast.Attribute, ast.Constant))
        and "rank" in (str(n.value) if isinstance(n, ast.Constant) else key(n) or "").lower()
        for t in told
        for n in walk(t)
    )


def _loaded_to(call: ast.Call) -> Optional[str]:
    """ "card", "" where nothing is said, None where it is not the card."""
    where = keyword(call, "map_location") or (call.args[1] if len(call.args) > 1 else None)
    if where is None:
        return ""
    said = constant(where)
    if isinstance(said, str):
        return "card" if said.startswith("cuda") else None
    if isinstance(where, (ast.Lambda, ast.Dict)):
        return None
    if isinstance(where, ast.Call):
        first = constant(where.args[0]) if where.args else None
        return "card" if isinstance(first, str) and first.startswith("cuda") else None
    k = (key(where) or "").lower()
    return "card" if re.search(r"device|cuda|gpu|loc$", k) else None


def _restores(scope: Scope, name: str) -> bool:
    """Is a model restored from it?"""
    derived = {name}
    for s in scope.statements:
        if isinstance(s, ast.Assign) and any(
            isinstance(n, ast.Name) and n.id in derived for n in walk_here(s.value)
        ):
            derived.update(k for k in map(key, targets(s)) if k)
    return any(
        isinstance(n, ast.Call)
        and method(n) == "load_state_dict"
        and any(isinstance(m, ast.Name) and m.id in derived for a in n.args for m in walk_here(a))
        for s in scope.statements
        for n in own(s)
    )


def _dropped(scope: Scope, name: str, origin: ast.stmt) -> bool:
    for s in scope.statements:
        if isinstance(s, ast.Delete) and any(key(t) == name for t in s.targets):
            return True
        if (
            s is not origin
            and isinstance(s, ast.Assign)
            and any(key(t) == name for t in targets(s))
        ):
            return True
    return False


# copies of the model


def copies(file) -> Iterator[dict]:
    """models.append(copy.deepcopy(model)) in a loop"""
    for scope in scopes(file):
        for s in scope.statements:
            place = file.places.get(s)
            if not place or not place.loops or not isinstance(s, ast.Expr):
                continue
            call = s.value
            if (
                isinstance(call, ast.Call)
                and method(call) == "append"
                and isinstance(call.func, ast.Attribute)
                and call.args
                and _copies_model(file, scope, call.args[0])
                and any(scope.has_backward(loop) or _trains_by_call(loop) for loop in place.loops)
                and not _trimmed(place.loops[-1], key(call.func.value))
            ):
                yield rules.finding(
                    "model-copies-kept",
                    s,
                    "every round of the loop keeps one more copy of the weights in `%s`, on the "
                    "model's device" % (key(call.func.value) or "a list"),
                )


def copies_by_method(file) -> Iterator[dict]:
    """self.history.append(copy.deepcopy(model.state_dict())) in a method that a loop calls, and
    self.optimizers.append(Adam(...)): copies of the weights, and the moments of every optimizer
    """
    if "torch" not in file.modules:
        return
    for scope in scopes(file):
        function = scope.function
        in_loop = function is not None and _called_while_training(file, function)
        for s in scope.statements:
            value, container = _put(s)
            place = file.places[s]
            trains = any(scope.has_backward(x) or _trains_by_call(x) for x in place.loops)
            if value is None or not container:
                continue
            if in_loop and not place.loops and not trains:
                if container.split(".")[0] != "self" or cleared_in(file.tree, container):
                    continue
                if _copies_model(file, scope, value):
                    if evidence.missing_key(file, s):
                        continue  # one for each task, made when it is first asked for
                    yield rules.finding(
                        "model-copies-kept",
                        s,
                        "every call keeps one more copy of the weights in `%s`, on the model's "
                        "device" % container,
                    )
                    continue
            elif not trains or resets(place.loops[-1], container, scope):
                continue
            if _is_optimizer(file, scope, value):
                yield rules.finding(
                    "optimizers-kept",
                    s,
                    "every round makes an optimizer and keeps it in `%s`: its moments, twice the "
                    "weights for Adam, stay on the card" % container,
                )


def _called_while_training(file, function) -> bool:
    """Is it called in a loop of this file that trains, or by a function that is?"""
    if not hasattr(file, "_while_training"):
        names = {
            method(n)
            for scope in scopes(file)
            for loop in scope.statements
            if isinstance(loop, LOOPS) and (scope.has_backward(loop) or _trains_by_call(loop))
            for s in in_order(loop.body)
            for n in own(s)
            if isinstance(n, ast.Call)
        }
        called = {
            method(n)
            for scope in scopes(file)
            if scope.function is not None and scope.function.name in names
            for s in scope.statements
            if not file.places[s].loops
            for n in own(s)
            if isinstance(n, ast.Call)
        }
        file._while_training = names | called
    return function.name in file._while_training


def _is_optimizer(file, scope: Scope, value) -> bool:
    if isinstance(value, (ast.Tuple, ast.List)):
        return any(_is_optimizer(file, scope, e) for e in value.elts)
    if isinstance(value, ast.Call):
        name = file.callee(value) or ""
        return name.startswith("torch.optim.") and "lr_scheduler" not in name
    return key(value) is not None and any(
        isinstance(s, ast.Assign)
        and isinstance(s.value, ast.Call)
        and any(key(t) == key(value) for t in targets(s))
        and _is_optimizer(file, scope, s.value)
        for s in scope.statements
    )


def models_of_rounds(file) -> Iterator[dict]:
    """results.append((score, model)) in a loop that builds and trains a model in every round, to
    choose the best of them afterwards
    """
    if not {"torch", "tensorflow", "keras"} & file.modules:
        return
    for scope in scopes(file):
        for s in scope.statements:
            value, container = _put(s)
            place = file.places[s]
            if value is None or not container or not place.loops:
                continue
            parts = _members(value)
            if len(parts) < 2:
                continue  # models.append(model): an ensemble needs them all
            loop = next(
                (
                    x
                    for x in place.loops
                    if any(key(p) in _built_in(scope, x) for p in parts)
                    and (scope.has_backward(x) or _trains_by_call(x) or _fits(x))
                ),
                None,
            )
            if loop is None or resets(loop, container, scope):
                continue
            if all(key(p) in _built_in(scope, loop) for p in parts):
                continue  # (encoder, head) of each: nothing to choose by, all are used
            name = next(key(p) for p in parts if key(p) in _built_in(scope, loop))
            yield rules.finding(
                "model-copies-kept",
                s,
                "every round's model `%s` stays in `%s`: the models of all rounds are in memory "
                "at once" % (name, container),
                hint=evidence.few_rounds(loop, file) or bool(_TOGETHER.search(container)),
            )


# Models that are asked together: none of them is kept for nothing.
_TOGETHER = re.compile(r"ensemble|shadow|committee|bagg|member|population|experts", re.I)


def _members(value):
    """The parts of (score, model), {"model": model}, Result(score, model)"""
    if isinstance(value, (ast.Tuple, ast.List)):
        return value.elts
    if isinstance(value, ast.Dict):
        return [v for v in value.values if v is not None]
    if (
        isinstance(value, ast.Call)
        and method(value)[:1].isupper()
        or (isinstance(value, ast.Call) and method(value) == "dict")
    ):
        return value.args + [k.value for k in value.keywords]
    return []


def _fits(loop) -> bool:
    return any(
        isinstance(n, ast.Call) and method(n) in ("fit", "train", "train_on_batch")
        for s in in_order(loop.body)
        for n in own(s)
    )


def states_of_folds(file) -> Iterator[dict]:
    """states.append(model.state_dict()) in a loop that builds the model anew"""
    if not uses_card(file):
        return
    for scope in scopes(file):
        for s in scope.statements:
            place = file.places.get(s)
            if not place or not place.loops:
                continue
            value, container = _put(s)
            state = _state_of(value)
            if state is None or not container:
                continue
            loop = next((x for x in place.loops if state in _built_in(scope, x)), None)
            if (
                loop is None
                or resets(loop, container, scope)
                or not any(scope.has_backward(x) or _trains_by_call(x) for x in place.loops)
                or _handed_to_call(scope, container, s)
            ):
                continue
            yield rules.finding(
                "model-copies-kept",
                s,
                "the state dict of every round's model stays in `%s`: it refers to the weights "
                "where they lie, on the card" % container,
            )


def _put(s):
    """(value, container) of kept.append(v), kept.append((i, v)) and kept[k] = v"""
    value, container = None, None
    if isinstance(s, ast.Expr) and isinstance(s.value, ast.Call) and s.value.args:
        if method(s.value) == "append" and isinstance(s.value.func, ast.Attribute):
            value, container = s.value.args[0], key(s.value.func.value)
    elif isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Subscript):
        if key(s.targets[0]) is None:
            value, container = s.value, key(s.targets[0].value)
    return value, container


def _state_of(value) -> Optional[str]:
    """model in model.state_dict(), (score, model.state_dict()), deepcopy(model.state_dict())"""
    if isinstance(value, (ast.Tuple, ast.List)):
        return next(filter(None, map(_state_of, value.elts)), None)
    if isinstance(value, ast.Dict):
        return next(filter(None, map(_state_of, value.values)), None)
    if not isinstance(value, ast.Call):
        return None
    if method(value) == "deepcopy" and value.args:
        return _state_of(value.args[0])
    if method(value) == "state_dict" and isinstance(value.func, ast.Attribute):
        return key(value.func.value)
    return None


def _built_in(scope: Scope, loop) -> Set[str]:
    """Models that each round of a loop makes."""
    return {
        k
        for s in in_order(loop.body)
        if isinstance(s, ast.Assign) and isinstance(s.value, ast.Call)
        for k in map(key, targets(s))
        if k and (k in scope.modules or is_model_name(k))
    }


def _handed_to_call(scope: Scope, container: str, own_statement) -> bool:
    """Somebody needs all of them at once: average(states)"""
    return any(
        key(a) == container
        for s in scope.statements
        if s is not own_statement
        for n in own(s)
        if isinstance(n, ast.Call) and method(n) not in ("len", "print", "save", "enumerate", "zip")
        for a in n.args + [k.value for k in n.keywords]
    )


@functools.lru_cache(maxsize=64)  # rules ask it for every statement of a loop
def _trains_by_call(loop) -> bool:
    """train_one_epoch(model), trainer.fit(...), model.train_step(...) in the loop"""
    return any(
        isinstance(n, ast.Call)
        and re.search(r"^_?(train|fit|run_epoch)(_|$)", method(n))
        and n.args
        for s in in_order(loop.body)
        for n in own(s)
    )


def _copies_state(node) -> bool:
    """{k: v.clone() for k, v in model.state_dict().items()}, [p.clone() for p in
    model.parameters()], not v.cpu()
    """
    if not isinstance(node, (ast.DictComp, ast.ListComp)):
        return False
    made = node.value if isinstance(node, ast.DictComp) else node.elt
    over = {
        method(c) for g in node.generators for c in walk_here(g.iter) if isinstance(c, ast.Call)
    }
    methods = {method(c) for c in walk_here(made) if isinstance(c, ast.Call)}
    return bool(
        over & {"state_dict", "parameters", "named_parameters"}
        and "clone" in methods
        and not methods & {"cpu", "to", "numpy", "norm", "item", "mean", "sum"}
    )


def _copies_model(file, scope: Scope, node) -> bool:
    if isinstance(node, (ast.Tuple, ast.List)):
        return any(_copies_model(file, scope, e) for e in node.elts)
    if isinstance(node, ast.Name):  # state = {k: v.clone() ...}; saved.append((step, state))
        made = [
            s.value
            for s in scope.statements
            if isinstance(s, ast.Assign) and any(key(t) == node.id for t in targets(s))
        ]
        return len(made) == 1 and (
            not isinstance(made[0], ast.Name) and _copies_model(file, scope, made[0])
        )
    if _copies_state(node):
        return True
    if not isinstance(node, ast.Call) or (file.callee(node) or "") not in (
        "copy.deepcopy",
        "deepcopy",
    ):
        return False
    what = node.args[0] if node.args else None
    if isinstance(what, ast.Call) and method(what) == "state_dict":
        return True
    name = key(what) if what is not None else None
    return bool(name) and (name in scope.modules or is_model_name(name) and file.uses_torch)


def _trimmed(loop, name: Optional[str]) -> bool:
    return any(
        isinstance(n, ast.Call)
        and isinstance(n.func, ast.Attribute)
        and n.func.attr in ("pop", "popleft", "clear")
        and key(n.func.value) == name
        for s in in_order(loop.body)
        for n in own(s)
    )


# exceptions and figures


def exceptions(file) -> Iterator[dict]:
    """A retry inside the handler; exceptions gathered in a list"""
    if not file.uses_torch or "torch" not in file.modules:
        return
    for node in file.nodes:
        if not isinstance(node, ast.Try):
            continue
        tried = {f for f in _work(node.body) if not _plain(file, f)} | _itself(file, node)
        for handler in node.handlers:
            kept = _gathers(handler)
            if kept is not None and _computes(file, node.body):
                yield rules.finding(
                    "exception-kept",
                    kept,
                    "the exception is kept: its traceback holds the frames of the failed call and "
                    "every tensor in them",
                )
            if not _catches_memory(file, handler):
                continue
            again = next(
                (
                    c
                    for s in in_order(handler.body)
                    for c in own(s)
                    if isinstance(c, ast.Call) and key(c.func) in tried
                ),
                None,
            )
            if again is not None:
                yield rules.finding(
                    "retry-in-handler",
                    handler,
                    "`%s` is called again inside the except block: the exception still holds the "
                    "failed call's frames, and their tensors stay alive" % key(again.func),
                )


def _plain(file, name) -> bool:
    """def now(): return datetime.now().isoformat(): it only asks modules of the standard library"""
    f = file.functions.get((name or "").split(".")[-1])
    if f is None:
        return False
    asked = [n for s in f.body for n in walk(s) if isinstance(n, (ast.Call, *LOOPS))]
    return all(
        isinstance(n, ast.Call)
        and (
            method(n) in _HARMLESS
            or (file.callee(n) or "").split(".")[0] in _STANDARD
            or isinstance(n.func, ast.Attribute)
            and isinstance(n.func.value, (ast.Call, ast.Constant, ast.JoinedStr))
        )
        for n in asked
    )


_STANDARD = frozenset("datetime time os json math random pathlib sys platform uuid psutil".split())


def _itself(file, node: ast.Try) -> set:
    """The function that the try block makes up, as it is called: return self.run(batch)"""
    for f in file.nodes:
        if isinstance(f, FUNCTIONS) and any(s is node for s in f.body):
            works = any(True for s in in_order(node.body) for _ in calls(s))
            owner = "self." if file.places[f].klass is not None else ""
            return {owner + f.name} if works else set()
    return set()


def _computes(file, body) -> bool:
    """A forward or backward pass in the block."""
    scope = scopes(file)[0]
    return any(
        isinstance(c, ast.Call) and (method(c) == "backward" or calls_module(c, scope))
        for s in in_order(body)
        for c in own(s)
    )


def _work(body) -> set:
    """Functions called in the try block that may allocate: step(batch), self.run(batch)."""
    return {
        key(c.func)
        for s in in_order(body)
        for c in own(s)
        if isinstance(c, ast.Call)
        and (isinstance(c.func, ast.Name) or (key(c.func) or "").startswith("self."))
        and method(c) not in _HARMLESS
        and not _TELLS.search(method(c))
        and not _CLEANS.search(method(c))
    }


# self.optimizer.zero_grad(), free_memory(): they tidy up after the failure
_CLEANS = re.compile(
    r"clean|clear|empty|free|release|zero|collect|reset|delete|close|gc|memory", re.I
)


# print_verbose(), self._log_results(): they tell of the failure, they do not try again
_TELLS = re.compile(
    r"print|log|warn|report|notify|write|save|dump|debug|info|error|message|time|stamp|stats$|usage|"
    r"(^|_)now(_|$)|elapsed|^get_|status|summary|alert|exit|abort",
    re.I,
)
_HARMLESS = frozenset(
    """print len str int float range format open list dict tuple isinstance getattr hasattr setattr
    sum min max round zip enumerate sorted type super log""".split()
)


def _catches_memory(file, handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return False
    names = [
        (file.dotted(t) or "").split(".")[-1]
        for t in (handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type])
    ]
    if "OutOfMemoryError" in names:
        return True
    # RuntimeError is also raised for much else: the handler must speak of memory.
    return "RuntimeError" in names and any(
        isinstance(n, ast.Constant)
        and isinstance(n.value, str)
        and "memory" in n.value
        or isinstance(n, ast.Call)
        and method(n) == "empty_cache"
        for n in walk(handler)
    )


def _gathers(handler: ast.ExceptHandler):
    if not handler.name:
        return None
    for s in in_order(handler.body):
        for c in own(s):
            if (
                isinstance(c, ast.Call)
                and method(c) == "append"
                and isinstance(c.func, ast.Attribute)
                and c.args
                and any(
                    key(n) == handler.name
                    for n in (
                        c.args[0].elts if isinstance(c.args[0], (ast.Tuple, ast.List)) else c.args
                    )
                )
            ):
                return s
    return None


def figures(file) -> Iterator[dict]:
    """plt.figure() in a loop that never closes one"""
    for scope in scopes(file):
        for s in scope.statements:
            place = file.places.get(s)
            if not place or not place.loops or not isinstance(s, (ast.Assign, ast.Expr)):
                continue
            for call in [n for n in own(s) if isinstance(n, ast.Call)]:
                if (file.callee(call) or "") not in (
                    "matplotlib.pyplot.figure",
                    "matplotlib.pyplot.subplots",
                ):
                    continue
                if call.args and (file.callee(call) or "").endswith("figure"):
                    continue  # plt.figure(1) opens the same one again
                if keyword(call, "num") is not None or _closes(file, place.loops[0]):
                    continue
                if not any(_trains(scope, loop) for loop in place.loops):
                    continue  # a few figures of a result are nobody's trouble
                if evidence.rounds_around(file, s) < evidence.FEW:
                    continue
                yield rules.finding(
                    "figures-not-closed",
                    s,
                    "every round of the loop opens a figure and none is closed: pyplot keeps them all",
                    hint=any(_shown_by_helper(file, x) for x in file.places[s].loops[-1:]),
                )


def figures_of_helper(file) -> Iterator[dict]:
    """def save_grid(images): plt.subplots(); savefig(), called again and again, never closed"""
    for scope in scopes(file):
        function = scope.function
        if (
            function is None
            or _closes(file, function)
            or not _called_while_training(file, function)
        ):
            continue
        for s in scope.statements:
            for call in [n for n in own(s) if isinstance(n, ast.Call)]:
                if (file.callee(call) or "") not in (
                    "matplotlib.pyplot.figure",
                    "matplotlib.pyplot.subplots",
                ):
                    continue
                if file.places[s].loops or keyword(call, "num") is not None:
                    continue  # figures() speaks of loops
                if call.args and (file.callee(call) or "").endswith("figure"):
                    continue
                yield rules.finding(
                    "figures-not-closed",
                    s,
                    "every call of `%s` opens a figure and none is closed: pyplot keeps them all"
                    % function.name,
                    hint=_of_folds(file, function.name),
                )
                return


def _has_better(file) -> bool:
    """if args.ddp: DistributedDataParallel(model) else: DataParallel(model): whoever starts it chose"""
    return any(
        isinstance(n, (ast.Name, ast.Attribute))
        and (file.dotted(n) or "").split(".")[-1] == "DistributedDataParallel"
        for n in file.nodes
    )


def _shown_by_helper(file, loop) -> bool:
    """add_plot(writer, "plot", i): it closes the figure it writes, or it may, in another file"""
    helpers = {
        n.func.id for n in walk(loop) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
    }
    return any(
        _closes(file, file.functions[name])
        if name in file.functions
        else re.search(r"plot|fig", name, re.I)
        for name in helpers
    )


def _of_folds(file, name: str) -> bool:
    """for train, test in folds.split(x): plot(history): as many as there are folds"""
    around = [
        file.places[s].loops
        for s in file.statements
        if not isinstance(s, FUNCTIONS)
        for n in own(s)
        if isinstance(n, ast.Call) and method(n) == name
    ]
    return bool(around) and all(
        all(evidence.few_rounds(x, file) or _splits(x) for x in loops) for loops in around
    )


def _splits(loop) -> bool:
    return isinstance(loop, ast.For) and any(
        isinstance(n, ast.Call) and method(n) == "split" for n in walk(loop.iter)
    )


def _trains(scope: Scope, loop) -> bool:
    return scope.has_backward(loop) or any(
        isinstance(n, ast.Call)
        and re.match(r"(fit|train)(_|$)|.*_step$", method(n))
        and method(n) not in ("fit_transform", "fit_predict", "train_test_split")
        for s in in_order(loop.body)
        for n in own(s)
    )


def _closes(file, loop) -> bool:
    return any(
        isinstance(n, ast.Call)
        and (
            method(n) in ("close", "clf", "show", "closeall", "savefig_close")
            # TensorBoard's writer closes the figure unless it is told not to.
            or method(n) == "add_figure"
            and constant(keyword(n, "close")) is not False
        )
        for n in walk(loop)
    ) or any(isinstance(n, (ast.Return, ast.Yield)) for n in walk(loop))
