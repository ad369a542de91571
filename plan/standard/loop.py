"""The loop: choose a way that works, then train with it."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from ..rehearse import cudnn, waiting
from .models import Unbuildable

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module, Parameter
    from torch.optim import Optimizer

    from .inputs import Batch
    from .losses import Way
    from .shard import Ranks


def autocast(spec: dict[str, Any], torch: Any) -> AbstractContextManager[Any]:
    precision = spec["precision"]
    if spec["autocast"] or spec["load_in"] and not spec["no_upcast"]:
        precision = "amp_" + precision.replace("amp_", "")
    half = {"amp_bf16": torch.bfloat16, "amp_fp16": torch.float16}.get(precision)
    if spec["shard"] == "fsdp":  # whose own policy casts
        half = None
    answer: AbstractContextManager[Any] = torch.autocast(
        "cuda", half or torch.bfloat16, enabled=half is not None
    )
    return answer


CRASHED = "the trial crashed"

# How often a way is tried whose process ends without a word. A fork of a program with threads can
# die by chance, and a weaker way would then be taken for the model's own.
TRIES = 3


def first_that_works(
    ways: list[Way], model: Module, batch: Batch, spec: dict[str, Any], torch: Any
) -> Way:
    """The first way whose forward and backward pass run. Each is tried in a process of its own, so
    that what a failed one allocates is not recorded.
    """
    errors = []
    for way in ways:
        for _ in range(TRIES):
            error = tried(way, model, batch, spec, torch)
            if error != CRASHED:
                break
        if error is None:
            return way
        if "no part" not in error:
            errors.append(error)
    if spec["precision"] != "fp32" and any("Unsupported dtype" in e for e in errors):
        spec["precision"] = "fp32"  # a Fourier transform, say
        batch.float = torch.float32
        model.float()
        way = first_that_works(ways, model, batch, spec, torch)
        text = "it does not run in half precision (%s): this is single precision" % errors[0]
        way.says = "; ".join(filter(None, (way.says, text)))
        return way
    raise Unbuildable(
        "no way to call its forward pass was found (%s): write a script with your own batches and "
        "use memroom plan --rehearse" % "; ".join(dict.fromkeys(errors))
    )


def tried(way: Way, model: Module, batch: Batch, spec: dict[str, Any], torch: Any) -> str | None:
    """What went wrong with a way, None if nothing did."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            # torch makes its pool of threads anew after a fork; autograd's threads would all do it
            # at once, and abort
            torch.set_num_threads(1)
            cudnn.asked = False  # workspaces do not matter here
            os.write(write, trial(way, model, batch, spec, torch).encode()[:2000])
        finally:
            os._exit(0)
    os.close(write)
    waiting.children.append(child)
    with os.fdopen(read, "rb") as heard:
        said = heard.read().decode(errors="replace")
    os.waitpid(child, 0)
    waiting.children.remove(child)
    if said == "ok":
        return None
    return said or CRASHED


def trial(way: Way, model: Module, batch: Batch, spec: dict[str, Any], torch: Any) -> str:
    try:
        model.to("cuda")
        batch.device = "cuda"
        with autocast(spec, torch):
            loss = way.call()
        if not loss.requires_grad:
            return "no gradient flows"
        if spec["loss"] == "fused" and not getattr(model, "memroom_fused", False):
            return "its loss is not computed from a head's logits alone: leave out --loss fused"
        with torch.autograd.set_multithreading_enabled(False):  # no thread outlives a fork
            loss.backward()
        return "ok"
    except (Exception, RecursionError) as e:
        return "%s: %.200s" % (type(e).__name__, str(e).split("\n")[0])


def steps(
    model: Module, batch: Batch, way: Way, spec: dict[str, Any], torch: Any, ranks: Ranks
) -> None:
    """Trains until the rehearsal has seen enough."""
    ranks.load()
    trained = [p for p in model.parameters() if p.requires_grad]
    opt: Optimizer | Nothing = optimizer(spec["optimizer"], trained, torch)
    batch.device = "cuda"
    scaler = torch.amp.GradScaler("cuda", enabled=spec["precision"] == "amp_fp16")
    if spec["in_backward"]:
        opt = in_backward(spec["optimizer"], trained, torch)
    lengths = lengths_of(spec, batch)
    for step in range(spec["steps"]):
        if lengths:
            batch.seq = lengths[step % len(lengths)]
        for _ in range(spec["accumulate"]):
            ranks.forward()
            with autocast(spec, torch):
                loss = way.call() / spec["accumulate"]
            ranks.backward()
            scaler.scale(loss).backward()
        if spec["clip"]:
            scaler.unscale_(opt)
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
        scaler.step(opt)
        scaler.update()
        opt.zero_grad(set_to_none=not spec["keep_grads"])
        if spec["eval_batch"]:
            evaluate(model, batch, way, spec, torch)


LENGTHS = 12  # steps of different lengths; the allocator's cache has seen its worst then


def lengths_of(spec: dict[str, Any], batch: Batch) -> list[int]:
    """Lengths of samples in an order that chance gives, the longest among the first."""
    if not spec["shortest"]:
        return []
    import random

    longest = batch.length()
    chance = random.Random(1)
    found = [chance.randint(min(spec["shortest"], longest), longest) for _ in range(LENGTHS)]
    found[1] = longest
    return found


def evaluate(model: Module, batch: Batch, way: Way, spec: dict[str, Any], torch: Any) -> None:
    """A forward pass without gradients, with a batch of its own size."""
    size, batch.size = batch.size, spec["eval_batch"]
    model.eval()
    with torch.no_grad(), autocast(spec, torch):
        way.call()
    model.train()
    batch.size = size


