"""A second copy of a small network of the project costs nothing. A large one, one whose size is not
known and one of this file, which may be an excerpt, do.
"""

import argparse

import torch
from torch import nn

from project_networks import Deep, Generator, Wide

args = argparse.Namespace(resume="last.pt")
device = torch.device("cuda")


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(64, 64)


def small(loader):
    net = Generator(latent=args.latent).to(device)
    optimizer = torch.optim.Adam(net.parameters())
    saved = torch.load(args.resume, map_location=device)  # hint: checkpoint-kept
    net.load_state_dict(saved["net"])
    optimizer.load_state_dict(saved["optimizer"])
    for x, y in loader:
        loss = nn.functional.mse_loss(net(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def large(loader):
    wide = Wide().to(device)
    optimizer = torch.optim.Adam(wide.parameters())
    saved = torch.load(args.resume, map_location=device)  # expect: checkpoint-kept
    wide.load_state_dict(saved["net"])
    for x, y in loader:
        loss = nn.functional.mse_loss(wide(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def unknown(loader):
    deep = Deep(args.layers).to(device)
    optimizer = torch.optim.Adam(deep.parameters())
    saved = torch.load(args.resume, map_location=device)  # expect: checkpoint-kept
    deep.load_state_dict(saved["deep"])
    for x, y in loader:
        loss = nn.functional.mse_loss(deep(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def excerpt(loader):
    own = Own().to(device)
    optimizer = torch.optim.Adam(own.parameters())
    saved = torch.load(args.resume, map_location=device)  # expect: checkpoint-kept
    own.load_state_dict(saved["net"])
    for x, y in loader:
        loss = nn.functional.mse_loss(own(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
