"""Metrics of their own that keep one number a pixel, and nothing empties them."""

import torch
import torch.nn.functional as F


class MeanIoU:
    def __init__(self):
        self.masks, self.hits = [], 0.0

    def update(self, logits, truth):
        mask = logits.argmax(1)
        self.masks.append(mask)  # expect: outputs-never-cleared
        self.hits += (mask == truth).float().mean().item()


class Dice:
    def __init__(self):
        self.pairs = []

    def __call__(self, logits, truth):
        self.pairs.append(((logits.sigmoid() > 0.5).long(), truth))  # expect: outputs-never-cleared


class Cleared:
    def __init__(self):
        self.masks = []

    def update(self, logits):
        self.masks.append(logits.argmax(1))

    def reset(self):
        self.masks.clear()


def train(model, optimizer, train_loader, val_loader):
    iou, dice, cleared = MeanIoU(), Dice(), Cleared()
    for _ in range(100):
        model.train()
        for x, y in train_loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x.cuda()), y.cuda())
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for x, y in val_loader:
                logits = model(x.cuda())
                iou.update(logits, y.cuda())
                dice(logits, y.cuda())
                cleared.update(logits)
        cleared.reset()
