"""Averaged weights, made anew by a comprehension after every step."""

import torch


def averaged(shadow, model, decay):
    return {
        name: decay * shadow[name] + (1 - decay) * p.detach()
        for name, p in model.named_parameters()
    }


def train(model, loader, optimizer, decay=0.999):
    shadow = {name: p.detach().clone() for name, p in model.named_parameters()}
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        shadow = averaged(shadow, model, decay)
    return shadow
