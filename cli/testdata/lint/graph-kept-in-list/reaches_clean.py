"""The same shapes done right: nothing may be found here."""
from collections import defaultdict, deque

import torch
import torch.nn.functional as F
from torch import nn


class AverageMeter:
    def __init__(self):
        self.sum, self.count = 0, 0

    def update(self, val, n=1):
        self.sum += val * n
        self.count += n


class DetachingMeter:
    def __init__(self):
        self.sum = 0

    def update(self, val):
        self.sum += val.detach()


def meters(model, loader, optimizer, criterion):
    losses, other = AverageMeter(), DetachingMeter()
    for x, y in loader:
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.update(loss.item(), x.size(0))
        other.update(loss)
        per_batch = AverageMeter()
        per_batch.update(loss)
    return losses


def train_step(model, x, optimizer):
    loss = model(x).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def gather(model, loader, optimizer):
    total, history, recent = 0.0, [], deque(maxlen=10)
    for x in loader:
        value = train_step(model, x, optimizer)
        total += value
        history.append(value)
        recent.append(model(x))


def average(model, loader, optimizer):
    smooth = None
    for x in loader:
        loss = model(x).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        smooth = loss.item() if smooth is None else 0.9 * smooth + 0.1 * loss.item()


def shadow_weights(model, loader, optimizer, decay=0.999):
    shadow = {name: p.data.clone() for name, p in model.named_parameters()}
    for x in loader:
        loss = model(x).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for name, p in model.named_parameters():
                shadow[name] = decay * shadow[name] + (1 - decay) * p
        for name, p in model.named_parameters():
            shadow[name] = decay * shadow[name] + (1 - decay) * p.data


def penalty(model, loader, optimizer):
    for x in loader:
        norm = 0.0
        for p in model.parameters():
            norm = norm + p.pow(2).sum()
        loss = model(x).mean() + 1e-4 * norm
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def tasks(model, loader, optimizer, criteria):
    for x, ys in loader:
        losses = {}
        for name, criterion in criteria.items():
            losses[name] = criterion(model(x), ys[name])
        loss = sum(losses.values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.saved_log_probs = []

    def forward(self, x):
        return self.layer(x)


policy = Policy()


def select_action(state):
    probs = policy(state)
    policy.saved_log_probs.append(probs.log())
    return probs.argmax()


def finish_episode(optimizer, returns):
    policy_loss = []
    for log_prob, r in zip(policy.saved_log_probs, returns):
        policy_loss.append(-log_prob * r)
    optimizer.zero_grad()
    policy_loss = torch.cat(policy_loss).sum()
    policy_loss.backward()
    optimizer.step()
    del policy.saved_log_probs[:]


features = defaultdict(list)


def named_hook(name):
    def hook(module, args, output):
        features[name].append(output)

    return hook


def extract(model, x):
    handles = [m.register_forward_hook(named_hook(n)) for n, m in model.named_modules()]
    model(x)
    seen = dict(features)
    features.clear()
    for h in handles:
        h.remove()
    return seen
