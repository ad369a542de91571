import contextlib

import torch
from torch import nn

from feed import loader

records = []


@contextlib.contextmanager
def noted(name):
    cell = {}
    yield cell
    records.append((name, cell))  # expect: graph-kept-here


model = nn.Sequential(nn.Linear(256, 4096), nn.ReLU(), nn.Linear(4096, 256)).cuda()
opt = torch.optim.Adam(model.parameters())
for x in loader:
    with noted("step") as cell:
        recon = model(x.cuda())
        loss = nn.functional.mse_loss(recon, x.cuda())
        opt.zero_grad()
        loss.backward()
        opt.step()
        cell["loss"] = loss  # expect: graph-kept-in-list
