import torch
from torch import nn


class Trainer:
    def __init__(self, model, train_loader, val_loader):
        self.model, self.train_loader, self.val_loader = model.cuda(), train_loader, val_loader
        self.opt = torch.optim.Adam(self.model.parameters())

    def train_epoch(self):
        self.model.train()
        for x, y in self.train_loader:
            loss = nn.functional.mse_loss(self.model(x.cuda()), y.cuda())
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()

    def validate(self):
        self.model.eval()
        total = 0.0
        for x, y in self.val_loader:
            out = self.model(x.cuda())  # expect: eval-without-no-grad
            total += nn.functional.mse_loss(out, y.cuda()).item()
        return total / len(self.val_loader)

    def fit(self, epochs):
        for _ in range(epochs):
            self.train_epoch()
            print(self.validate())
