"""What the abstract run found out about how long values live, as findings.

`machine.py` runs the file; each rule here is a statement over its story: a container that holds
more tensors after the second round of a loop than after the first, a tensor that refers to its own
last value, a forward pass in eval mode whose graph nobody uses.
"""

import ast
import functools
import re
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

from .evaluation import (
    BATCHES,
    ONE_BATCH,
    _frozen,
    begins_with_grad,
    clears_gradients,
    grad_off_for_good,
    measures,
    names_data,
    other_branch_is_quiet,
    uses_card,
)
from .evidence import (
    FEW,
    SMALL,
    ends_there,
    few_rounds,
    has_optimizer,
    higher_order,
    is_the_model,
    keeps_little,
    missing_key,
    moved_entry,
    of_this_round,
    perhaps_number,
    published,
    put_back,
    rounds_around,
    short_window,
    small_window,
    stops_when_full,
)
from .findings import Finding, finding
from .flow import is_model_name, module_classes
from .keeping import cut_or_begun, taken_off
from .library import Library
from .loaders import NOTES, is_tool, loader_calls, reads_sample, workers_of
from .machine import Args, Frame, Machine
from .names import FUNCTIONS, key, method, once, pairs, targets, walk, walk_here
from .spent import left
from .values import (
    NONE,
    VARYING,
    Klass,
    Loop,
    Node,
    Obj,
    Put,
    Round,
    Value,
    Where,
    ancestors,
    contents,
    held,
    join,
    objects,
    pieces,
)

_STEP = re.compile(r"^_?(training_step|train_step|train_batch|train_on_batch|optimize_parameters)$")


def check(file: Any) -> Iterator[Finding]:
    """All findings of the abstract run; none where it fails."""
    if not file.modules & {"torch", "tensorflow", "keras", "lightning", "pytorch_lightning"}:
        return
    m = run(file)
    judge = Judge(file, m)
    yield from judge.kept()
    yield from judge.chained()
    yield from judge.windows()
    yield from judge.joined()
    yield from judge.linked()
    yield from judge.evaluation()
    yield from judge.facts()
    yield from judge.retained()


# the run


def run(file: Any) -> Machine:
    m = Machine(file, Library)
    main = m.globals

    def whole() -> None:
        m.frames.append(main)
        m.block(file.tree.body, main)

    m.part(whole)
    own = [(n, a) for n, v in list(main.vars.items()) for a in v]
    for _, klass in reversed(own):
        if isinstance(klass, Klass):
            _run_class(m, klass)
    for _, f in reversed(own):
        if isinstance(f, Obj) and f.kind == "function" and f.function not in m.ran:
            m.part(functools.partial(_enter, m, f, None))
    for _, klass in reversed(own):
        if isinstance(klass, Klass):
            _run_rest(m, klass)
    return m


def _enter(m: Machine, f: Obj, receiver: Optional[Obj]) -> None:
    """Calls a function that nobody in this file calls."""
    m.frames.append(m.globals)
    if _STEP.match(f.label):
        m.loop(f.function, m.globals, lambda _: _noted(m, f, receiver), kind="step")
    else:
        _noted(m, f, receiver)


def _noted(m: Machine, f: Obj, receiver: Optional[Obj]) -> None:
    result = m.call_function(f, Args([]), receiver)
    for o in objects(result):
        if o.kind == "generator":
            m.generate(o, m.globals, lambda v: None)
    m.returned |= held(result)


def _functions(klass: Klass) -> List[Obj]:
    return [
        a
        for v in klass.attrs.values()
        for a in v
        if isinstance(a, Obj) and a.kind == "function" and a.klass is klass
    ]


def _run_class(m: Machine, klass: Klass) -> None:
    """Modules and datasets, as their frameworks would call them."""
    names = {f.label: f for f in _functions(klass)}
    lightning = "training_step" in names and klass.comes_from(("Module",))
    if lightning:
        m.part(lambda: _fit(m, klass))
    elif "__getitem__" in names and klass.comes_from(("Dataset",)):
        m.part(lambda: _read(m, klass))
    elif "__iter__" in names and klass.comes_from(("IterableDataset",)):
        m.part(lambda: _stream(m, klass))
    elif "forward" in names and klass.comes_from(("Module", "Model")):
        if names["forward"].function not in m.ran:
            m.part(lambda: _train(m, klass))


def _made(m: Machine, klass: Klass) -> Obj:
    m.frames.append(m.globals)
    return objects(m.instance(klass, Args([])))[0]


def _fit(m: Machine, klass: Klass) -> None:
    """What a Lightning trainer does."""
    module = _made(m, klass)
    module.card = True

    def call(name: str, args: List[Value]) -> Value:
        found = klass.find(name)
        return m.call_method(module, found, Args(args)) if found is not None else NONE

    def batch() -> Value:
        made = m.node(None, label="batch")
        made.data = made.card = True
        return frozenset([made])

    def train(_: int) -> None:
        result = call("training_step", [batch(), VARYING])
        losses = result
        for o in objects(result):
            losses = join(losses, m.item(o, "loss"))
        m.backward(frozenset(n for n in losses if isinstance(n, Node)))
        call("on_train_batch_end", [result, batch(), VARYING])

    def validate(_: int) -> None:
        result = call("validation_step", [batch(), VARYING])
        call("on_validation_batch_end", [result, batch(), VARYING])

    def epoch(_: int) -> None:
        call("on_train_epoch_start", [])
        m.loop(klass.node, m.globals, train, kind="training_step")
        call("on_train_epoch_end", [])
        m.grad = False
        call("on_validation_epoch_start", [])
        m.loop(klass.node, m.globals, validate, kind="validation_step")
        call("on_validation_epoch_end", [])
        m.grad = True

    m.loop(klass.node, m.globals, epoch, kind="epoch")


def _read(m: Machine, klass: Klass) -> None:
    """What a DataLoader does."""
    dataset = _made(m, klass)
    get = klass.find("__getitem__")
    if get is None:
        return

    def look(_: int) -> None:
        m.call_method(dataset, get, Args([VARYING]))

    m.loop(klass.node, m.globals, look, kind="dataset")


def _stream(m: Machine, klass: Klass) -> None:
    """What a DataLoader does with a stream: it is read from its start in every epoch."""
    dataset = _made(m, klass)
    begin = klass.find("__iter__")

    def epoch(_: int) -> None:
        for o in objects(
            m.call_method(dataset, begin, Args([])) if begin is not None else frozenset()
        ):
            if o.kind == "generator":
                m.generate(o, m.globals, lambda v: None)

    if begin is not None:
        m.loop(klass.node, m.globals, epoch, kind="dataset")


def _train(m: Machine, klass: Klass) -> None:
    """What a training loop somewhere else does with a module."""
    module = _made(m, klass)

    def step(_: int) -> None:
        result = m.library.forward(module, Args([]))
        m.backward(result)

    m.loop(klass.node, m.globals, step, kind="forward")


def _run_rest(m: Machine, klass: Klass) -> None:
    """Methods that nobody in this file calls: each on an object of its own."""
    waiting = [f for f in _functions(klass) if f.function not in m.ran and not _special(f.label)]
    for f in reversed(waiting):
        if f.function not in m.ran:
            m.part(functools.partial(_enter_in, m, f, klass))


def _special(name: str) -> bool:
    return name.startswith("__") and name not in ("__call__",)


# the judgement


def _gradients_wanted(loop: Any) -> bool:
    """model.zero_grad(); model(x); cam.heatmap(): a helper takes the gradients"""
    return clears_gradients(loop) and not any(
        isinstance(n, ast.Attribute) and n.attr == "backward" for n in walk(loop)
    )


_NO_MODEL = re.compile(r"token|prompter|processor|transform|collat|sampler|schedul", re.I)


