"""Switched off in main(), and the loop takes its steps in a helper."""

import gc

import torch


def step(model, optimizer, batch):
    loss = model(**batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def main(model, loader):
    gc.disable()  # expect: collector-off
    optimizer = torch.optim.AdamW(model.parameters(), 2e-5)
    for i, batch in enumerate(loader):
        value = step(model, optimizer, batch)
        if i % 100 == 0:
            print(i, value)
