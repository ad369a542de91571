"""The collector runs when the loop says so."""

import gc

import torch


def train(model, loader):
    gc.disable()
    optimizer = torch.optim.AdamW(model.parameters(), 2e-5)
    for i, batch in enumerate(loader):
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if i % 1000 == 0:
            gc.collect()