def _calls_no_model(s: ast.stmt) -> bool:
    """inputs = tokenizer(texts): what came with a model is not always one"""
    called = [key(n.func) or "" for n in walk_here(s) if isinstance(n, ast.Call)]
    if "getattr" in called and set(called) <= {"", "getattr"}:
        return True  # getattr(model, "stats", dict)()
    if _only_text(s):
        return True
    return any(_NO_MODEL.search(c.split(".")[-1]) for c in called) and not any(
        is_model_name(c) or is_model_name(c.rpartition(".")[0]) for c in called
    )


# What text is called: such an encode() cuts it into tokens, or runs without gradients by itself.
_TEXT = re.compile(
    r"text|sentence|question|quer(y|ies)|caption|prompt|words?$|doc(ument)?s?$|passage|string|title|"
    r"utterance|^(strs?|lines?|corpus|names|labels)$",
    re.I,
)


def _only_text(s: ast.stmt) -> bool:
    """ids = model.encode(question), vectors = model.encode(sentences)"""
    models = [
        n
        for n in walk_here(s)
        if isinstance(n, ast.Call)
        and (
            is_model_name(key(n.func) or "")
            or is_model_name((key(n.func) or "").rpartition(".")[0])
        )
    ]
    return bool(models) and all(
        method(n) in ("encode", "encode_plus", "batch_encode_plus", "tokenize")
        and n.args
        and _TEXT.search((key(n.args[0]) or "").split(".")[-1])
        for n in models
    )


