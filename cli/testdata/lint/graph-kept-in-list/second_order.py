"""The graph of an inner loop is wanted where the outer loss is differentiated through it."""

import torch
import torch.nn.functional as F


def adapted(net, tasks, meta, steps=5):
    for x, y, test_x, test_y in tasks:
        fast = {name: p.clone() for name, p in net.named_parameters()}
        for _ in range(steps):
            loss = F.mse_loss(torch.func.functional_call(net, fast, x), y)
            grads = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
            fast = {n: p - 0.01 * g for (n, p), g in zip(fast.items(), grads)}
        meta.zero_grad()
        F.mse_loss(torch.func.functional_call(net, fast, test_x), test_y).backward()
        meta.step()


def learned_rates(net, rates, losses, steps):
    weights = {name: p.clone() for name, p in net.named_parameters()}
    for _ in range(steps):
        grads = torch.autograd.grad(losses(weights), list(weights.values()), create_graph=True)
        weights = {n: p - rates[n] * g for (n, p), g in zip(weights.items(), grads)}
    return torch.autograd.grad(losses(weights), list(rates.values()))


def averaged(net, loader, optimizer):
    mean = {name: p.detach().clone() for name, p in net.named_parameters()}
    for x, y in loader:
        loss = F.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for name, p in net.named_parameters():
            mean[name] = 0.99 * mean[name] + 0.01 * p  # expect: graph-kept-in-list
    return mean
