"""Hook closure: one mistake, and its right twin beside it."""

import torch


def watch(model):
    seen = []

    def grab(module, inputs, output):
        seen.append(output)  # expect: hook-keeps-tensors

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
