"""Hugging Face Trainer, PEFT and Lightning: what their defaults keep."""

import ast
import re
from typing import Iterator, List, Optional

from . import rules
from .flow import in_order, is_model_name, module_classes, scopes
from .names import FUNCTIONS, constant, key, keyword, method, targets, walk, walk_here

_LANGUAGE = re.compile(
    r"For(CausalLM|Seq2SeqLM|MaskedLM|ConditionalGeneration|SemanticSegmentation|SpeechSeq2Seq|CTC|"
    r"Vision2Seq)|LMHeadModel|FastLanguageModel"
)


def _arguments(file) -> List[ast.Call]:
    return [
        n
        for n in file.nodes
        if isinstance(n, ast.Call)
        and re.search(
            r"(TrainingArguments|SFTConfig|DPOConfig|ORPOConfig|KTOConfig|RewardConfig)$",
            file.callee(n) or "",
        )
    ]


def _evaluates(call: ast.Call) -> bool:
    for name in ("eval_strategy", "evaluation_strategy"):
        value = keyword(call, name)
        if value is not None and constant(value, "?") != "no":
            return True
    return constant(keyword(call, "do_eval")) is True


def eval_batch(file) -> Iterator[dict]:
    """A small training batch and the default batch of 8 in evaluation"""
    for call in _arguments(file):
        if any(k.arg is None for k in call.keywords) or not _evaluates(call):
            continue
        batch = constant(keyword(call, "per_device_train_batch_size"))
        if (
            isinstance(batch, int)
            and batch < 8
            and keyword(call, "per_device_eval_batch_size") is None
            and constant(keyword(call, "auto_find_batch_size")) is not True
        ):
            yield rules.finding(
                "eval-batch-default",
                call,
                "training uses a batch of %d, but evaluation uses the default "
                "per_device_eval_batch_size of 8" % batch,
            )


def eval_logits(file) -> Iterator[dict]:
    """compute_metrics without preprocess_logits_for_metrics, for models with large outputs"""
    arguments = _arguments(file)
    if any(
        keyword(a, "eval_accumulation_steps") is not None
        or constant(keyword(a, "prediction_loss_only")) is True
        or constant(keyword(a, "batch_eval_metrics")) is True
        or constant(keyword(a, "predict_with_generate"), False) is not False
        or keyword(a, "predict_with_generate") is not None
        and constant(keyword(a, "predict_with_generate")) is not False
        or any(k.arg is None for k in a.keywords)
        for a in arguments
    ):
        return
    large = any(
        isinstance(n, (ast.Name, ast.Attribute))
        and _LANGUAGE.search(getattr(n, "attr", None) or getattr(n, "id", ""))
        for n in file.nodes
    )
    for call in file.nodes:
        if not isinstance(call, ast.Call):
            continue
        name = (file.callee(call) or "").split(".")[-1]
        if name not in ("Trainer", "Seq2SeqTrainer", "SFTTrainer", "UnslothTrainer"):
            continue
        if any(k.arg is None for k in call.keywords):
            continue
        metrics = keyword(call, "compute_metrics")
        if metrics is None or constant(metrics, "?") is None:
            continue
        if keyword(call, "preprocess_logits_for_metrics") is not None:
            continue
        if name == "Seq2SeqTrainer" and _generates(metrics):
            continue
        if large or name in ("Seq2SeqTrainer", "SFTTrainer"):
            yield rules.finding(
                "trainer-keeps-logits",
                metrics,
                "compute_metrics needs the predictions, so the Trainer keeps the logits of all "
                "evaluation batches on the card until the end",
                hint=name == "Trainer" and _classifies(file, call),
            )


_SCORES = re.compile(r"Classif|Regress|Reward|ForMultipleChoice")


