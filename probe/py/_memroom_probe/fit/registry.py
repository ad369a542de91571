"""Which module applies which remedy. Only what is asked for is imported."""
import torch


def apply(remedy, say):
    make = _REMEDIES.get(remedy["id"])
    if make is None:
        raise ValueError("cannot be applied inside the process")
    make(dict(remedy.get("params") or {}), say)


def _micro_batch(params, say):
    if tuple(int(n) for n in torch.__version__.split("+")[0].split(".")[:2]) < (2, 1):
        raise ValueError("needs torch 2.1 or newer, this is " + torch.__version__)
    from . import microbatch, outermost

    outermost.handle(microbatch.MicroBatch(say, params.get("size"), params.get("pieces"), params.get("keep", 0)))


_REMEDIES = {
    "micro_batch": _micro_batch,
}
