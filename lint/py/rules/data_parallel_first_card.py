"""DataParallel fills the first card.

severity: info
remedy: ddp

The first card holds the gathered outputs, the loss and their gradients beside its own share of
the work.

Instead: Use DistributedDataParallel (one process for each card), or compute the loss inside the
model's forward, so that only numbers are gathered.
"""

import ast
import re
from typing import Iterator

from ..findings import Finding, finding
from ..names import File, key, keyword, method, own, walk


def _may_train(file: File) -> bool:
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


def _only_evaluates(file: File, s: ast.stmt) -> bool:
    """A function that puts the model into eval mode and neither trains nor gives it back."""
    f = file.places[s].function if s in file.places else None
    if f is None:
        return False
    calls = [method(n) for n in walk(f) if isinstance(n, ast.Call)]
    return "eval" in calls and not any(
        c in ("backward", "train", "step", "zero_grad") or "train" in (c or "") for c in calls
    )


def _runs(file: File, name: str) -> bool:
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


def _unwrapped(file: File, name: str) -> bool:
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


def _large_outputs(file: File, s: ast.stmt, call: ast.Call) -> bool:
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


def data_parallel(file: File) -> Iterator[Finding]:
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
            yield finding(
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


def _loss_inside(file: File) -> bool:
    """model(input_ids=ids, labels=labels): each card computes its own loss"""
    return any(isinstance(n, ast.keyword) and n.arg == "labels" for n in file.nodes)


def _has_better(file: File) -> bool:
    """if args.ddp: DistributedDataParallel(model) else: DataParallel(model): whoever starts it chose"""
    return any(
        isinstance(n, (ast.Name, ast.Attribute))
        and (file.dotted(n) or "").split(".")[-1] == "DistributedDataParallel"
        for n in file.nodes
    )


CHECKS = (data_parallel,)
