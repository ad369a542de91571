"""The loop: choose a way that works, then train with it."""

import os

from .models import Unbuildable


def autocast(spec, torch):
    half = {"amp_bf16": torch.bfloat16, "amp_fp16": torch.float16}.get(spec["precision"])
    return torch.autocast("cuda", half or torch.bfloat16, enabled=half is not None)


def first_that_works(ways, model, batch, spec, torch):
    """The first way whose forward and backward pass run. Each is tried in a process of its own, so
    that what a failed one allocates is not recorded.
    """
    errors = []
    for way in ways:
        error = tried(way, model, batch, spec, torch)
        if error is None:
            return way
        if "no part" not in error:
            errors.append(error)
    raise Unbuildable(
        "no way to call its forward pass was found (%s): write a script with your own batches and "
        "use memroom plan --rehearse" % "; ".join(dict.fromkeys(errors))
    )


def tried(way, model, batch, spec, torch):
    """What went wrong with a way, None if nothing did."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            os.write(write, trial(way, model, batch, spec, torch).encode()[:2000])
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as heard:
        said = heard.read().decode(errors="replace")
    os.waitpid(child, 0)
    if said == "ok":
        return None
    return said or "the trial crashed"


def trial(way, model, batch, spec, torch):
    try:
        model.to("cuda")
        batch.device = "cuda"
        with autocast(spec, torch):
            loss = way.call()
        if not loss.requires_grad:
            return "no gradient flows"
        loss.backward()
        return "ok"
    except (Exception, RecursionError) as e:
        return "%s: %.200s" % (type(e).__name__, str(e).split("\n")[0])


def steps(model, batch, way, spec, torch):
    """Trains until the rehearsal has seen enough."""
    model.to("cuda")
    trained = [p for p in model.parameters() if p.requires_grad]
    opt = optimizer(spec["optimizer"], trained, torch)
    batch.device = "cuda"
    scaler = torch.amp.GradScaler("cuda", enabled=spec["precision"] == "amp_fp16")
    for _ in range(spec["steps"]):
        for _ in range(spec["accumulate"]):
            with autocast(spec, torch):
                loss = way.call() / spec["accumulate"]
            scaler.scale(loss).backward()
        if spec["clip"]:
            scaler.unscale_(opt)
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
        scaler.step(opt)
        scaler.update()
        opt.zero_grad(set_to_none=not spec["keep_grads"])


def optimizer(name, parameters, torch):
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
    }
    if name not in kinds:
        raise Unbuildable(
            "the optimizer %s is not part of torch: choose one of %s"
            % (name, ", ".join(sorted(kinds)))
        )
    return kinds[name]()
