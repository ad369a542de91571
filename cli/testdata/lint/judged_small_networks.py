"""A second copy of a small network costs nothing; of a large one, or of one unknown, it does."""

import argparse

import torch
from torch import nn

from elsewhere import Backbone

args = argparse.Namespace(resume="last.pt")
device = torch.device("cuda")


class Generator(nn.Module):
    def __init__(self, latent=100, features=64):
        super().__init__()
        self.body = nn.Sequential(
            nn.ConvTranspose2d(latent, features * 8, 4),
            nn.BatchNorm2d(features * 8),
            nn.ReLU(),
            nn.ConvTranspose2d(features * 8, 3, 4),
        )


class Wide(nn.Module):
    def __init__(self, width=8192):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)


class Deep(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.body = nn.Sequential(*[nn.Linear(64, 64) for _ in range(layers)])


def step(net, optimizer, loader):
    for x, y in loader:
        loss = nn.functional.mse_loss(net(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


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
    deep, back = Deep(args.layers).to(device), Backbone().to(device)
    optimizer = torch.optim.Adam(deep.parameters())
    saved = torch.load(args.resume, map_location=device)  # expect: checkpoint-kept
    deep.load_state_dict(saved["deep"])
    back.load_state_dict(saved["back"])
    for x, y in loader:
        loss = nn.functional.mse_loss(deep(back(x.to(device))), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
