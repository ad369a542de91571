"""Gradients zeroed with every micro-batch of a class, and windows that keep them."""

from torch.nn import functional as F


class Trainer:
    def __init__(self, model, optimizer, scaler, accum):
        self.model, self.optimizer, self.scaler, self.accum = model, optimizer, scaler, accum

    def loss(self, x, y):
        return F.cross_entropy(self.model(x.cuda()), y.cuda()) / self.accum

    def epoch(self, loader):
        for i, (x, y) in enumerate(loader, 1):
            self.optimizer.zero_grad(set_to_none=True)  # expect: zero-grad-each-micro-step
            self.scaler.scale(self.loss(x, y)).backward()
            if i % self.accum == 0 or i == len(loader):
                self.scaler.step(self.optimizer)
                self.scaler.update()


class Keeps(Trainer):
    def epoch(self, loader):
        for i, (x, y) in enumerate(loader, 1):
            self.scaler.scale(self.loss(x, y)).backward()
            if i % self.accum == 0 or i == len(loader):
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.optimizer.zero_grad(set_to_none=True)


def no_window(model, optimizer, loader):
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        if i % 100 == 0:
            print(i, loss.item())
