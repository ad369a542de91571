"""Gradients that somebody else may clear: the optimizer is handed to a helper of another file."""
import torch
from helpers import forget
from torch import nn

model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters())


def train(loader):
    for x, y in loader:
        forget(optimizer)
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
