"""What stands under a switch that is written down as off; under one that is set it counts."""

import matplotlib.pyplot as plt
import torch

DEBUG = False
PLOTS = 0
VERBOSE = False


def set_verbose():
    global VERBOSE
    VERBOSE = True


def train(model, loader, optimizer, loss_fn):
    draw = False
    history, seen, told = [], [], []
    for i, (x, y) in enumerate(loader):
        loss = loss_fn(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if draw:
            figure = plt.figure()  # hint: figures-not-closed
            plt.imshow(x[0])
            figure.savefig("%d.png" % i)
        if DEBUG:
            history.append(loss)  # hint: graph-kept-in-list
        if PLOTS:
            seen.append(loss)  # hint: graph-kept-in-list
        if VERBOSE:
            told.append(loss)  # expect: graph-kept-in-list
    return history, seen, told


def train_asked(model, loader, optimizer, loss_fn, keep=False):
    trace = False
    losses, history = [], []
    for x, y in loader:
        loss = loss_fn(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if keep:
            losses.append(loss)  # expect: graph-kept-in-list
        if trace:
            history.append(loss)  # expect: graph-kept-in-list
        trace = torch.isnan(loss).item()
    return losses, history
