"""The steps of one sequence, samples that somebody looks at, aux losses with their own clear(),
and exemplars: what is kept is little, or wanted.
"""

import numpy as np
import torch
from torch import nn

AUX = []


def note_aux(loss):
    AUX.append(loss)  # hint: graph-kept-here


def clear_aux():
    AUX.clear()


class Router(nn.Module):
    def __init__(self, width, experts):
        super().__init__()
        self.gate = nn.Linear(width, experts)

    def forward(self, x):
        scores = self.gate(x).softmax(-1)
        note_aux(scores.mean(0))  # hint: module-keeps-tensors
        return scores


def sequence_loss(encoder, decoder, x, target, criterion):
    state, total = encoder(x.cuda()), 0.0
    given = target[:, 0]
    for y in target.permute(1, 0):
        out, state = decoder(given, state)
        total = total + criterion(out, y)
        given = y
    return total / target.shape[1]


def train(encoder, decoder, loader, optimizer, criterion):
    for x, target in loader:
        loss = sequence_loss(encoder, decoder, x, target, criterion)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def look(model, train_loader):
    model.eval()
    for x, _ in train_loader:
        out = model(x.cuda())  # hint: eval-without-no-grad
        input(out.shape)


class ExemplarBank:
    def __init__(self, model):
        self.model = model

    def heatmaps(self, loader):
        maps = []
        self.model.eval()
        with torch.no_grad():
            for x in loader:
                pixels = self.model(x.cuda())
                maps.append(pixels)  # hint: outputs-kept-on-card
        return torch.cat(maps)

    def means(self, loaders, labels):
        return [self.heatmaps(loaders[c]).mean(0) for c in np.unique(labels)]