def _classifies(file, call: ast.Call) -> bool:
    """model = WrappedForSequenceClassification(base); Trainer(model=model): a few numbers a sample,
    whatever the base gives
    """
    model = keyword(call, "model") or (call.args[0] if call.args else None)
    made = [
        s.value
        for s in file.statements
        if isinstance(s, ast.Assign) and any(key(t) == key(model) for t in targets(s))
    ]
    return any(
        isinstance(n, (ast.Name, ast.Attribute))
        and _SCORES.search(n.attr if isinstance(n, ast.Attribute) else n.id)
        for value in made
        if isinstance(value, ast.Call)
        for n in walk(value.func)
    )


def _generates(metrics: ast.expr) -> bool:
    """compute_metrics=f if args.predict_with_generate else None: token ids, no logits"""
    return isinstance(metrics, ast.IfExp) and any(
        (key(n) or "").endswith("predict_with_generate")
        for n in walk(metrics.test)
        if isinstance(n, (ast.Name, ast.Attribute))
    )


def lightning_outputs(file) -> Iterator[dict]:
    """training_step returns tensors and training_epoch_end gets them all"""
    for name in module_classes(file):
        c = file.classes[name]
        by_name = {f.name: f for f in c.body if isinstance(f, FUNCTIONS)}
        if "training_epoch_end" not in by_name or "training_step" not in by_name:
            continue
        hit = _returns_more(by_name, by_name["training_step"], 2)
        if hit is not None:
            yield rules.finding(
                "lightning-keeps-step-outputs",
                hit,
                "training_epoch_end makes Lightning keep what every training_step returns, "
                "until the epoch ends",
            )


def _returns_more(by_name, function, depth: int) -> Optional[ast.stmt]:
    """The return of a dict that holds a tensor beside the loss."""
    for s in in_order(function.body):
        if not isinstance(s, ast.Return) or s.value is None:
            continue
        if isinstance(s.value, ast.Dict):
            for k, v in zip(s.value.keys, s.value.values):
                if constant(k, "?") in ("loss", "log", "progress_bar"):
                    continue
                if _may_be_tensor(v) and not _plain_number(function, v):
                    return s
        if isinstance(s.value, ast.Call) and depth:
            called = key(s.value.func) or ""
            inner = "forward" if called == "self" else called.replace("self.", "", 1)
            if inner in by_name:
                hit = _returns_more(by_name, by_name[inner], depth - 1)
                if hit is not None:
                    return hit
    return None


def _plain_number(function, value) -> bool:
    """took = time.perf_counter() - began; rate = float(x); n = len(batch)"""
    made = [
        n.value
        for n in walk(function)
        if isinstance(n, ast.Assign) and any(key(t) == key(value) for t in n.targets)
    ]
    return bool(made) and all(
        isinstance(m, ast.Constant)
        or isinstance(m, ast.Call)
        and method(m) in ("float", "int", "len", "item", "time", "perf_counter")
        or isinstance(m, ast.BinOp)
        and any(isinstance(n, ast.Call) and method(n) in ("time", "perf_counter") for n in walk(m))
        for m in made
    )


def _may_be_tensor(value) -> bool:
    if isinstance(value, ast.Call):
        return method(value) not in ("item", "detach", "cpu", "len", "int", "float", "tolist")
    return isinstance(value, (ast.Name, ast.Attribute, ast.Subscript, ast.BinOp))


def kbit_upcast(file) -> Iterator[dict]:
    """prepare_model_for_kbit_training"""
    for call in file.nodes:
        if isinstance(call, ast.Call) and (file.callee(call) or "").split(".")[-1] in (
            "prepare_model_for_kbit_training",
            "prepare_model_for_int8_training",
        ):
            yield rules.finding(
                "kbit-upcast",
                call,
                "this upcasts every weight that is not quantized to float32: "
                + ("norms and embeddings" if _without_head(file) else _WITH_HEAD),
            )


_WITH_HEAD = "norms, embeddings, lm_head, and with it the logits"
_HEADLESS = re.compile(r"^AutoModel$|For(Sequence|Token|Image|Audio)Classification$|^SEQ_CLS$")


