# Learning to learn: an inner step on each task by functional_call with its graph kept, the outer
# loss through it, second derivatives and all.
# tiny: --width 4 --tasks 2 --shots 3 --size 14 --device cpu
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call

ap = argparse.ArgumentParser()
ap.add_argument("--width", type=int, default=64)
ap.add_argument("--tasks", type=int, default=6)
ap.add_argument("--shots", type=int, default=40)
ap.add_argument("--size", type=int, default=56)
ap.add_argument("--device", default="cuda")
a = ap.parse_args()
torch.manual_seed(10)


def block(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(2, o), nn.Softplus())


w = a.width
net = nn.Sequential(
    block(3, w),
    block(w, w),
    nn.AvgPool2d(2),
    block(w, 2 * w),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(2 * w, 5),
).to(a.device)
meta = torch.optim.Adam(net.parameters(), 1e-3)
rng = torch.Generator().manual_seed(4)


def task():
    x = torch.randn(2, a.shots, 3, a.size, a.size, generator=rng).to(a.device)
    y = torch.randint(0, 5, (2, a.shots), generator=rng).to(a.device)
    return x[0], y[0], x[1], y[1]


for step in range(8):
    meta.zero_grad()
    total = 0.0
    for _ in range(a.tasks):
        xs, ys, xq, yq = task()
        weights = dict(net.named_parameters())
        for _ in range(2):
            inner = F.cross_entropy(functional_call(net, weights, (xs,)), ys)
            grads = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
            weights = {k: v - 0.05 * g for (k, v), g in zip(weights.items(), grads)}
        outer = F.cross_entropy(functional_call(net, weights, (xq,)), yq) / a.tasks
        outer.backward()
        total += outer.item()
    meta.step()
    print("step %d loss %.9g" % (step, total), flush=True)