class Judge:
    def __init__(self, file: Any, m: Machine) -> None:
        self.file, self.m, self.story = file, m, m.story
        self.told: Set[Tuple[str, int]] = set()
        self.acted: Set[Any] = set()  # loops whose rollouts were reported
        self.gathered: Set[Any] = set()  # loops whose outputs were told: one line moves them all

    def tell(self, rule: str, s: Any, message: str, hint: bool = False) -> Iterator[Finding]:
        if s is None or (rule, s.lineno) in self.told:
            return
        self.told.add((rule, s.lineno))
        yield finding(rule, s, message, hint=hint)

    # containers that grow

    def kept(self) -> Iterator[Finding]:
        for loop, first, second, obj, puts in sorted(
            self.story.grown, key=lambda g: len(g[3].born), reverse=True
        ):
            if obj.bounded or obj.escaped or few_rounds(loop.node, self.file):
                continue
            found = [x for p in puts for x in self._fresh(p, first, second)]
            yield from self._graphs(loop, first, second, obj, found)
            yield from self._outputs(loop, first, second, obj, found)
            yield from self._others(loop, first, second, obj, found)
            yield from self._piled(loop, first, second, obj, found)

    def _fresh(
        self, put: Put, first: Round, second: Round
    ) -> Iterator[Tuple[Any, List[Put], List[Obj]]]:
        """(tensor or object, how it lies in the container, in which objects) of what was made in
        one of two rounds.
        """
        todo: List[Tuple[Any, List[Put], List[Obj]]] = [(a, [put], []) for a in put.value]
        seen: Set[int] = set()
        while todo and len(seen) < 200:
            atom, path, inside = todo.pop()
            if id(atom) in seen:
                continue
            seen.add(id(atom))
            if isinstance(atom, Node):
                if first in atom.born or second in atom.born:
                    yield atom, path, inside
            elif isinstance(atom, Obj) and (first in atom.born or second in atom.born):
                yield atom, path, inside
                if len(path) < 5 and not atom.module:
                    for p in contents(atom):
                        todo.extend((a, path + [p], inside + [atom]) for a in p.value)
                    for value in _captured(atom, first, second):
                        todo.extend((a, path, inside + [atom]) for a in value)

    def _graphs(self, loop: Loop, first: Round, second: Round, obj: Obj, found: Any) -> Any:
        cached = any(p.how == "cache" for _, path, _ in found for p in path)
        if obj.differentiated and not cached and not _memo(obj, loop):
            return
        kept = [
            (n, path)
            for n, path, inside in found
            if isinstance(n, Node)
            and (n.graph or cached and n.card and n.output)
            and not n.weight
            and not n.data
            and not (n.doubtful and not n.used and not _TENSORS.search(n.label))
            and not any({first, second} & o.differentiated_later for o in inside)
        ]
        if not any(first in n.born for n, _ in kept):
            return
        late = [(n, path) for n, path in kept if second in n.born]
        if not loop.backward and not cached:
            # an evaluation in grad mode: nobody ever differentiates what it keeps
            evaluated = _over_batches(loop) and bool(obj.label)
            late = [
                (n, path)
                for n, path in late
                if evaluated and self._unused(n) or self._rolled_out(loop, second, n)
            ]
        if any(small_window(self.file, r.loop.node, obj.label) for n, _ in late for r in n.born):
            return
        for n, path in late:
            if _written_over(self.file, loop.node, path[0].where[-1][1]):
                continue
            yield from self._tell_kept(loop, obj, n, path)
            if not loop.backward and not cached and self._rolled_out(loop, second, n):
                yield from self._acts(loop, second, n, obj)

    def _acts(self, loop: Loop, second: Round, n: Node, obj: Obj) -> Iterator[Finding]:
        """Where the model acts, said once a loop."""
        made = [a for a in ancestors(n) if a.maker is not None and second in a.born]
        at = [s for a in made for _, s, number in a.where if number == loop.frame.number]
        inside = [s for s in at if loop.node in self.file.places[s].loops]
        if not inside or loop.node in self.acted:
            return
        self.acted.add(loop.node)
        yield from self.tell(
            "rollout-with-grad",
            min(inside, key=lambda s: s.lineno),
            "this forward pass builds a graph that `%s` keeps and no backward goes through"
            % (obj.label or "a container"),
            hint=self._handed_back(min(inside, key=lambda s: s.lineno), obj.label),
        )

    def _rolled_out(self, loop: Loop, second: Round, n: Node, name: str = "") -> bool:
        """Gathered in a training loop, before its backward, which does not go through it: actions
        and values of a rollout that the loss takes as they are.
        """
        if n.used or not n.graph or n in self.m.returned:
            return False
        if not isinstance(loop.node, (ast.For, ast.While)) or not _acts(self.file):
            return False
        if n.doubtful and not _TENSORS.search(name):
            return False
        made = [a for a in ancestors(n) if a.maker is not None and second in a.born]
        if not made or any(a.where[-1][1] in self.m.given for a in made):
            return False  # no model acts in this loop, or somebody else has what it gave
        around = [r.loop for r in n.born]
        around = around[: around.index(loop)] if loop in around else []
        # What a forward() leaves behind is gone with it, unless its own training loop is here.
        return any(outer.backward and outer.kind != "forward" for outer in around)

    def _unused(self, n: Node) -> bool:
        return n.quiet and not n.used and n not in self.m.returned

    def _tell_kept(self, loop: Loop, obj: Obj, n: Node, path: List[Put]) -> Iterator[Finding]:
        inner, outer = path[-1], path[0]
        name = obj.label or "a container"
        what = n.label or "a tensor"
        at = inner.where[-1][1]
        if not obj.label and isinstance(outer.where[-1][1], ast.Return):
            return  # [model(x) for x in inputs] for whoever asked
        if outer.how == "cache":
            f = obj.label
            decorated = next((x for x in self.file.nodes if getattr(x, "name", "") == f), None)
            d = decorated.decorator_list[0] if decorated is not None else at
            yield from self.tell(
                "cache-keeps-tensors",
                d,
                "the cache of `%s` keeps every result %s"
                % (f, "with its graph and activations" if n.graph else "on the card"),
            )
            return
        if outer.under:
            yield from self.tell(
                "hook-keeps-tensors",
                outer.where[-1][1],
                "the hook puts what it is shown into `%s` at every pass, with its graph, and "
                "nothing empties it" % name,
                hint=taken_off(self.file, outer.where[-1][1]),
            )
            return
        if moved_entry(outer.where[-1][1]) or perhaps_number(inner.where[-1][1]):
            return
        handed = _handed(inner.where if inner.how != "made" else outer.where, n.where)
        place = self.file.places.get(handed)
        module = (
            place is not None
            and place.klass is not None
            and loop.kind in ("training_step", "forward", "epoch")
        )
        if module:
            yield from self.tell(
                "module-keeps-tensors",
                handed,
                "`%s` is kept in `%s` by every call, with its graph" % (what, name),
            )
        else:
            yield from self.tell(
                "graph-kept-in-list",
                handed,
                "`%s` is kept in `%s` with its graph%s" % (what, name, left(self.file, n.used)),
                hint=self._handed_back(handed, name) or self._step_of_pass(handed),
            )
        for p in (inner, outer):
            s = p.where[-1][1]
            if s is not handed and p.how not in ("made", "field"):
                yield from self.tell(
                    "graph-kept-here",
                    s,
                    "this keeps what line %d hands over with its graph" % handed.lineno,
                )

    def _outputs(self, loop: Loop, first: Round, second: Round, obj: Obj, found: Any) -> Any:
        """Outputs without a graph that stay on the card."""
        if loop.backward or not uses_card(self.file) or not _over_batches(loop):
            return
        if any(r.loop.backward for r in obj.born):
            return  # a list of one training step
        kept = [
            (n, path)
            for n, path, _ in found
            if isinstance(n, Node) and n.graph is False and n.card and n.output and not n.scalar
        ]
        if "metric" in obj.label.lower() or not any(first in n.born for n, _ in kept):
            return
        if not loop.kind and not _of_a_dataset(loop):
            return  # the pieces of one image, the samples of one batch
        if stops_when_full(loop.node):
            return
        for n, path in kept:
            if _same_keys(self.file, loop.node, path[-1].where[-1][1]):
                continue
            if second in n.born and not _is_numpy(self.file, path[-1].where[-1][1]):
                yield from self.tell(
                    "outputs-kept-on-card",
                    _handed(path[-1].where, n.where),
                    "`%s` of every batch is kept in `%s` on the card: it grows with the dataset"
                    % (n.label or "the output", obj.label or "a list"),
                    hint=_vectors(n.label, obj.label, _put_name(path[-1].where[-1][1]))
                    or _ids_of_words(loop.node)
                    or not _large(self.file, path[-1].where[-1][1], n.label, obj.label)
                    or _class_scores(self.file, path[-1].where[-1][1], n.label, obj.label)
                    or _one_number_each(self.file, path[-1].where[-1][1], n.label, obj.label)
                    or self._told_before(loop),
                )
                return

    def _told_before(self, loop: Loop) -> bool:
        """Was another container of the same loop told?"""
        before = loop.node in self.gathered
        self.gathered.add(loop.node)
        return before

    def _piled(self, loop: Loop, first: Round, second: Round, obj: Obj, found: Any) -> Any:
        """Outputs of an evaluation that outlive it: the next one adds its own."""
        if not loop.backward or obj.emptied or loop.kind in ("training_step", "forward"):
            return
        kept = [
            (n, path)
            for n, path, _ in found
            if isinstance(n, Node)
            and n.graph is False
            and (n.output or n.kind == "mask")
            and not n.scalar
        ]
        if not any(first in n.born for n, _ in kept):
            return
        for n, path in kept:
            inner = [r.loop for r in n.born[n.born.index(second) + 1 :]] if second in n.born else []
            if any(_over_batches(x) and not x.backward for x in inner):
                yield from self.tell(
                    "outputs-never-cleared",
                    _handed(path[-1].where, n.where),
                    "`%s` of every batch goes into `%s`, and nothing empties it: each evaluation "
                    "adds to those before" % (n.label or "the output", obj.label or "a list"),
                    hint=n.kind == "mask" and not _of_pixels(self.file),
                )
                return

    def _others(self, loop: Loop, first: Round, second: Round, obj: Obj, found: Any) -> Any:
        """Exceptions, models and samples that pile up."""
        kinds: Dict[str, List[Tuple[Any, List[Put]]]] = {}
        for x, path, inside in found:
            if isinstance(x, Node) and x.kind == "exception":
                kinds.setdefault("exception", []).append((x, path))
            elif isinstance(x, Node) and x.of_weights and x.card and not x.graph and not x.scalar:
                kinds.setdefault("copy", []).append((x, path))
            elif (
                isinstance(x, Obj)
                and x.kind == "optimizer"
                # trainers[kind] = trainer: the optimizer is part of something that is used again
                and not any(o.kind == "instance" for o in inside)
            ):
                kinds.setdefault("optimizer", []).append((x, path))
            elif (
                isinstance(x, Obj)
                and x.module
                and x.card
                and (x.copied or inside and not _only_models(inside[-1]))
            ):
                kinds.setdefault("copy", []).append((x, path))
            elif (
                isinstance(x, Node)
                and loop.kind == "dataset"
                and not x.scalar
                and not isinstance(path[0].where[-1][1], ast.AugAssign)  # a counter
            ):
                kinds.setdefault("sample", []).append((x, path))
        for kind, some in kinds.items():
            if not any(first in x.born for x, _ in some):
                continue
            last = [(x, p) for x, p in some if second in x.born]
            if not last:
                continue
            name = obj.label or "a container"
            put = last[0][1][0]
            at = put.where[-1][1]
            if put.how == "cache":
                made = next((f for f in self.file.nodes if getattr(f, "name", "") == name), None)
                at = made.decorator_list[0] if made is not None else at
            if kind == "exception" and not _tries_work(self.file, at):
                continue
            if kind == "exception":
                yield from self.tell(
                    "exception-kept",
                    at,
                    "`%s` keeps the exception of every failure, and with it the frames of the "
                    "failed call and their tensors" % name,
                )
            elif kind == "copy" and missing_key(self.file, at):
                continue
            elif kind == "copy" and (loop.backward or loop.trained):
                yield from self.tell(
                    "model-copies-kept",
                    at,
                    "every round of the loop keeps one more model in `%s`, on its device" % name,
                    hint=isinstance(last[0][0], Obj) and _asked_by_name(self.file, at, name),
                )
            elif kind == "optimizer" and loop.backward:
                yield from self.tell(
                    "optimizers-kept",
                    at,
                    "every round makes an optimizer and keeps it in `%s`: its moments, twice the "
                    "weights for Adam, stay on the card" % name,
                )
            elif kind == "sample":
                yield from self.samples(at, obj, name)

    def samples(self, at: Any, obj: Obj, name: str) -> Iterator[Finding]:
        if obj.emptied or obj.kind == "set" or obj.kind == "deque" and obj.extra:
            return
        if put_back(self.file, at) or keeps_little(self.file, at):
            return
        value = getattr(at, "value", None)
        if _NO_SAMPLES.search(name) or NOTES.search(name) or is_tool(value):
            return
        place = self.file.places.get(at)
        loaders = list(loader_calls(self.file))
        parallel = any(workers_of(c) != 0 for c in loaders)
        yield from self.tell(
            "dataset-cache-per-worker" if parallel else "dataset-cache-grows",
            at,
            "`%s` keeps every sample that is read%s"
            % (name, ", and each worker keeps its own copy" if parallel else ""),
            hint=not loaders
            or not parallel
            and isinstance(value, ast.AST)
            and place is not None
            and place.klass is not None
            and place.function is not None
            and not reads_sample(place.klass, place.function, value),
        )

    # tensors made from their own last value

    def chained(self) -> Iterator[Finding]:
        for loop, first, second, slot, n in self.story.chained:
            if few_rounds(loop.node, self.file) or _is_target(loop, slot.name):
                continue
            if _made_anew(loop.node, slot.name) or _chosen(slot.where[-1][1]):
                continue
            summed = n.used and _sums_batches(loop)  # one backward behind the loop
            unused = self._unused(n) and _over_batches(loop)
            acted = not loop.backward and self._rolled_out(loop, second, n, slot.label)
            if not n.graph or not (loop.backward or unused or summed or acted):
                continue
            older = [
                a
                for a in ancestors(n)
                if first in a.born and a.graph and not a.weight and not a.data
            ]
            if not older:
                continue
            s = slot.where[-1][1]
            name = slot.label or "it"
            if _moved_itself(s) or _through_mask(s):
                continue
            if loop.kind == "forward" and self._begun_elsewhere(s, slot.name):
                continue
            twice = [a for a in older if first in a.used_in and second in a.used_in]
            doubtful = n.doubtful and not n.used or _newest(n, second).doubtful
            if not twice and not acted and doubtful:
                continue
            given = any(a.maker is not None and second in a.born for a in ancestors(n))
            late = loop.conditional if loop.backward else given
            if n.used and late:
                if n.kind != "sum" or not (n.scalar or "loss" in name.lower()):
                    continue
                if _needs_all(self.file, loop.node):
                    continue
                yield from self.tell(
                    "accumulation-keeps-graphs",
                    s,
                    "the losses of several micro-batches are added up before one backward: the "
                    "graphs and activations of all of them live at once",
                )
            elif twice and not loop.conditional:
                if "." in slot.label and cut_or_begun(self.file, slot.label, s):
                    continue
                yield from self.tell(
                    "hidden-state-not-detached",
                    s,
                    "`%s` goes from one iteration into the next with its graph: backward reaches "
                    "back to the first batch" % name,
                    hint=self._step_of_pass(s),
                )
            elif not n.used and not any(x.differentiated for x in n.via):
                if short_window(loop.node, slot.label or slot.name):
                    continue
                if (n.kind == "sum" or n.scalar) and not n.joined and not objects(slot.value):
                    handed = _handed(slot.where, _newest(n, second).where)
                    yield from self.tell(
                        "loss-graph-accumulated",
                        handed,
                        "a loss is summed into `%s` with its graph: the graph of every iteration "
                        "is kept until `%s` is gone" % (name, name),
                        hint=self._given_back(s),
                    )
                    if handed is not s:
                        yield from self.tell(
                            "graph-kept-here",
                            s,
                            "this keeps what line %d hands over with its graph" % handed.lineno,
                        )
                elif higher_order(loop.node):
                    continue
                elif acted or not any(a.doubtful for a in ancestors(n)):
                    yield from self.tell(
                        "graph-kept-in-list",
                        s,
                        "`%s` is made from its own last value and keeps the graph: each "
                        "iteration's graph holds all earlier ones" % name,
                        hint=self._given_back(s),
                    )

    def _handed_back(self, s: Any, name: str) -> bool:
        """outputs = {}; for frame in frames: outputs[frame] = net(x); return outputs: the parts of one
        pass. Not where the loop goes through a dataset.
        """
        place = self.file.places.get(s)
        if (
            place is None
            or place.function is None
            or not place.loops
            or names_data(place.loops[-1])
        ):
            return False
        inside = list(walk(place.function))
        begun = any(isinstance(n, ast.Assign) and name in map(key, targets(n)) for n in inside)
        # joined = torch.cat(outputs); return joined
        names = {name}
        for n in inside:
            if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call):
                if any(isinstance(x, ast.Name) and x.id == name for x in walk(n.value)):
                    names |= {key(t) or "" for t in targets(n)}
        returned = any(
            isinstance(n, ast.Return)
            and n.value is not None
            and any(key(x) in names for x in walk(n.value) if isinstance(x, ast.Name))
            for n in inside
        )
        return begun and returned and not any(_learns(n) for n in inside)

    def _step_of_pass(self, s: Any) -> bool:
        """The same in a method of a network: the loop goes over the frames of one sample."""
        place = self.file.places.get(s)
        if place is None or place.klass is None:
            return False
        own_methods = {f.name for f in place.klass.body if isinstance(f, FUNCTIONS)}
        trains = own_methods & {"training_step", "fit", "train_step", "train_epoch"}
        return "forward" in own_methods and not trains and self._given_back(s)

    def _given_back(self, s: Any) -> bool:
        """for t in range(length): out, state = cell(x, state), in a function that returns what it
        made: the steps of one pass, differentiated by the caller. A method of a network may go
        over anything but data: for h, done in zip(hidden, ends).
        """
        place = self.file.places.get(s)
        if place is None or place.function is None or not place.loops:
            return False
        loop = place.loops[-1]
        of_network = place.klass is not None and place.klass.name in module_classes(self.file)
        counted = isinstance(loop, ast.For) and (
            method_of_iter(loop) in _OF_STEPS or of_network and not names_data(loop)
        )
        inside = list(walk(place.function))
        returns = any(isinstance(n, ast.Return) and n.value is not None for n in inside)
        return counted and returns and not any(_learns(n) for n in inside)

    def _begun_elsewhere(self, s: Any, name: str) -> bool:
        """Another method of the class sets the attribute: a sequence begins there."""
        place = self.file.places.get(s)
        if place is None or place.klass is None:
            return False
        return any(
            key(t) == "self." + name
            for f in place.klass.body
            if isinstance(f, FUNCTIONS) and f.name != "__init__" and f is not place.function
            for n in walk(f)
            if isinstance(n, ast.Assign)
            for t in n.targets
        )

    def windows(self) -> Iterator[Finding]:
        """Containers that are emptied once in several rounds."""
        for loop, obj, put in self.story.windows:
            if not loop.backward or obj.bounded or obj.escaped or few_rounds(loop.node, self.file):
                continue
            if not loop.conditional and not obj.window:
                continue
            given = [n for n in held(put.value) if n.graph and not n.weight and not n.data]
            s = put.where[-1][1]
            if obj.differentiated and any(n.scalar for n in given) and _over_batches(loop):
                yield from self.tell(
                    "accumulation-keeps-graphs",
                    s,
                    "the losses of several micro-batches wait in `%s` for one backward: the graphs "
                    "and activations of all of them live at once" % (obj.label or "a list"),
                )
            elif (
                not obj.differentiated and given and (obj.window or not any(n.used for n in given))
            ):
                handed = _handed(put.where, given[0].where)
                yield from self.tell(
                    "graph-kept-in-list",
                    handed,
                    "`%s` is kept in `%s` with its graph until that is emptied, once in many "
                    "rounds" % (given[0].label or "a tensor", obj.label or "a container"),
                )
                if handed is not s:
                    yield from self.tell(
                        "graph-kept-here",
                        s,
                        "this keeps what line %d hands over with its graph" % handed.lineno,
                    )

    def joined(self) -> Iterator[Finding]:
        """bank = torch.cat([bank, keys]) in every round"""
        for loop, slot, n in self.story.joined:
            if not n.card or not (n.output or loop.backward) or n.scalar:
                continue
            on_card = uses_card(self.file) or self.m.library.card
            if not loop.backward and not (_of_a_dataset(loop) and on_card):
                continue
            s = slot.where[-1][1]
            if stops_when_full(loop.node):
                continue
            if slot.label and not _reads(s, slot.label):
                continue  # made anew from something else
            if _moved_itself(s) or _only_moved(s):
                continue  # cut or moved behind the loop: nothing is joined here
            if slot.label and (_cut_back(self.file, s, slot.label) or _first_out(s, slot.label)):
                continue
            if slot.label and _begun_in(loop.node, slot.label):
                continue
            if slot.label and _begun_on_host(self.file, s, slot.label):
                continue  # what is joined to it lies there too
            place = self.file.places.get(s)
            own = place is not None and place.klass is not None and "." in slot.label
            yield from self.tell(
                "module-keeps-tensors" if own and loop.backward else "outputs-kept-on-card",
                s,
                "`%s` grows by one more batch in every round and nothing cuts it" % slot.label,
                hint=not loop.backward
                and (
                    _vectors(slot.label)
                    or not _large(self.file, s, n.label, slot.label)
                    or self._told_before(loop)
                )
                or _one_number_each(self.file, s, n.label, slot.label)
                or _class_scores(self.file, s, n.label, slot.label)
                or not _of_pixels(self.file)
                and any(p.kind == "mask" for p in pieces(n)),
            )

    def linked(self) -> Iterator[Finding]:
        for loop, slot, n in self.story.linked:
            if not loop.backward or n.doubtful and not n.used or few_rounds(loop.node, self.file):
                continue
            yield from self.tell(
                "graph-kept-in-list",
                slot.where[-1][1],
                "`%s` is kept with its graph in a record that points to the one before: the graph "
                "of every iteration stays in memory" % (n.label or "a tensor"),
            )

    # evaluation

    def evaluation(self) -> Iterator[Finding]:
        if grad_off_for_good(self.file):
            return
        frozen = _frozen(self.file) - {None}
        # A function that trains and evaluates is judged by each way that leads to it.
        sites: Dict[Any, List[Tuple[bool, Any, Set[Node]]]] = {}
        for where, quiet, rounds, given in self.story.forwards:
            way = tuple(s for _, s, _ in where)
            sites.setdefault(way, []).append((quiet, rounds, given))
        trained = {way[-1] for way, c in sites.items() if not all(quiet for quiet, _, _ in c)}
        for way, calls in sites.items():
            s = way[-1]
            if not all(quiet for quiet, _, _ in calls) or _of_both_modes(self.file, s):
                continue
            if any(r.loop.backward for _, rounds, _ in calls for r in rounds[-1:]):
                continue
            if any(isinstance(n, ast.Call) and key(n.func) in frozen for n in walk_here(s)):
                continue
            given = set().union(*[g for _, _, g in calls])
            if any(n.used for n in given) or given & self.m.returned:
                continue
            place = self.file.places[s]
            if place.no_grad or place.loops and other_branch_is_quiet(self.file, place.loops[-1]):
                continue
            if place.loops and _gradients_wanted(place.loops[-1]) or _calls_no_model(s):
                continue
            if len(way) > 1 and _also_quiet(self.file, way[-2]):
                continue
            function = place.function
            if function is not None and any(begins_with_grad(n) for n in walk(function)):
                continue
            if len(way) > 1 and s in trained and not self.file.places[s].loops:
                s = way[-2]  # a helper of both phases: no_grad belongs around its call
            yield from self.tell(
                "eval-without-no-grad",
                s,
                "the model is in eval mode, but its forward pass still builds the graph: each "
                "batch holds its activations for a backward that never comes",
                hint=of_this_round(self.file, s)
                or measures(self.file, s)
                or _gives_log_probs(function)
                or len(way) == 1
                and _of_a_module(self.file, s)
                or not any(rounds for _, rounds, _ in calls),
            )

    # what the library saw

    def facts(self) -> Iterator[Finding]:
        used = any(kind == "whole_used" for kind, _, _ in self.story.facts)
        moved: Set[Any] = set()
        for kind, where, what in sorted(self.story.facts, key=lambda f: f[0] == "perhaps retraced"):
            s = where[-1][1] if where else None
            if kind == "keras":
                yield from self._keras(where, *what)
            elif kind in ("retraced", "perhaps retraced") and s is not None:
                yield from self.tell(
                    "tf-function-retraced",
                    s,
                    "`%s` gets a Python number that changes: every new value traces a new graph, "
                    "and all are kept" % what,
                    hint=kind == "perhaps retraced",
                )
            elif kind == "traced" and s is not None:
                yield from self.tell(
                    "tf-function-retraced",
                    s,
                    "`%s` is a new tf.function in every round of the loop: each is traced again "
                    "and its graph is kept" % what.label,
                )
            elif kind == "whole_on_card" and what.batched and not used:
                if SMALL.search(what.label or "") or _all_small(s):
                    continue
                place = self.file.places.get(s)
                at = (place.function if place is not None else None, what.whole)
                if at in moved:
                    continue  # one finding for all parts of a file
                moved.add(at)
                yield from self.tell(
                    "dataset-on-gpu",
                    s,
                    "the whole content of a file (%s) is moved to the GPU, where it takes the room "
                    "of activations" % what.whole,
                    hint=not _trains(self.file),
                )
            elif kind == "thrown away":
                yield from self.tell(
                    "retain-graph-in-loop",
                    s,
                    "this backward also runs through `%s`, whose gradients are cleared before any "
                    "step uses them: give it a detached tensor, and no graph needs to be retained"
                    % (what.label or "another model"),
                )
            elif kind == "checkpoint":
                yield from self._checkpoint(s, what)

    def retained(self) -> Iterator[Finding]:
        """backward(retain_graph=True), and no later backward goes through that graph"""
        sites: Dict[Any, List[Any]] = {}
        for where, graph, again, rounds in self.story.retained:
            sites.setdefault(where[-1][1], []).append((graph, again, rounds))
        for s, calls in sites.items():
            if any(again or not _plain(graph) for graph, again, _ in calls):
                continue
            if len({r.loop.node for _, _, rounds in calls for r in rounds[-1:]}) != 1:
                continue
            if not any(r.loop.backward for _, _, rounds in calls for r in rounds):
                continue
            yield from self.tell(
                "retain-graph-in-loop",
                s,
                "the graph is retained, and no later backward goes through it: its activations "
                "stay until the next round replaces them",
                hint=not self.file.places[s].loops and not _steps(self.file.places[s].function),
            )

    def _keras(self, where: Where, model: Obj, rounds: Any) -> Iterator[Finding]:
        if not model.trained:
            return
        loops = [r.loop for r in rounds if not r.loop.cleared and r.loop.trained]
        if not loops or any(r.loop.cleared for r in rounds):
            return
        at = [s for _, s, number in where if number == loops[-1].frame.number]
        yield from self.tell(
            "keras-model-in-loop",
            at[-1] if at else where[-1][1],
            "every round of the loop builds a Keras model, and the global state keeps all of them",
            hint=bool(at)
            and (
                rounds_around(self.file, at[-1]) < FEW
                or _gathered(self.file, at[-1])
                or at[-1] is where[-1][1]
                and _appended(at[-1])
            ),
        )

    def _checkpoint(self, s: Any, what: Node) -> Iterator[Finding]:
        if ends_there(self.file, s) or is_the_model(self.file, s):
            return
        name = next(("`%s`" % key(t) for t in targets(s) if key(t)), "a variable")
        if what.label == "card":
            yield from self.tell(
                "checkpoint-kept",
                s,
                "the checkpoint is loaded to the card, and %s keeps that second copy of the "
                "weights%s while the model trains"
                % (name, " and optimizer state" if has_optimizer(self.file) else ""),
            )
        else:
            yield from self.tell(
                "checkpoint-without-map-location",
                s,
                "torch.load without map_location puts the checkpoint on the card it was saved "
                "from, and %s keeps that copy while the model trains" % name,
                hint=published(self.file, s),
            )


