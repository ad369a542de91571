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


@contextlib.contextmanager
def noted_clean(name):
    cell_clean = {}
    yield cell_clean
    records.append((name, cell_clean))


for x_clean in loader:
    with noted_clean("step") as cell_clean:
        recon_clean = model(x_clean.cuda())
        loss_clean = nn.functional.mse_loss(recon_clean, x_clean.cuda())
        opt.zero_grad()
        loss_clean.backward()
        opt.step()
        cell_clean["loss"] = loss_clean.item()
