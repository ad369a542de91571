"""Weights of all rounds that are averaged behind the loop, and weights that nobody asks for."""

import copy

import torch


def average(states):
    return {k: sum(s[k] for s in states) / len(states) for k in states[0]}


def meta_round(model, batches, optimizer, loss_fn):
    begin, states = copy.deepcopy(model.state_dict()), []
    for x, y in batches:
        model.load_state_dict(begin)
        loss = loss_fn(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        states.append(copy.deepcopy(model.state_dict()))  # hint: model-copies-kept
    model.load_state_dict(average(states))


def cook(model, runs, optimizer, loss_fn, merge_weights):
    found = []
    for x, y in runs:
        loss = loss_fn(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(copy.deepcopy(model.state_dict()))  # hint: model-copies-kept
    return merge_weights(found, 0.5)


def train(model, loader, optimizer, loss_fn):
    history = []
    for x, y in loader:
        loss = loss_fn(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(copy.deepcopy(model.state_dict()))  # expect: model-copies-kept
    torch.save(history[-1], "last.pt")
