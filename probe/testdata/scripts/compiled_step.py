"""Trains a few steps with a part of the loop compiled; prints losses, graph breaks and warnings.

Arguments: parts (whole, model, optimizer, call, loss, eval), one after the other in this process
because importing the compiler takes longer than all of them, and last the compiler's backend.
"""

import re
import sys
import warnings

import torch
from torch._dynamo.utils import counters


def trains(what, backend):
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    kind = torch.optim.SGD if what == "whole" else torch.optim.Adam
    optimizer = kind(model.parameters(), lr=0.01)
    x, y = torch.randn(16, 8), torch.randint(0, 4, (16,))
    forward, step, criterion = model, optimizer.step, torch.nn.functional.cross_entropy

    if what == "model":
        forward = torch.compile(model, backend=backend)
    elif what == "optimizer":
        step = torch.compile(optimizer.step, backend=backend)
    elif what == "call":
        step = torch.compile(lambda: optimizer.step(), backend=backend)
    elif what == "loss":
        criterion = torch.compile(criterion, backend=backend)

    def train():
        if what == "eval":
            model.eval()
        optimizer.zero_grad()
        loss = criterion(forward(x), y)
        loss.backward()
        step()
        return loss

    if what in ("whole", "eval"):
        train = torch.compile(train, backend=backend)

    for _ in range(20):
        print("%.9g" % train().item())
    for reason, count in sorted(counters["graph_break"].items()):
        print("break", count, re.sub("0x[0-9a-f]+", "", reason.split("\n")[0]))
    print("graphs", sorted(counters["stats"].items()))


torch.set_num_threads(1)
for part in sys.argv[1:-1]:
    print("part", part)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        trains(part, sys.argv[-1])
    for message in sorted(str(w.message).split("\n")[0] for w in seen):
        print("warning", message)