_ACTS = frozenset("log_prob sample act select_action choose_action multinomial argmax".split())


def _acts(file: Any) -> bool:
    """Does the file choose actions? Else what is gathered may be for a loss after all."""
    return any(isinstance(n, ast.Call) and method(n) in _ACTS for n in file.nodes)


def _trains(file: Any) -> bool:
    return any(
        isinstance(n, ast.Call)
        and isinstance(n.func, ast.Attribute)
        and n.func.attr in ("backward", "fit", "step", "train")
        for n in file.nodes
    )


def _plain(graph: Set[Node]) -> bool:
    """A graph that is known from the loss down to the models that made it."""
    return any(n.maker is not None for n in graph) and not any(
        n.graph is None or n.doubtful for n in graph
    )


def _all_small(s: Any) -> bool:
    """y_train = torch.tensor(y).to(device)"""
    names = [key(t) for t in targets(s)] if isinstance(s, ast.Assign) else []
    return bool(names) and all(n is not None and SMALL.search(n) for n in names)


def _is_target(loop: Loop, name: str) -> bool:
    """What the loop itself sets in every round does not come from the round before."""
    goal = getattr(loop.node, "target", None)
    return goal is not None and any(isinstance(n, ast.Name) and n.id == name for n in walk(goal))


def _gathered(file: Any, s: Any) -> bool:
    """model = build(); ...; members.append(model): all of them are wanted"""
    made = {k for k in map(key, targets(s)) if k} if isinstance(s, ast.Assign) else set()
    loops = file.places[s].loops if s in file.places else ()
    return any(
        isinstance(n, ast.Call) and method(n) == "append" and any(key(a) in made for a in n.args)
        for loop in loops[-1:]
        for n in walk(loop)
    )


