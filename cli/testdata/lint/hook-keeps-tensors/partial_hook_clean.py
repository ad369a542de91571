"""Hooks made with functools.partial that gather the activations of every pass."""

import functools

import torch

activations = {}


def gather(name, module, inputs, output):
    activations[name] = output.detach().mean().item()


def watch(model):
    for name, module in model.named_modules():
        if name.endswith("attn"):
            module.register_forward_hook(functools.partial(gather, name))


def train(model, loader, optimizer):
    watch(model)
    for x, y in loader:
        loss = torch.nn.functional.mse_loss(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {name: len(kept) for name, kept in activations.items()}
