"""Losses handed to meters of other files with their graphs."""

from torch.nn import functional as F
from utils import AverageMeter, LossMeter


def plain(model, optimizer, loader):
    losses = AverageMeter("loss")
    for x, y in loader:
        loss = F.cross_entropy(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.update(loss, x.size(0))  # hint: meter-may-keep-graph


class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def epoch(self, loader):
        meter = LossMeter()
        for batch in loader:
            loss = self.model(**batch).loss
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            meter.add(loss)  # hint: meter-may-keep-graph
        return meter


def with_scaler(model, optimizer, scaler, loaders):
    seen = {name: AverageMeter(name) for name in loaders}
    total = AverageMeter("all")
    for name, loader in loaders.items():
        for x, y in loader:
            loss = F.mse_loss(model(x.cuda()), y.cuda())
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            seen[name].update(loss.item())
            total.update(val=loss, n=len(x))  # hint: meter-may-keep-graph
