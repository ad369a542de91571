"""Trains 30 steps without an optimizer of torch, in the way that the argument names, or does
something that looks like it; prints the losses.
"""

import sys

import torch


def main(way):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    x, y = torch.randn(16, 8), torch.randint(0, 4, (16,))
    cost = torch.nn.functional.cross_entropy
    weights = [torch.randn(8, 4).requires_grad_(), torch.zeros(4, requires_grad=True)]
    passes = 3 if "accumulated" in way else 1
    for step in range(30):
        if way.startswith("functional"):
            loss = cost(x @ weights[0] + weights[1], y)
            grads = torch.autograd.grad(loss, weights)
            if "in place" in way:
                with torch.no_grad():
                    for w, g in zip(weights, grads):
                        w -= 0.1 * g
            else:
                weights = [(w - 0.1 * g).detach().requires_grad_() for w, g in zip(weights, grads)]
        elif way == "inputs only":  # gradients of a frozen model's inputs: nothing is trained
            model.requires_grad_(False)
            given = torch.randn(16, 8, requires_grad=True)
            loss = cost(model(given), y)
            loss.backward()
        else:
            if way.startswith("zero first"):
                model.zero_grad()
            for _ in range(passes):
                loss = cost(model(x), y) / passes
                loss.backward()
            update(way, model)
        print("%.9g" % loss.item())


def update(way, model):
    if way == "gradients only":  # looked at and cleared: nothing is trained
        model.zero_grad()
    elif "no_grad" in way:
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
        model.zero_grad()
    elif "old style" in way:
        for p in model.parameters():
            p.data -= 0.1 * p.grad.data
            p.grad.data.zero_()
    else:
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-0.1)
            if not way.startswith("zero first"):
                p.grad = None


main(sys.argv[1])