def _appended(s: Any) -> bool:
    """models.append(keras.Sequential(...)): an ensemble, whose models must stay"""
    return isinstance(s, ast.Expr) and isinstance(s.value, ast.Call) and method(s.value) == "append"


def _of_a_module(file: Any, s: Any) -> bool:
    """A method of a model that nothing here calls: its caller may have switched gradients off."""
    place = file.places.get(s)
    klass = place.klass if place is not None else None
    if klass is None:
        return False
    return klass.name in module_classes(file) or any(
        (file.dotted(b) or "").endswith(("Model", "Module", "Net", "Network")) for b in klass.bases
    )


def _of_both_modes(file: Any, s: Any) -> bool:
    """forward() of a wrapper serves training too: no_grad belongs where it is called."""
    place = file.places.get(s)
    return place is not None and getattr(place.function, "name", "") in ("forward", "__call__")


def _moved_itself(s: Any) -> bool:
    """self.scale = self.scale.to(x.device): it is what it was"""
    value = getattr(s, "value", None)
    return (
        isinstance(s, ast.Assign)
        and isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and value.func.attr in ("to", "cuda", "cpu", "type", "float", "half", "contiguous")
        and any(key(t) == key(value.func.value) for t in targets(s))
    )


def _enter_in(m: Machine, f: Obj, klass: Klass) -> None:
    _enter(m, f, _made(m, klass))


