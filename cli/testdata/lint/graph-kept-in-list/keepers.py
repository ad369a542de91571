"""Keepers of other forms, each with its right twin."""

import copy

import tensorflow as tf
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from utils import AverageMeter

SEEN = {}


class Called:
    def __init__(self):
        self.values = []

    def __call__(self, value):
        self.values.append(value)  # expect: graph-kept-here


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        y = self.layer(x)
        SEEN[len(SEEN)] = y  # expect: module-keeps-tensors
        return y


class Images(Dataset):
    def __init__(self, paths):
        self.paths, self.order = paths, {}
        self.images = {}

    def __getitem__(self, index):
        if index not in self.images:
            self.images[index] = torch.load(self.paths[index])  # expect: dataset-cache-per-worker
        return self.images[index]


batches = DataLoader(Images([]), num_workers=4)


def train(model, loader, optimizer, criterion):
    meter, called = AverageMeter(), Called()
    mean = number = None
    slow = copy.deepcopy(model).requires_grad_(False)
    for x, y in loader:
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meter.update(loss, x.size(0))  # hint: meter-may-keep-graph
        meter.update(loss.item(), x.size(0))
        called(loss)  # expect: graph-kept-in-list
        called(loss.item())
        mean = loss if mean is None else 0.9 * mean + 0.1 * loss  # expect: graph-kept-in-list
        number = loss.item() if number is None else 0.9 * number + 0.1 * loss.item()
        for s, p in zip(slow.parameters(), model.parameters()):
            s.mul_(0.99).add_(p * 0.01)  # expect: graph-kept-in-list
        for s, p in zip(slow.parameters(), model.parameters()):
            s.data.mul_(0.99).add_(p.data * 0.01)


@tf.function
def scaled(x, rate):
    return x * rate


def keras_loop(dataset):
    rate = 0.1
    for epoch in range(10):
        rate = rate * 0.9
        for x in dataset:
            scaled(x, rate)  # expect: tf-function-retraced
            scaled(x, tf.constant(rate))
