"""One variable names the card."""

import torch

DEVICE = torch.device("cuda:2")


def train(model, loader):
    model = model.to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-5)
    for x, y in loader:
        loss = torch.nn.functional.mse_loss(model(x.to(DEVICE)), y.to(DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
