"""Updates weights without an optimizer of torch, in the way that is asked for, and never ends."""

import sys
import torch
from torch import func

net = torch.nn.Sequential(
    torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64)
).cuda()
weights = {name: p.detach() for name, p in net.named_parameters()}


def loss(weights=None):
    x = torch.randn(8, 64, device="cuda")
    return (net(x) if weights is None else func.functional_call(net, weights, (x,))).pow(2).mean()


def step(p):
    p.data.add_(p.grad, alpha=-0.1)
    p.grad = None


if sys.argv[1] == "hooks":
    for p in net.parameters():
        p.register_post_accumulate_grad_hook(step)
while True:
    if sys.argv[1] == "functions":
        grads = func.grad(loss)(weights)
        weights = {name: w - 0.1 * grads[name] for name, w in weights.items()}
        continue
    for _ in range(2):
        loss().backward()
    for p in net.parameters():
        if sys.argv[1] == "in place":
            step(p)
        elif sys.argv[1] == "replaced":
            p.data, p.grad = p.data - 0.1 * p.grad, None
