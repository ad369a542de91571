"""Gradients filled with zeros: in a loop, in a class, by position and by accelerate."""

from accelerate import Accelerator
from torch.nn import functional as F


def plain(model, optimizer, loader):
    for x, y in loader:
        optimizer.zero_grad(set_to_none=False)  # expect: gradients-kept-as-zeros
        F.cross_entropy(model(x.cuda()), y.cuda()).backward()
        optimizer.step()


class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def clear(self):
        self.model.zero_grad(False)  # expect: gradients-kept-as-zeros

    def step(self, batch):
        self.clear()
        loss = self.model(**batch).loss
        loss.backward()
        self.optimizer.step()
        return loss.item()


def by_accelerate(model, optimizer, loader):
    accelerator = Accelerator()
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        accelerator.backward(F.mse_loss(model(x), y))
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)  # expect: gradients-kept-as-zeros
