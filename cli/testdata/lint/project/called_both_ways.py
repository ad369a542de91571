"""Evaluation that main.py asks for under no_grad once and without it once: who asks decides."""

import torch


class Runner:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model.cuda(), optimizer

    def run_epoch(self, phase, loader, loss_fn):
        if phase == "train":
            self.model.train()
        else:
            self.model.eval()
        total = torch.zeros(())
        for x, y in loader:
            loss = loss_fn(self.model(x.cuda()), y.cuda())  # hint: eval-without-no-grad
            if phase == "train":
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            total += loss.detach().cpu()
        return total

    def val(self, loader, loss_fn):
        return self.run_epoch("val", loader, loss_fn)

    def fit(self, loader, loss_fn):
        return self.run_epoch("train", loader, loss_fn)
