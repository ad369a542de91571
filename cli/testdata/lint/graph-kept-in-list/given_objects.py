"""Objects of the file's own classes come in as parameters, by their names or annotations."""

import torch
import torch.nn.functional as F


class History:
    def __init__(self):
        self.rows = []

    def add(self, step, value):
        self.rows.append((step, value))  # expect: graph-kept-here


class Curves:
    def __init__(self):
        self.values = {}

    def note(self, name, value):
        self.values.setdefault(name, []).append(value)  # expect: graph-kept-here


def train(model, loader, optimizer, history):
    for i, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.add(i, loss)  # expect: graph-kept-in-list


def pretrain(model, loader, optimizer, log: Curves):
    for x in loader:
        loss = model(x.cuda()).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.note("loss", loss)  # expect: graph-kept-in-list


class Left:
    def __init__(self, right):
        self.right = right
        self.kept = []


class Right:
    def __init__(self, left):
        self.left = left


def between(model, loader, optimizer, left, right):
    for x in loader:
        loss = model(x.cuda()).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        left.kept.append(loss)  # expect: graph-kept-in-list


def detached(model, loader, optimizer, history: History, curves):
    for i, x in enumerate(loader):
        loss = model(x.cuda()).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.add(i, loss.item())
        curves.note("loss", loss.detach())


if __name__ == "__main__":
    torch.manual_seed(0)
    print([task.__name__ for task in (train, pretrain, between)])
