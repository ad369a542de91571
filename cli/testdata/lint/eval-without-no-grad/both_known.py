"""The caller knows of both ways, gradients are saved before they are zeroed, a few samples."""

import pandas as pd
import torch
from torch import nn


class Trainer:
    def __init__(self, model, device="cuda"):
        self.model, self.device = model.to(device), device
        self.optimizer = torch.optim.Adam(model.parameters())

    def evaluate(self, loader):
        self.model.eval()
        if self.model.needs_gradients:
            return self.epoch(loader, training=False)
        with torch.no_grad():
            return self.epoch(loader, training=False)

    def fit(self, loader):
        self.model.train()
        return self.epoch(loader, training=True)

    def epoch(self, loader, training):
        total = 0.0
        for x in loader:
            loss = self.model(x.to(self.device)).pow(2).mean()
            if training:
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            total += loss.item()
        return total


def buffered(weights, tasks, loss_of, optimizer, meta_batch=4):
    buffer = [torch.zeros_like(p) for p in weights]
    for i, task in enumerate(tasks):
        loss = loss_of(weights, task) / meta_batch
        loss.backward()
        buffer = [b + p.grad for b, p in zip(buffer, weights)]
        optimizer.zero_grad()
        if (i + 1) % meta_batch == 0:  # hint: last-window-dropped
            for b, p in zip(buffer, weights):
                p.grad = b
            optimizer.step()
            buffer = [torch.zeros_like(p) for p in weights]


def means(model: nn.Module, exemplars):
    model.eval()
    found = []
    for exemplar in exemplars:
        row = model(exemplar.unsqueeze(0).cuda())  # hint: eval-without-no-grad
        found.append(row.detach().squeeze())
    return torch.stack(found).mean(0)


def of_domains(folder, domain_list):
    rows = pd.DataFrame()
    for domain in domain_list:
        rows = pd.concat([rows, pd.read_csv(folder / (domain + ".csv"))])
    return rows
