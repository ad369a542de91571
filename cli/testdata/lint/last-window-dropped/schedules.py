"""A schedule that counts batches may step at each; one that counts optimizer steps may not."""

import torch
from transformers import get_cosine_schedule_with_warmup


def counts_batches(model, optimizer, loader, epochs, every=8):
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=1e-3, total_steps=epochs * len(loader)
    )
    for i, (x, y) in enumerate(loader):
        loss = (model(x) - y).pow(2).mean() / every
        loss.backward()
        if (i + 1) % every == 0:  # hint: last-window-dropped
            optimizer.step()
            optimizer.zero_grad()
        scheduler.step()


def counts_batches_by_name(model, optimizer, loader, epochs, every=8):
    total = len(loader) * epochs
    scheduler = get_cosine_schedule_with_warmup(optimizer, 100, total)
    for i, (x, y) in enumerate(loader):
        loss = (model(x) - y).pow(2).mean() / every
        loss.backward()
        if (i + 1) % every == 0:  # hint: last-window-dropped
            optimizer.step()
            optimizer.zero_grad()
        scheduler.step()


class Elsewhere:
    def epoch(self, loader):
        for i, (x, y) in enumerate(loader):
            loss = (self.model(x) - y).pow(2).mean() / self.every
            loss.backward()
            if (i + 1) % self.every == 0:  # hint: last-window-dropped
                self.optimizer.step()
                self.optimizer.zero_grad()
            self.scheduler.step()  # hint: scheduler-each-micro-step
