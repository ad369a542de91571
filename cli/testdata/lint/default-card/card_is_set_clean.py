"""The current card is chosen before anything goes there."""

import torch


def train(model, loader):
    torch.cuda.set_device(2)
    model = model.cuda(2)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-5)
    for x, y in loader:
        loss = torch.nn.functional.mse_loss(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
