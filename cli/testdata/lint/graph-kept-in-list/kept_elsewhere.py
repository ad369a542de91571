"""Caches, trials, phases, records and meters that come in through parameters."""

import copy
from collections import namedtuple
from dataclasses import dataclass
from functools import lru_cache

import optuna
import torch
import torch.nn.functional as F
from torch import nn

Step = namedtuple("Step", "loss accuracy")
encoder = nn.Linear(8, 8).cuda()
KNOWN = {}
finished = []
running = 0


@dataclass
class Record:
    loss: torch.Tensor
    step: int


class Mean:
    def __init__(self):
        self.total, self.n = 0, 0

    def see(self, value, n=1):
        self.total += value * n  # expect: graph-kept-here
        self.n += n


@lru_cache(maxsize=None)  # expect: cache-keeps-tensors
def embed(text):
    return encoder(text)


def known(text):
    if text not in KNOWN:
        KNOWN[text] = encoder(text)  # expect: cache-keeps-tensors
    return KNOWN[text]


def phases(model, loaders, optimizer, criterion):
    for _ in range(3):
        for phase in ["train", "val"]:
            model.train(phase == "train")
            for x, y in loaders[phase]:
                out = model(x)  # expect: eval-without-no-grad
                loss = criterion(out, y)
                if phase == "train":
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()


def steered(model, loaders, optimizer, criterion):
    for phase in ["train", "val"]:
        total = 0
        for x, y in loaders[phase]:
            with torch.set_grad_enabled(phase == "train"):
                loss = criterion(model(x), y)
            if phase == "train":
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            total += loss  # expect: loss-graph-accumulated
        print(phase, float(total))


def objective(trial):
    model = nn.Linear(8, trial.suggest_int("width", 1, 64))
    finished.append(model)  # expect: model-copies-kept
    trial.set_user_attr("model", model)  # expect: model-copies-kept
    return float(model(torch.ones(8)).detach().sum())


def records(model, loader, optimizer):
    steps, more = [], []
    for i, (x, y) in enumerate(loader):
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps.append(Step(loss, 0.5))  # expect: graph-kept-in-list
        more.append(Record(loss=loss, step=i))  # expect: graph-kept-in-list
    return steps, more


def epoch(model, loader, optimizer, meters):
    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meters["loss"].see(loss, len(x))  # expect: graph-kept-in-list


def outside(model, x, y, optimizer):
    global running
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    running = running + loss  # expect: loss-graph-accumulated


def averaged(model, loader, optimizer):
    average = [p.clone() for p in model.parameters()]
    snapshots, states = [], []
    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        outside(model, x, y, optimizer)
        average = [  # expect: graph-kept-in-list
            0.9 * a + 0.1 * p for a, p in zip(average, model.parameters())
        ]
        snapshots.append(copy.deepcopy(model))  # expect: model-copies-kept
        states.append(  # expect: model-copies-kept
            {k: v.clone() for k, v in model.state_dict().items()}
        )
    return average


optuna.create_study().optimize(objective, n_trials=10, gc_after_trial=True)
