"""Loaders with persistent workers that are made in every round."""

import torch
from accelerate import Accelerator
from torch.nn import functional as F
from torch.utils.data import DataLoader, Subset


def each_epoch(model, optimizer, data, epochs):
    for epoch in range(epochs):
        loader = DataLoader(  # expect: workers-in-loop
            data, batch_size=64, shuffle=True, num_workers=4, persistent_workers=True
        )
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()


class Curriculum:
    def __init__(self, model, optimizer, data):
        self.model, self.optimizer, self.data = model, optimizer, data

    def train(self, rounds):
        for part in range(rounds):
            easy = Subset(self.data, range((part + 1) * 1000))
            for x, y in DataLoader(  # expect: workers-in-loop
                easy, 32, num_workers=2, persistent_workers=True
            ):
                loss = F.mse_loss(self.model(x), y)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()


def with_accelerate(model, data, rounds):
    accelerator = Accelerator()
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer = accelerator.prepare(model, optimizer)
    while rounds.left():
        loader = DataLoader(data, num_workers=8, persistent_workers=True)  # expect: workers-in-loop
        for batch in accelerator.prepare(loader):
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()
