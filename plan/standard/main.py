"""Rehearses a standard step: python -c 'from _memroom_probe.standard import main; main.run(FILE)'.
FILE says what is asked, see SPEC.
"""

import json
import sys
from typing import Any, Dict, List, NoReturn

from . import adapt, fused, loop, losses, models, shard

# config: file or folder; batch; seq, image: 0 is the model's own; precision: fp32, amp_bf16,
# amp_fp16, bf16, fp16; optimizer: as `memroom plan --optimizer`; checkpointing; attn; accumulate;
# clip; keep_grads; train_only: parts of names; lora_*, dora, modules_to_save, load_in,
# double_quant, no_upcast: see adapt.py; loss: plain or fused; autocast: over half weights;
# in_backward; shard, ranks, no_reshard: see shard.py; eval_batch; shortest: lengths from it to
# seq; compile: by torch.compile; steps
SPEC: Dict[str, Any] = {
    "batch": 1,
    "seq": 0,
    "image": 0,
    "precision": "amp_bf16",
    "optimizer": "adamw",
    "checkpointing": False,
    "attn": "",
    "accumulate": 1,
    "clip": False,
    "keep_grads": False,
    "channels_last": False,
    "train_only": [],
    "lora_rank": 0,
    "lora_targets": [],
    "lora_dropout": 0.0,
    "dora": False,
    "modules_to_save": [],
    "load_in": "",
    "double_quant": False,
    "no_upcast": False,
    "loss": "plain",
    "autocast": False,
    "in_backward": False,
    "shard": "",
    "ranks": 1,
    "no_reshard": False,
    "eval_batch": 0,
    "shortest": 0,
    "compile": False,
    "steps": 64,  # a rehearsal ends the process before
}


def run(path: str) -> None:
    with open(path, encoding="utf-8") as file:
        spec = dict(SPEC, **json.load(file))
    try:
        import torch
    except ImportError as e:
        fail("torch cannot be imported: %s" % e)
    torch.set_num_threads(1)  # ways are tried in forked processes, which threads do not survive
    try:
        train(models.read(spec["config"]), spec, torch)
    except models.Unbuildable as e:
        fail(str(e))


def train(values: Dict[str, Any], spec: Dict[str, Any], torch: Any) -> None:
    model = models.make(values, spec, torch)
    for text in spec.pop("notes", ()):
        note(text)
    if spec["channels_last"]:
        model = model.to(memory_format=torch.channels_last)
    speak(model)
    model.train()
    freeze(model, spec["train_only"])
    adapt.apply(model, spec, torch)
    if spec["loss"] == "fused":
        fused.install(model, torch)
    if spec["checkpointing"]:
        checkpoint(model)
        if spec["lora_rank"] and hasattr(model, "enable_input_require_grads"):
            model.enable_input_require_grads()
    say_model(model)
    from .inputs import Batch

    batch = Batch(model, spec, torch)
    way = loop.first_that_works(losses.ways(model, batch), model, batch, spec, torch)
    if way.says:
        note(way.says)
    ranks = shard.Ranks(model, spec, torch)
    if spec["compile"]:
        model.compile()
    loop.steps(model, batch, way, spec, torch, ranks)


def speak(model: Any) -> None:
    """One language, where the model has parts for several and its user must choose."""
    config = getattr(model, "config", None)
    known = getattr(config, "languages", None)
    if hasattr(model, "set_default_language") and known:
        if getattr(config, "default_language", None) is None:
            model.set_default_language(list(known)[0])


def say_model(model: Any) -> None:
    """Class and parameters, all and trained, each once."""
    sizes = {id(p): (p.numel(), p.requires_grad) for p in model.parameters()}
    total = sum(n for n, _ in sizes.values())
    trained = sum(n for n, on in sizes.values() if on)
    sys.stderr.write("memroom: model: %s %d %d\n" % (type(model).__name__, total, trained))
    sys.stderr.flush()


def freeze(model: Any, keep: List[str]) -> None:
    if not keep:
        return
    any_left = False
    for name, p in model.named_parameters():
        p.requires_grad_(any(part in name for part in keep))
        any_left = any_left or p.requires_grad
    if not any_left:
        raise models.Unbuildable(
            "no parameter's name contains %s: nothing would be trained" % " or ".join(keep)
        )


def checkpoint(model: Any) -> None:
    try:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    except (ValueError, AttributeError) as e:
        note("activation checkpointing changes nothing: %s" % e)


def note(text: str) -> None:
    """A line that the answer repeats."""
    sys.stderr.write("memroom: note: %s\n" % text)
    sys.stderr.flush()


def fail(text: str) -> NoReturn:
    sys.stderr.write("memroom: cannot: %s\n" % text)
    sys.stderr.flush()
    sys.exit(3)