def _made_anew(loop: Any, name: str) -> bool:
    """if a: loss = f() elif b: loss = g(): one of the branches is taken in every round, though no
    else says so.
    """
    inside = [n for n in walk(loop) if isinstance(n, (ast.For, ast.While))] if loop else []
    for s in [x for n in inside for x in n.body]:
        branches = []
        while isinstance(s, ast.If):
            branches.append(s.body)
            if len(s.orelse) != 1:
                break
            s = s.orelse[0]
        if len(branches) > 1 and all(_sets(b, name) for b in branches):
            return True
    return False


def _chosen(s: Any) -> bool:
    """best = min(best, loss): one of the two, and the graph of one round with it"""
    value = s.value if isinstance(s, ast.Assign) else None
    return (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Name)
        and value.func.id in ("min", "max")
    )


def _sets(body: Any, name: str) -> bool:
    return any(
        isinstance(n, ast.Assign)
        and any(key(t) == name for t in targets(n))
        and not _reads(n, name)
        for s in body
        for n in walk(s)
    )


def _memo(obj: Obj, loop: Loop) -> bool:
    """A cache that is asked in every round, differentiated each time and never emptied."""
    return obj.memo and not obj.emptied and loop.backward and not loop.conditional


# What people call the tensors among the results of a model.
_TENSORS = re.compile(r"loss|logit|out|pred|prob|feat|emb|hidden|repr|state|latent|attn", re.I)


def _captured(f: Obj, first: Round, second: Round) -> Iterator[Value]:
    """What a function keeps alive: its defaults, what a partial was given, the object of a method,
    the variables around it where they are of this round.
    """
    if f.kind == "function":
        for name, value in (f.extra or {}).items():
            if not name.startswith("@"):
                yield value
        closure = f.closure
        if closure is not None and (first in closure.born or second in closure.born):
            used = {n.id for n in walk(f.function) if isinstance(n, ast.Name)}
            for name in used & set(closure.vars):
                yield closure.vars[name]
    elif f.kind == "partial":
        yield from f.extra[1].all()
    elif f.kind == "bound" and f.receiver is not None:
        yield frozenset([f.receiver])


def _handed(put: Where, made: Where) -> Any:
    """The statement that hands a tensor over: the deepest one of the way to where it is put that
    stands in a call which also led to where it was made.
    """
    numbers = {number for _, _, number in made}
    at = [s for _, s, number in put if number in numbers]
    return at[-1] if at else put[-1][1]


def _newest(n: Node, second: Round) -> Node:
    """What was added in the second round."""
    for a in n.inputs:
        if second in a.born and a.graph:
            return a
    return n


_HOW_MANY = re.compile(r"batch_?(num|size|len)$|_size$", re.I)  # how large, not which
_LOADER = re.compile(r"loader|batches$|_dl$|^dl$", re.I)


def _sums_batches(loop: Loop) -> bool:
    """A loop over the batches of an epoch, not over the parts of one."""
    if any(o.kind == "loader" for o in objects(loop.over)):
        return True
    if any(o.kind == "generator" and _LOADER.search(o.label) for o in objects(loop.over)):
        return True
    over = getattr(loop.node, "iter", None)
    return over is not None and any(
        _LOADER.search(key(n) or "")
        for n in walk_here(over)
        if isinstance(n, (ast.Name, ast.Attribute))
    )


# Containers that remember which samples there were, not the samples.
_NO_SAMPLES = re.compile(r"(^|_|\.)(ids?|keys?|hash\w*|counts?|stats?|vocab|errors?)$", re.I)
_PIXELS = re.compile(
    r"mask|segm|(^|_)m?iou|(^|_)dice|pixel|depth|heatmap|voxel|unet|deeplab|contour", re.I
)


# Vectors that are gathered to be searched or compared on the card: neighbours, prototypes, memory.
_FEATURES = re.compile(
    r"feat|embed|emb(s|$)|latent|bank|memory|proto|centroid|codes?($|_)|repr|(^|_)[zwhk]s?($|_)|"
    r"support|gallery|queries|keys$",
    re.I,
)


# Outputs with a number for each pixel, each word or each frame: by what the function speaks of, and
# by what they are called themselves.
_EXTENDED = re.compile(
    r"segm|(^|_)dice|(^|_)m?iou|pixel|depth|voxel|unet|deeplab|vocab|causal|hidden|recon|heat_?map|"
    r"saliency|restor|denois|inpaint|super_?res|render|spectro|perplex|seq2seq|optical_?flow",
    re.I,
)
_PICTURES = re.compile(
    r"image|img|picture|video|frame|wave|(^|_)(mels?|maps?|attn|masks?|volumes?|samples|series)($|_)|"
    r"attention|gener|fake|whole|sequence|words|texts|everything",
    re.I,
)


def _large(file: Any, s: Any, *labels: Any) -> bool:
    """Does the function, or the name of a model, say that an output has many numbers? How large it
    is otherwise is not in the file.
    """
    place = file.places.get(s)
    where = place.function if place is not None and place.function is not None else file.tree
    words = _words(where) | {getattr(where, "name", "")} | {x for x in labels if x}
    return (
        any(_EXTENDED.search(w) for w in words)
        or any(_PICTURES.search(x) for x in [getattr(where, "name", ""), *labels] if x)
        or place is not None
        and place.klass is not None
        and any(_PIXELS.search(w) for w in _words(place.klass))
        or any(_LARGE_MODEL.search(w) for w in _words(file.tree))
    )


def _ids_of_words(loop: Any) -> bool:
    """out = model.generate(ids): one number for each word"""
    return any(isinstance(n, ast.Call) and method(n) == "generate" for n in walk(loop)) and not any(
        isinstance(n, ast.keyword)
        and re.match(r"output_(scores|hidden|attent|logits)", n.arg or "")
        for n in walk(loop)
    )


def _vectors(*labels: Any) -> bool:
    """Features: a small vector a sample, seldom as much as one batch of activations"""
    return any(_FEATURES.search(x.split(".")[-1]) for x in labels if x)


def _put_name(s: Any) -> str:
    """features of rows.append(features.detach())"""
    call = s.value if isinstance(s, ast.Expr) else None
    value = call.args[-1] if isinstance(call, ast.Call) and call.args else None
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        value = value.func.value
    return value.id if isinstance(value, ast.Name) else ""


