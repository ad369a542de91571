"""Memory that waits on the host: saved activations between forward and backward, optimizer state between steps."""
import torch

from . import outermost

MIB = 1 << 20


def activations(params, say):
    outermost.handle(SavedActivations(params.get("above", MIB), say))


class SavedActivations:
    """Tensors that autograd saves and that are larger than above bytes travel to pinned host memory and back. Copies run
    on the stream that computes, so that the card's memory is free for the next kernel without waiting for the host."""

    def __init__(self, above, say):
        self.above, self.say, self.told = above, say, False

    def __call__(self, module, call, args, kwargs):
        if not torch.is_grad_enabled() or next(module.parameters(), None) is None:
            return call(*args, **kwargs)
        self.own = {p.untyped_storage().data_ptr() for p in module.parameters()}
        if not self.told:
            self.told = True
            self.say("applied", "%s: saved tensors above %d bytes wait in host memory" % (type(module).__name__, self.above),
                     id="activation_offload", equivalence="exact")
        with torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack):
            return call(*args, **kwargs)

    def pack(self, tensor):
        if tensor.numel() * tensor.element_size() < self.above or tensor.device.type == "cpu" and torch.cuda.is_available():
            return None, tensor.detach()
        if tensor.is_sparse or tensor.untyped_storage().data_ptr() in self.own:
            return None, tensor.detach()
        there = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        there.copy_(tensor, non_blocking=True)
        return tensor.device, there

    def unpack(self, packed):
        device, tensor = packed
        return tensor if device is None else tensor.to(device, non_blocking=True)


def optimizer_state(params, say):
    """State is moved to the host after each step and back before the next: it is not there while activations are."""
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    told = []

    def bring(optimizer, args, kwargs):
        _move(optimizer, lambda p, t: t.to(p.device, non_blocking=True) if t.device != p.device else t)

    def send(optimizer, args, kwargs):
        _move(optimizer, _to_host)
        if not told:
            told.append(True)
            say("applied", "state of %s waits in host memory between steps" % type(optimizer).__name__,
                id="optimizer_offload", equivalence="exact")

    register_optimizer_step_pre_hook(bring)
    register_optimizer_step_post_hook(send)


def _to_host(parameter, tensor):
    if tensor.device.type != "cuda":
        return tensor
    there = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return there.copy_(tensor, non_blocking=True)


def _move(optimizer, where):
    for p, state in optimizer.state.items():
        for key, value in list(state.items()):
            if isinstance(value, torch.Tensor) and value.numel() * value.element_size() >= 4096:
                state[key] = where(p, value)
