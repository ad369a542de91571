"""Trains with a compiled part and accumulated gradients in a process of many Python objects, and
counts who walks over all of them.

Arguments: backward passes a step, and whether the optimizer's step is compiled too (1) or not (0).
"""

import gc
import sys

import torch

walks = []
objects = gc.get_objects


def get_objects(*args, **kwargs):
    walks.append(sys._getframe(1).f_code.co_filename)
    return objects(*args, **kwargs)


passes, whole = int(sys.argv[1]), sys.argv[2] == "1"
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
forward = torch.compile(model, backend="eager")
step = torch.compile(optimizer.step, backend="eager") if whole else optimizer.step
x = torch.randn(16, 8)
gc.get_objects = get_objects
for _ in range(24):
    for _ in range(passes):
        loss = forward(x).square().mean() / passes
        loss.backward()
    step()
    optimizer.zero_grad(set_to_none=False)
    print("%.9g" % loss.item())
gc.get_objects = objects
print("walks", sum("_memroom_probe" in file for file in walks))
