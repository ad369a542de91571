"""Hook closure, done right."""

import torch


def watch(model):
    seen = {}

    def grab(module, inputs, output):
        seen[module] = output.detach().mean().item()

    for m in model.modules():
        if isinstance(m, torch.nn.ReLU):
            m.register_forward_hook(grab)
    return seen


def run(model, loader, opt, loss_fn):
    watch(model)
    for x, y in loader:
        opt.zero_grad()
        loss_fn(model(x), y).backward()
        opt.step()
