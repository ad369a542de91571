"""Which module applies which remedy. Only what is asked for is imported."""
import torch


def apply(remedies, say):
    """Puts the remedies in place, the ones that change how modules are called last and together."""
    calls = {}
    for remedy in remedies:
        id, params = remedy.get("id"), dict(remedy.get("params") or {})
        if id in ("micro_batch", "checkpointing"):
            calls[id] = params
            continue
        try:
            _REMEDIES[id](params, say)
        except KeyError:
            say("declined", "%s cannot be applied inside the process" % id, id=id)
        except Exception as why:  # a remedy must not stop the program it is meant to save
            say("declined", "%s: %s" % (type(why).__name__, why), id=id)
    if calls:
        _calls(calls, say)


def _calls(calls, say):
    if tuple(int(n) for n in torch.__version__.split("+")[0].split(".")[:2]) < (2, 1):
        for id in calls:
            say("declined", "needs torch 2.1 or newer, this is " + torch.__version__, id=id)
        return
    from . import governor, microbatch, outermost

    micro = calls.get("micro_batch", {})
    if micro.get("size") or micro.get("pieces"):
        outermost.handle(microbatch.MicroBatch(say, microbatch.fixed(micro.get("size"), micro.get("pieces"), micro.get("keep", 0))))
        calls.pop("micro_batch")
    if calls:
        either = next(iter(calls.values()))
        outermost.handle(governor.Governor(say, set(calls), either.get("limit"), either.get("failed", False), either.get("factor", 1.0)))


_REMEDIES = {}
