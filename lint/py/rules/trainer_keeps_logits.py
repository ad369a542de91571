"""Logits of the whole evaluation kept.

severity: warning
remedy: eval_outputs

The Trainer gathers the logits of all evaluation batches before it calls compute_metrics:
samples x sequence x vocabulary x 4 bytes.

Instead: Reduce them batch by batch: preprocess_logits_for_metrics=lambda logits, labels:
logits.argmax(-1). Or move them to the host with eval_accumulation_steps=1. For
sequence-to-sequence models set predict_with_generate=True.
"""

import ast
import re
from typing import Iterator

from ..findings import Finding, finding
from ..names import File, constant, key, keyword, targets, walk
from ..trainers import _arguments

_LANGUAGE = re.compile(
    r"For(CausalLM|Seq2SeqLM|MaskedLM|ConditionalGeneration|SemanticSegmentation|SpeechSeq2Seq|CTC|"
    r"Vision2Seq)|LMHeadModel|FastLanguageModel"
)


def eval_logits(file: File) -> Iterator[Finding]:
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
        and _LANGUAGE.search(n.attr if isinstance(n, ast.Attribute) else n.id)
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
            yield finding(
                "trainer-keeps-logits",
                metrics,
                "compute_metrics needs the predictions, so the Trainer keeps the logits of all "
                "evaluation batches on the card until the end",
                hint=name == "Trainer" and _classifies(file, call),
            )


_SCORES = re.compile(r"Classif|Regress|Reward|ForMultipleChoice")


def _classifies(file: File, call: ast.Call) -> bool:
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


CHECKS = (eval_logits,)
