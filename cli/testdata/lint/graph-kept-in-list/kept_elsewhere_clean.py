"""The same shapes as kept_elsewhere.py, done right."""
from collections import namedtuple
from functools import lru_cache

import optuna
import torch
import torch.nn.functional as F
from torch import nn

Step = namedtuple("Step", "loss accuracy")
encoder = nn.Linear(8, 8).cuda()
KNOWN = {}
running = 0.0


class Mean:
    def __init__(self):
        self.total, self.n = 0, 0

    def see(self, value, n=1):
        self.total += float(value) * n
        self.n += n


@lru_cache(maxsize=None)
def names_of(path):
    return open(path).read().split()


@lru_cache(maxsize=64)
def embed(text):
    with torch.no_grad():
        return encoder(text).cpu()


def known(text):
    if text not in KNOWN:
        KNOWN[text] = encoder(text).detach().cpu()
    return KNOWN[text]


def phases(model, loaders, optimizer, criterion):
    for phase in ["train", "val"]:
        model.train(phase == "train")
        total = 0.0
        for x, y in loaders[phase]:
            with torch.set_grad_enabled(phase == "train"):
                loss = criterion(model(x), y)
            if phase == "train":
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            total += loss.item()


def objective(trial):
    model = nn.Linear(8, trial.suggest_int("width", 1, 64))
    score = float(model(torch.ones(8)).detach().sum())
    trial.set_user_attr("score", score)
    return score


def epoch(model, loader, optimizer, meters):
    steps = []
    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meters["loss"].see(loss, len(x))
        steps.append(Step(loss.item(), 0.5))
    return steps


def outside(model, x, y, optimizer):
    global running
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    running = running + loss.item()


def averaged(model, loader, optimizer):
    average = [p.detach().clone() for p in model.parameters()]
    best = None
    for x, y in loader:
        outside(model, x, y, optimizer)
        with torch.no_grad():
            average = [0.9 * a + 0.1 * p for a, p in zip(average, model.parameters())]
        best = {k: v.cpu().clone() for k, v in model.state_dict().items()}
    return average, best


def scaled(parameters, others):
    for p, q in zip(parameters, others):
        p = 0.9 * p + 0.1 * q
        print(p.shape)


optuna.create_study().optimize(objective, n_trials=10, gc_after_trial=True)
