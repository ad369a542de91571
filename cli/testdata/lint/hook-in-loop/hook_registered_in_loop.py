import torch
from torch import nn

model = nn.Linear(8, 8).cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
crit = nn.MSELoss()


def train(loader):
    norms = {}

    def hook(module, inputs, output):
        norms["last"] = output.norm().item()

    for x, y in loader:
        model.register_forward_hook(hook)  # expect: hook-in-loop
        loss = crit(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()


def train_clean(loader):
    norms = {}

    def hook(module, inputs, output):
        norms["last"] = output.norm().item()

    for x, y in loader:
        handle = model.register_forward_hook(hook)
        loss = crit(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        handle.remove()
