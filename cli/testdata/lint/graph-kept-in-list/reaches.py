"""Graphs that are kept through parameters, attributes, calls, closures and averages."""

from collections import defaultdict, deque
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn


class AverageMeter:
    def __init__(self):
        self.reset()

    def reset(self):
        self.sum, self.count = 0, 0

    def update(self, val, n=1):
        self.sum += val * n  # expect: graph-kept-here
        self.count += n


class Recorder:
    def __init__(self):
        self.history = defaultdict(list)

    def log(self, name, value):
        self.history[name].append(value)  # expect: graph-kept-here


def meters(model, loader, optimizer, criterion):
    losses = AverageMeter()
    by_name = {"a": AverageMeter(), "b": AverageMeter()}
    recorder = Recorder()
    for x, y in loader:
        first = criterion(model(x), y)
        second = model(x).abs().mean()
        loss = first + 0.1 * second
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.update(loss, x.size(0))  # expect: graph-kept-in-list
        by_name["a"].update(first)  # expect: graph-kept-in-list
        recorder.log("second", second)  # expect: graph-kept-in-list
    return losses


def remember(history, value):
    history.append(value)  # expect: graph-kept-here


def add_up(totals, losses):
    for name, value in losses.items():
        totals[name] = totals.get(name, 0) + value  # expect: graph-kept-here


def step(model, x, y, optimizer):
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def optimize(loss, optimizer):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def helpers(model, loader, optimizer, criterion):
    history, totals, total, kept = [], {}, 0.0, {}
    callbacks = []
    for i, (x, y) in enumerate(loader):
        total += step(model, x, y, optimizer)  # expect: loss-graph-accumulated
        out = model(x)
        loss = criterion(out, y)
        optimize(loss, optimizer)
        remember(history, loss)  # expect: graph-kept-in-list
        add_up(totals, {"loss": loss})  # expect: graph-kept-in-list
        kept[i] = out  # expect: graph-kept-in-list
        callbacks.append(lambda: print(loss))  # noqa: B023  # expect: graph-kept-in-list
        callbacks.append(partial(print, out))  # expect: graph-kept-in-list
    return total


def averages(model, loader, optimizer):
    smooth = 0.0
    logged = {"loss": 0.0}
    everything = torch.zeros(0)
    for x in loader:
        out = model(x)
        loss = out.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        smooth = 0.99 * smooth + 0.01 * loss  # expect: graph-kept-in-list
        logged["loss"] += loss  # expect: loss-graph-accumulated
        everything = torch.cat([everything, out])  # expect: graph-kept-in-list


def shadow_weights(model, loader, optimizer, decay=0.999):
    shadow = {name: p.data.clone() for name, p in model.named_parameters()}
    for x in loader:
        loss = model(x).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for name, p in model.named_parameters():
            shadow[name] = decay * shadow[name] + (1 - decay) * p  # expect: graph-kept-in-list
    return shadow


class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.losses = []
        self.recent = deque(maxlen=20)

    def train_step(self, x, y):
        loss = F.mse_loss(self.model(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss)  # expect: graph-kept-in-list
        self.recent.append(loss)

    def fit(self, loader):
        for x, y in loader:
            self.train_step(x, y)


class Probed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.cache = {}
        self.features = []
        self.layer.register_forward_hook(self._see)
        self.layer.register_forward_hook(  # expect: hook-keeps-tensors
            lambda m, i, o: self.features.append(o)
        )

    def _see(self, module, args, output):
        self.features.append(output)  # expect: hook-keeps-tensors

    def forward(self, x, name):
        h = self.layer(x)
        self.cache[name] = h  # expect: module-keeps-tensors
        return h


def named_hook(store, name):
    def hook(module, args, output):
        store[name].append(output)  # expect: hook-keeps-tensors

    return hook


features_by_layer = defaultdict(list)
net = Probed()
for layer_name, layer in net.named_modules():
    layer.register_forward_hook(named_hook(features_by_layer, layer_name))
