"""Which module applies which remedy. Only what is asked for is imported."""

from typing import Any, Callable, Dict

import torch


def apply(remedies: Any, say: Callable[..., Any]) -> None:
    """Puts the remedies in place. Those that cut and checkpoint calls come first and stand
    innermost: autocast, say, must be on when they try and measure the module.
    """
    asked = [(r.get("id"), dict(r.get("params") or {})) for r in remedies]
    calls = {
        id: params
        for id, params in asked
        if id in ("micro_batch", "checkpointing") or params.get("measured")
    }
    if calls:
        _calls(dict(calls), say, any(id == "activation_budget" for id, _ in asked))
    for id, params in asked:
        if id in calls:
            continue
        if id not in _REMEDIES:
            say("declined", "%s cannot be applied inside the process" % id, id=id)
            continue
        try:
            _REMEDIES[id](params, say)
        except Exception as why:  # a remedy must not stop the program it is meant to save
            say("declined", "%s: %s" % (type(why).__name__, why), id=id)


def _calls(calls: Any, say: Callable[..., Any], budget: bool = False) -> None:
    if tuple(int(n) for n in torch.__version__.split("+")[0].split(".")[:2]) < (2, 1):
        for id in calls:
            say("declined", "needs torch 2.1 or newer, this is " + torch.__version__, id=id)
        return
    from .calls import drawn, outermost
    from .choose import governor, step
    from .measure import cost
    from .memory import floor, room
    from .remedies import microbatch, optimizer_offload

    def check(module: torch.nn.Module, call: Callable[..., Any], inputs: Any) -> None:
        cost.check_recompute(module, call, inputs, room.of(next(module.parameters()).device, 1))

    together = _together(calls.values())
    away = "optimizer_offload" in calls
    teller = floor.Teller(
        say, together["limit"], lambda o: away and optimizer_offload.steps_apart(o)
    )
    teller.when_out()
    micro = calls.get("micro_batch", {})
    if micro.get("size") or micro.get("pieces"):
        choose = microbatch.fixed(micro.get("size"), micro.get("pieces"), micro.get("keep", 0))
        outermost.handle(microbatch.MicroBatch(say, choose, check))
        calls.pop("micro_batch")
    if calls:
        outermost.handle(
            governor.Governor(
                say, set(calls), teller=teller, worst=_worst(calls, say), budget=budget, **together
            )
        )
        step.listen_to_optimizers()
        drawn.watch()


def _together(some: Any) -> Any:
    """What several remedies that are one handler are asked for: the strictest of each."""
    limits = [params["limit"] for params in some if params.get("limit")]
    return {
        "limit": min(limits, default=None),
        "failed": any(params.get("failed") for params in some),
        "later": any(params.get("later") for params in some),
        "factor": min([params.get("factor", 1.0) for params in some], default=1.0),
        "untried": any(params.get("untried") for params in some),
    }


def _worst(calls: Any, say: Callable[..., Any]) -> Any:
    """What rehearses the worst case, where that was asked for."""
    if not any(params.get("worst") for params in calls.values()):
        return None
    from .measure import worst

    return worst.Worst(say)


def _from(module: Any, function: Any) -> Any:
    """The remedy is imported when it is asked for."""

    def install(params: Any, say: Any) -> None:
        import importlib

        getattr(importlib.import_module(".remedies." + module, __package__), function)(params, say)

    return install


def _loader(change: Any, id: str, words: Any, equivalence: Any) -> Any:
    def install(params: Dict[str, Any], say: Callable[..., Any]) -> None:
        from .remedies import data_loader as loader

        loader.data_loader(getattr(loader, change), id, words, equivalence)(params, say)

    return install


def _quantized(bits: Any) -> Any:
    def install(params: Dict[str, Any], say: Callable[..., Any]) -> None:
        from .remedies import pretrained

        pretrained.quantized(bits)(params, say)

    return install


_REMEDIES = {
    "mixed_precision": _from("mixed_precision", "install"),
    "activation_budget": _from("activation_budget", "install"),
    "activation_offload": _from("activation_offload", "activations"),
    "optimizer_offload": _from("optimizer_offload", "optimizer_state"),
    "optimizer_fused": _from("optimizer_step", "fused_optimizer"),
    "set_to_none": _from("set_to_none", "set_to_none"),
    "empty_cache": _from("empty_cache", "empty_cache"),
    "chunked_loss": _from("chunked_loss", "install"),
    "device_map": _from("pretrained", "device_map"),
    "quantize_8bit": _quantized(8),
    "quantize_4bit": _quantized(4),
    "dataloader_workers": _loader(
        "fewer_workers", "dataloader_workers", "data loaders with fewer workers", "expected"
    ),  # each worker draws for itself
    "pin_memory": _loader(
        "no_pinning", "pin_memory", "data loaders without pinned memory", "exact"
    ),
}
