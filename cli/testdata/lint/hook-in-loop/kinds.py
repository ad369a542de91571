"""Each round adds a hook that stays; hooks that are taken away, or put on once, do not."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
crit = nn.MSELoss()


def show(module, inputs, output):
    print(output.norm().item())


def backwards(loader):
    for x, y in loader:
        model.register_full_backward_hook(show)  # expect: hook-in-loop
        loss = crit(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()


def before(loader):
    for x, y in loader:
        model[0].register_forward_pre_hook(lambda module, inputs: None)  # expect: hook-in-loop
        loss = crit(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()


def once(loader):
    model.register_forward_hook(show)
    for x, y in loader:
        loss = crit(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()


def each_layer(loader):
    for layer in model:
        layer.register_forward_hook(show)
    for x, y in loader:
        loss = crit(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
