"""A helper that moves a batch and does not know the card."""

import torch


def to_card(batch):
    return {k: v.to("cuda") for k, v in batch.items()}  # expect: default-card


def train(model, loader):
    model = model.to("cuda:2")
    optimizer = torch.optim.AdamW(model.parameters(), 2e-5)
    for batch in loader:
        loss = model(**to_card(batch)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
