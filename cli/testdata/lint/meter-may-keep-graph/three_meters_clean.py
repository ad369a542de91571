"""Numbers and detached tensors for the same meters."""

from torch.nn import functional as F
from utils import AverageMeter, LossMeter, MetricLogger


def plain(model, optimizer, loader):
    losses = AverageMeter("loss")
    for x, y in loader:
        loss = F.cross_entropy(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.update(loss.item(), x.size(0))


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
            meter.add(loss.detach())
        return meter


def with_logger(model, optimizer, loader):
    logger = MetricLogger(delimiter="  ")
    for x, y in logger.log_every(loader, 50):
        loss = F.mse_loss(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        logger.update(loss=float(loss), lr=optimizer.param_groups[0]["lr"])