def _without_head(file) -> bool:
    """A classifier or a bare encoder: no logits of a vocabulary"""
    names = {
        getattr(n, "attr", None) or getattr(n, "id", "")
        for n in file.nodes
        if isinstance(n, (ast.Name, ast.Attribute))
    }
    return any(_HEADLESS.search(n) for n in names) and not any("CausalLM" in n for n in names)


def model_search(file) -> Iterator[dict]:
    """Trials of a search in one process: Optuna objectives and hyperparameter_search"""
    for call in file.nodes:
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        if call.func.attr == "hyperparameter_search":
            backend = constant(keyword(call, "backend"), "optuna")
            if backend in ("optuna", "sigopt", "wandb"):
                yield rules.finding(
                    "trials-share-process",
                    call,
                    "all trials run in one process: the model and the optimizer state of the "
                    "previous trial are still alive when model_init builds the next",
                )
        elif call.func.attr == "optimize" and "optuna" in file.modules and call.args:
            yield from _objective(file, call)


def trials_keep_models(file) -> Iterator[dict]:
    """models.append(model) or trial.set_user_attr('model', model) in an Optuna objective"""
    if "optuna" not in file.modules:
        return
    objectives = {
        key(c.args[0])
        for c in file.nodes
        if isinstance(c, ast.Call) and method(c) == "optimize" and c.args
    }
    for scope in scopes(file):
        function = scope.function
        if function is None or not (
            function.name in objectives
            or function.name == "objective"
            or any(a.arg == "trial" for a in function.args.args)
        ):
            continue
        made = {
            k
            for s in scope.statements
            if isinstance(s, ast.Assign) and isinstance(s.value, ast.Call)
            for k in map(key, targets(s))
            if k and (k in scope.modules or is_model_name(k))
        }
        own_names = {key(t) for s in scope.statements for t in targets(s)}
        for s in scope.statements:
            value, where = _handed_on(s, own_names)
            if value is not None and key(value) in made:
                yield rules.finding(
                    "model-copies-kept",
                    s,
                    "every trial leaves its model `%s` in %s: the models of all trials stay in "
                    "memory" % (key(value), where),
                )


def _handed_on(s, own_names):
    """(value, container) of what a statement puts into something from outside the function."""
    if isinstance(s, ast.Expr) and isinstance(s.value, ast.Call):
        call = s.value
        if method(call) == "set_user_attr" and len(call.args) > 1:
            return call.args[1], "the study"
        if (
            method(call) in ("append", "add", "appendleft", "put")
            and call.args
            and isinstance(call.func, ast.Attribute)
        ):
            holder = key(call.func.value)
            if holder and holder not in own_names:
                value = call.args[-1]
                if isinstance(value, ast.Tuple):
                    named = [e for e in value.elts if key(e) and is_model_name(key(e))]
                    value = named[0] if named else value
                return value, "`%s`" % holder
    if isinstance(s, ast.Assign) and len(s.targets) == 1:
        target = s.targets[0]
        if isinstance(target, ast.Subscript) and key(target) is None:
            holder = key(target.value)
            if holder and holder not in own_names:
                return s.value, "`%s`" % holder
    return None, ""


def _objective(file, call) -> Iterator[dict]:
    if constant(keyword(call, "gc_after_trial")) is True:
        return
    function = file.functions.get(key(call.args[0]) or "")
    if function is None:
        return
    frees = any(
        isinstance(n, ast.Call) and (file.callee(n) or "") == "gc.collect" for n in file.nodes
    )
    if frees:
        return
    for node in sorted(
        (n for n in walk_here(function) if isinstance(n, ast.Call)), key=lambda n: n.lineno
    ):
        name = (file.callee(node) or "").split(".")[-1]
        if (
            name.endswith("Trainer")
            or name == "from_pretrained"
            and "AutoModel" in (file.callee(node) or "")
        ):
            whose = (file.callee(node) or "").split(".")[0]
            yield rules.finding(
                "trials-share-process",
                node,
                "every trial builds a model in the same process, and a Trainer's reference cycles "
                "keep the previous trial's model alive until Python collects them",
                hint=whose not in ("transformers", "lightning", "pytorch_lightning", "trl"),
            )
            return