def _of_pixels(file: Any) -> bool:
    """One number for each pixel: what argmax gives is as large as an image."""
    names = _words(file.tree) | {c.name for c in file.nodes if isinstance(c, ast.ClassDef)}
    of_text = any("token" in n.lower() for n in names)  # a mask there hides padding
    return any(_PIXELS.search(n.replace("mask", "") if of_text else n) for n in names)


# A number for each class: what a classifier gives, and what is done with it.
_SCORES = re.compile(
    r"logit|prob|score|softmax|sigmoid|y_?(hat|pred)|(^|_)(preds?|predict\w*|class\w*)($|_)", re.I
)
# Such metrics take a row for each sample. Segmentation and language models know argmax, softmax
# and accuracy too: these prove nothing.
_OF_SAMPLES = re.compile(
    r"roc_|(^|_)auc|auroc|(^|_)f1(_|$)|f1_?score|confusion|classification_report|average_precision|"
    r"(precision|recall|accuracy)_score|precision_recall|"
    r"(Sequence|Image|Audio)Classification|MNIST|CIFAR|SVHN|ImageNet",
)
_CLASSES = re.compile(r"^(n|num|nb|number_of)_?(class(es)?|labels?)$|^out_features$", re.I)
FEW_CLASSES = 1000
_LARGE = re.compile(
    r"segm|(^|_)dice|pixel|depth|voxel|unet|deeplab|vocab|causal|hidden|recon|gener", re.I
)
_LARGE_MODEL = re.compile(r"CausalLM|LMHead|Seq2Seq|Segmentation|unet|deeplab", re.I)


def _class_scores(file: Any, s: Any, *labels: Any) -> bool:
    """Some numbers a sample: by their names, and by proof that there are few classes. The function
    does not speak of one for each pixel or each word.
    """
    place = file.places.get(s)
    where = place.function if place is not None and place.function is not None else file.tree
    words = _words(where)
    called = {method(n) for n in walk_here(s) if isinstance(n, ast.Call)}
    here = {n.id for n in walk_here(s) if isinstance(n, ast.Name)} | {x for x in labels if x}
    return (
        any(_SCORES.search(x) for x in here | called)
        and not any(_LARGE.search(w) for w in words | {getattr(where, "name", "")})
        and not any(_LARGE_MODEL.search(w) for w in _words(file.tree))
        and (
            bool((called | set(labels)) & {"softmax", "sigmoid"})
            and not _of_pixels(file)
            or _one_column(s)
            or _few_classes(file)
        )
    )


# One number a sample, unless a number for each pixel is meant.
_NUMBERS = re.compile(
    r"(^|_)(err(or)?|mse|mae|rmse|nll|elbo|energy|entropy|dist(ance)?|norm|conf(idence)?|loss|len|"
    r"length|margin|anomaly_score|reward|value|return|logp(rob)?|log_?prob|log_?likelihood)(s|es)?$",
    re.I,
)


# Models that give text give lists of strings.
_TEXTS = re.compile(
    r"caption|sentence|transcri|(^|_)(texts?|strings?|words|answers?|hyps?)($|_)", re.I
)
_MAPS = re.compile(r"pixel|heat|(^|_)maps?($|_)|segm|voxel|depth|token|vocab", re.I)


def _one_number_each(file: Any, s: Any, *labels: Any) -> bool:
    """errors.append(error_of(images)), in a function that does not speak of maps"""
    place = file.places.get(s)
    where = place.function if place is not None and place.function is not None else file.tree
    named = {x for x in labels if x} | {n.id for n in walk_here(s) if isinstance(n, ast.Name)}
    if any(_TEXTS.search(x) for x in named):
        return True
    return any(_NUMBERS.search(x) for x in named) and not any(
        _MAPS.search(w) for w in _words(where) | {getattr(where, "name", "")}
    )


def _one_column(s: Any) -> bool:
    """chances.append(scores[:, 1])"""
    for n in walk_here(s):
        index = getattr(n, "slice", None)
        index = getattr(index, "value", index)  # Python 3.8 wraps an index, and the parts of one
        parts = getattr(index, "elts", None) or getattr(index, "dims", None)
        if parts and isinstance(getattr(parts[-1], "value", None), (int, ast.Constant)):
            return True
    return False


@once
def _few_classes(file: Any) -> bool:
    """A metric of samples, a model or a dataset for them, num_classes=10"""
    return any(_OF_SAMPLES.search(w) for w in _words(file.tree)) or any(
        _CLASSES.match(name.split(".")[-1]) and _is_few(value)
        for n in file.nodes
        for name, value in _given(n)
    )


def _given(node: Any) -> List[Any]:
    """(name, value) of an assignment or of an argument"""
    if isinstance(node, ast.keyword):
        return [(node.arg or "", node.value)]
    if isinstance(node, ast.Assign):
        return [(key(t) or "", node.value) for t in targets(node)]
    return []


def _is_few(node: Any) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value <= FEW_CLASSES


@once
def _words(tree: Any) -> Set[str]:
    """All names in a piece of code."""
    return {
        getattr(n, "id", None) or getattr(n, "attr", None) or getattr(n, "arg", None) or ""
        for n in walk(tree)
        if isinstance(n, (ast.Name, ast.Attribute, ast.arg))
    }


_EMPTY = ("empty", "zeros", "tensor", "Tensor", "FloatTensor", "ones")


def _begun_on_host(file: Any, s: Any, name: str) -> bool:
    """means = torch.empty((0, width)), and nothing moves it to the card"""
    place = file.places.get(s)
    within = place.function if place is not None and place.function is not None else file.tree
    begun = [
        a.value
        for a in walk(within)
        if isinstance(a, ast.Assign) and a is not s and any(key(t) == name for t in targets(a))
    ]
    return bool(begun) and all(
        isinstance(v, ast.Call)
        and method(v) in _EMPTY
        and not any(k.arg == "device" for k in v.keywords)
        for v in begun
    )


def _through_mask(s: Any) -> bool:
    """best[better] = loss[better]: the entries of a tensor are written over, nothing is summed"""
    target = s.targets[0] if isinstance(s, ast.Assign) else None
    if not isinstance(target, ast.Subscript) or not isinstance(s.value, ast.Subscript):
        return False
    index = ast.dump(target.slice).replace("Store", "Load")
    return index == ast.dump(s.value.slice).replace("Store", "Load")


def method_of_iter(loop: ast.For) -> str:
    return method(loop.iter) if isinstance(loop.iter, ast.Call) else ""


def _steps(function: Any) -> bool:
    """Does an optimizer step here? A backward without one is for a look at the gradients."""
    return function is None or any(
        isinstance(n, ast.Call) and method(n) in ("step", "apply_gradients", "minimize")
        for n in walk(function)
    )


def _only_models(holder: Obj) -> bool:
    """(encoder, head): nothing to choose by, so all of them are used"""
    parts = [a for p in contents(holder) for a in p.value]
    return all(isinstance(a, Obj) and bool(a.module) for a in parts)


_WORK = re.compile(
    r"train|fit|step|backward|eval|predict|generat|run|forward|epoch|main|object", re.I
)


def _tries_work(file: Any, s: Any) -> bool:
    """Is what failed a piece of training? try: module.to(device) leaves nothing behind."""
    for t in file.nodes:
        if not isinstance(t, ast.Try) or not any(s in walk(h) for h in t.handlers):
            continue
        called = [n for x in t.body for n in walk(x) if isinstance(n, ast.Call)]
        return any(
            _WORK.search(method(n) or "") or is_model_name(key(n.func) or "") for n in called
        )
    return True


def _written_over(file: Any, loop: Any, s: Any) -> bool:
    """features[p] = h in for p in patients: for batch in batches[p]: one entry for each patient, and
    each batch takes the place of the one before
    """
    target = s.targets[0] if isinstance(s, ast.Assign) else None
    if not isinstance(target, ast.Subscript) or s not in file.places:
        return False
    loops = file.places[s].loops
    used = {n.id for n in walk(target.slice) if isinstance(n, ast.Name)}
    if loop not in loops or not used:
        return False
    if loops[-1] is loop:
        return not used & {
            n.id for n in walk(loop) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        }
    keys = [
        {n.id for t in targets(x) for n in walk(t) if isinstance(n, ast.Name)}
        for x in loops[loops.index(loop) :]
    ]
    return used <= keys[0] or used <= set().union(*keys[1:])