class Nothing:
    """Stands for an optimizer whose steps were taken in the backward pass: the rehearsal counts
    them by it.
    """

    def __init__(self, optimizers: dict[Parameter, Optimizer], torch: Any) -> None:
        self.optimizers = optimizers
        self.last = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.0)

    def step(self) -> None:
        self.last.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        pass


def in_backward(name: str, parameters: list[Parameter], torch: Any) -> Nothing:
    each = {p: optimizer(name, [p], torch) for p in parameters}

    def ready(p: Parameter) -> None:
        each[p].step()
        each[p].zero_grad()

    for p in parameters:
        p.register_post_accumulate_grad_hook(ready)
    return Nothing(each, torch)


def optimizer(name: str, parameters: list[Parameter], torch: Any) -> Optimizer:
    optim = torch.optim
    kinds = {
        "adamw": lambda: optim.AdamW(parameters, lr=1e-4),
        "adam": lambda: optim.Adam(parameters, lr=1e-4),
        "adamw_fused": lambda: optim.AdamW(parameters, lr=1e-4, fused=True),
        "adam_fused": lambda: optim.Adam(parameters, lr=1e-4, fused=True),
        "adamw_loop": lambda: optim.AdamW(parameters, lr=1e-4, foreach=False),
        "adam_loop": lambda: optim.Adam(parameters, lr=1e-4, foreach=False),
        "adam_wd": lambda: optim.Adam(parameters, lr=1e-4, weight_decay=0.01),
        "adam_amsgrad": lambda: optim.Adam(parameters, lr=1e-4, amsgrad=True),
        "nadam": lambda: optim.NAdam(parameters, lr=1e-4),
        "radam": lambda: optim.RAdam(parameters, lr=1e-4),
        "adamax": lambda: optim.Adamax(parameters, lr=1e-4),
        "adagrad": lambda: optim.Adagrad(parameters, lr=1e-4),
        "adadelta": lambda: optim.Adadelta(parameters, lr=1e-4),
        "rmsprop": lambda: optim.RMSprop(parameters, lr=1e-4),
        "rmsprop_momentum": lambda: optim.RMSprop(parameters, lr=1e-4, momentum=0.9),
        "sgd": lambda: optim.SGD(parameters, lr=1e-4),
        "sgd_wd": lambda: optim.SGD(parameters, lr=1e-4, weight_decay=0.01),
        "sgdm": lambda: optim.SGD(parameters, lr=1e-4, momentum=0.9),
        "sgdm_wd": lambda: optim.SGD(parameters, lr=1e-4, momentum=0.9, weight_decay=0.01),
        "sgdm_nesterov": lambda: optim.SGD(parameters, lr=1e-4, momentum=0.9, nesterov=True),
        "sgdm_fused": lambda: optim.SGD(parameters, lr=1e-4, momentum=0.9, fused=True),
        "adafactor": lambda: optim.Adafactor(parameters, lr=1e-4),
        "adamw8bit": lambda: eight_bit(parameters, torch, 2, False),
        "adam8bit": lambda: eight_bit(parameters, torch, 2, False),
        "paged_adamw8bit": lambda: eight_bit(parameters, torch, 2, True),
        "paged_adam8bit": lambda: eight_bit(parameters, torch, 2, True),
        "lion8bit": lambda: eight_bit(parameters, torch, 1, False),
        "lion": lambda: optim.SGD(parameters, lr=1e-4, momentum=0.9, foreach=False),
        "muon": lambda: muon(parameters, torch),
    }
    if name not in kinds:
        raise Unbuildable(
            "the optimizer %s is not part of torch: choose one of %s"
            % (name, ", ".join(sorted(kinds)))
        )
    return kinds[name]()


LEAST = 4096  # elements from which bitsandbytes keeps states in 8 bits
LEAST_PAGED = 100_000  # and from which it pages them


def eight_bit(parameters: list[Parameter], torch: Any, states: int, paged: bool) -> Optimizer:
    """An optimizer that keeps what bitsandbytes' do: a byte an element and a scale a block."""

    class EightBit(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None and not self.state[p]:
                        self.state[p] = self.made(p)

        def made(self, p: Parameter) -> dict[str, Tensor]:
            n = p.numel()
            kind = torch.uint8 if n >= LEAST else torch.float32
            found = {}
            for i in range(states):
                if not paged or n < LEAST_PAGED:
                    found["state%d" % i] = torch.zeros(n, dtype=kind, device=p.device)
                if n >= LEAST:
                    found["scale%d" % i] = torch.zeros((n + 255) // 256, device=p.device)
            return found

    return EightBit(parameters, {})


def muon(parameters: list[Parameter], torch: Any) -> Optimizer:
    """Muon for matrices, AdamW for the rest, stepped as one."""
    if not hasattr(torch.optim, "Muon"):
        raise Unbuildable("torch %s has no Muon: 2.9 is the first that has" % torch.__version__)
    matrices = [p for p in parameters if p.dim() == 2]
    rest = [p for p in parameters if p.dim() != 2]
    first = torch.optim.Muon(matrices, lr=1e-4)
    if not rest:
        return first
    second = torch.optim.AdamW(rest, lr=1e-4)
    step, zero = first.step, first.zero_grad

    def both(*args: Any, **kwargs: Any) -> Any:
        second.step()
        return step(*args, **kwargs)

    def none(set_to_none: bool = True) -> None:
        second.zero_grad(set_to_none)
        zero(set_to_none)

    first.step, first.zero_grad = both, none
    return first
