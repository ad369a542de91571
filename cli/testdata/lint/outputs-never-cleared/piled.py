"""Outputs of an evaluation that outlive it."""

import torch
from torch import nn


class Dice:
    def __init__(self):
        self.preds, self.masks = [], []

    def add(self, pred, mask):
        self.preds.append(pred)
        self.masks.append(mask)

    def compute(self):
        p, m = torch.cat(self.preds), torch.cat(self.masks)
        return 2 * (p * m).sum() / (p.sum() + m.sum())


class Fresh(Dice):
    def compute(self):
        score = super().compute()
        self.preds, self.masks = [], []
        return score


def train(net, loader, val_loader, opt, epochs):
    dice, fresh, everything = Dice(), Fresh(), []
    for epoch in range(epochs):
        for x, m in loader:
            opt.zero_grad()
            nn.functional.binary_cross_entropy_with_logits(net(x), m).backward()
            opt.step()
        outputs = []
        with torch.no_grad():
            for x, m in val_loader:
                out = net(x).sigmoid()
                dice.add(out, m)  # expect: outputs-never-cleared
                fresh.add(out, m)
                outputs.append(out.cpu())
                everything.append(out.cpu())  # expect: outputs-never-cleared
        print(epoch, dice.compute(), fresh.compute(), torch.cat(outputs).mean())
    return everything
