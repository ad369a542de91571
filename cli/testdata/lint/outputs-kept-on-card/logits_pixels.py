"""The chances of every pixel of an evaluation, joined on the card."""

import torch
from torch import nn


class Trainer:
    def __init__(self, net, train_loader, val_loader, device="cuda"):
        self.net = net.to(device)
        self.device = device
        self.train_loader, self.val_loader = train_loader, val_loader
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.AdamW(net.parameters())

    def fit(self):
        for images, masks in self.train_loader:
            loss = self.criterion(self.net(images.to(self.device)), masks.to(self.device))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    def validate(self):
        self.net.eval()
        predictions, truth = [], []
        with torch.no_grad():
            for images, target in self.val_loader:
                out = self.net(images.to(self.device))
                predictions.append(out.softmax(dim=1))  # expect: outputs-kept-on-card
                truth.append(target.to(self.device))
        predictions, truth = torch.cat(predictions), torch.cat(truth)
        accuracy = (predictions.argmax(1) == truth).float().mean()
        return accuracy.item()