def _same_keys(file: Any, loop: Any, s: Any) -> bool:
    """logits[m] = out[m] in for m in modalities: the next batch overwrites the keys of this one."""
    target = s.targets[0] if isinstance(s, ast.Assign) else None
    if not isinstance(target, ast.Subscript) or s not in file.places:
        return False
    inner = file.places[s].loops
    inner = inner[inner.index(loop) + 1 :] if loop in inner else ()
    used = {n.id for n in walk(target.slice) if isinstance(n, ast.Name)}
    made = {n.id for x in walk(loop) for t in targets(x) for n in walk(t) if hasattr(n, "id")}
    fixed = {
        n.id
        for x in inner
        if isinstance(x, ast.For)
        and not any(isinstance(n, ast.Name) and n.id in made for n in walk(x.iter))
        for n in walk(x.target)
        if isinstance(n, ast.Name)
    }
    return bool(used) and used <= fixed


def _cut_back(file: Any, s: Any, name: str) -> bool:
    """memory = memory[-size:], self.inputs = self.inputs[mask] elsewhere in the class or file"""
    last = name.split(".")[-1]
    return any(
        isinstance(value, ast.Subscript)
        and (key(t) or "").split(".")[-1] == last
        and (key(value.value) or "").split(".")[-1] == last
        for n in file.nodes
        if isinstance(n, ast.Assign) and n is not s
        for t, value in pairs(n)
    )


def _needs_all(file: Any, loop: Any) -> bool:
    """codes.append(z) in the loop, and behind it a loss of torch.cat(codes): one backward through all
    batches is what it is about
    """
    gathered = {
        key(n.func.value)
        for n in walk(loop)
        if isinstance(n, ast.Call)
        and isinstance(n.func, ast.Attribute)
        and n.func.attr == "append"
        and len(n.args) == 1
        and isinstance(n.args[0], ast.Name)
    } - {None}
    place = file.places.get(loop)
    around = place.function if place is not None and place.function is not None else file.tree
    return any(
        isinstance(n, ast.Call)
        and method(n) in ("cat", "stack", "vstack", "concat")
        and n.lineno > (loop.end_lineno or loop.lineno)
        and any(key(a) in gathered for a in n.args)
        and not _cut_soon(around, n)
        for n in walk(around)
    )


def _cut_soon(around: Any, call: ast.Call) -> bool:
    """torch.cat(codes).detach(), torch.cat(codes).cpu().numpy()"""
    return any(
        isinstance(n, ast.Attribute)
        and n.attr in ("detach", "numpy", "cpu", "item", "tolist")
        and any(x is call for x in walk(n.value))
        for n in walk(around)
    )


def _also_quiet(file: Any, s: Any) -> bool:
    """if needs_gradients: return run(loader) with torch.no_grad(): return run(loader): the caller
    chooses, and knows of both
    """
    called = {key(n.func) for n in walk_here(s) if isinstance(n, ast.Call)} - {None}
    function = file.places[s].function if s in file.places else None
    return function is not None and any(
        file.places[x].no_grad
        and any(isinstance(n, ast.Call) and key(n.func) in called for n in walk_here(x))
        for x in walk(function)
        if x in file.places and isinstance(x, (ast.Expr, ast.Assign, ast.Return)) and x is not s
    )


def _asked_by_name(file: Any, s: Any, name: str) -> bool:
    """self.experts[kind] = model, and self.experts[kind](x) elsewhere: each has its own work"""
    stored = isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Subscript)
    return stored and any(
        isinstance(n, ast.Subscript)
        and isinstance(n.ctx, ast.Load)
        and key(n.value) == name
        and not isinstance(n.slice, ast.Slice)
        for n in file.nodes
    )


def _first_out(s: Any, name: str) -> bool:
    """self.recent = torch.cat([self.recent[n:], new])"""
    return any(
        isinstance(n, ast.Subscript)
        and isinstance(n.slice, ast.Slice)
        and n.slice.lower is not None
        and (key(n.value) or "").split(".")[-1] == name.split(".")[-1]
        for n in walk(s)
    )


def _begun_in(loop: Any, name: str) -> bool:
    """states = [] at the head of the loop, states = torch.cat(states) at its end"""
    return any(
        isinstance(n, ast.Assign)
        and isinstance(n.value, ast.List)
        and not n.value.elts
        and any(key(t) == name for t in n.targets)
        for n in (walk(loop) if loop is not None else ())
    )


def _gives_log_probs(function: Any) -> bool:
    """def act(policy, state): ... return action, m.log_prob(action), for a loss that comes later"""
    return function is not None and any(
        isinstance(n, ast.Call) and method(n) == "log_prob" for n in walk(function)
    )


def _only_moved(s: Any) -> bool:
    """bank = bank.detach().cpu()"""
    value = s.value if isinstance(s, ast.Assign) else None
    names = {key(t) for t in targets(s)} if value is not None else set()
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and not value.args:
        value = value.func.value
    return value is not None and key(value) in names - {None}


def _reads(s: Any, name: str) -> bool:
    """bank = torch.cat([bank, keys]): the statement reads what it sets."""
    last = name.split(".")[-1]
    value = getattr(s, "value", None)
    return value is None or any(
        (key(n) or "").split(".")[-1] == last
        for n in walk(value)
        if isinstance(n, (ast.Name, ast.Attribute))
    )


def _is_numpy(file: Any, s: Any) -> bool:
    """Is a variable of the statement given to NumPy beside it? Then it lies on the host."""
    place = file.places.get(s)
    around = place.function if place is not None and place.function is not None else file.tree
    names = {n.id for n in walk_here(s) if isinstance(n, ast.Name)} & {
        t.id
        for n in walk(around)
        if isinstance(n, (ast.Assign, ast.For))
        for target in targets(n)
        for t in walk(target)
        if isinstance(t, ast.Name)
    }
    return any(
        (file.callee(n) or "").startswith("numpy.")
        and names & {a.id for x in n.args for a in walk(x) if isinstance(a, ast.Name)}
        for n in walk(around)
        if isinstance(n, ast.Call) and n is not getattr(s, "value", None)
    )


_DATASET = re.compile(r"load(er)?s?($|_)|_dl$|^dl$|(^|_)(batches|dataset)$|data_?iter", re.I)


def _goes_over(loop: Loop, named: Callable[[str], bool]) -> bool:
    """A loop over a loader, or over something that has such a name."""
    if any(o.kind in ("loader", "generator") for o in objects(loop.over)):
        return True
    over = getattr(loop.node, "iter", None)
    if over is None:
        generators = getattr(loop.node, "generators", None)
        over = generators[0].iter if generators else None
    return over is not None and any(
        named(key(n) or "") for n in walk_here(over) if isinstance(n, (ast.Name, ast.Attribute))
    )


def _of_a_dataset(loop: Loop) -> bool:
    """A loop over the batches of a dataset, not over a part of one that was handed in."""
    return _goes_over(loop, lambda name: bool(_DATASET.search(name.split(".")[-1])))


def _over_batches(loop: Loop) -> bool:
    return _goes_over(
        loop,
        lambda name: bool(
            BATCHES.search(name) and not ONE_BATCH.search(name) and not _HOW_MANY.search(name)
        ),
    )


__all__ = ["check", "FUNCTIONS", "Frame"]


def _learns(n: Any) -> bool:
    """loss.backward(), optimizer.step(); env.step(action) is given something"""
    if not isinstance(n, ast.Call):
        return False
    return method(n) == "backward" or method(n) == "step" and not n.args


# for t in range(length), for y in target.permute(1, 0): the steps of one sequence
_OF_STEPS = frozenset("range trange permute transpose swapaxes unbind chunk split t".split())
