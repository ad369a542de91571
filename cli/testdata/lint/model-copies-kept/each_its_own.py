"""A model for each client is averaged, one for each epoch is only kept."""

import copy

import torch
from torch.autograd import Variable


def federated(server, clients, rounds):
    for _ in range(rounds):
        states = []
        for client in clients:
            net = copy.deepcopy(server).cuda()
            client.train(net)
            states.append(copy.deepcopy(net.state_dict()))  # hint: model-copies-kept
        server.load_state_dict({k: sum(s[k] for s in states) / len(states) for k in states[0]})


def snapshots(model, loader, optimizer, epochs):
    model.cuda()
    kept = []
    for _ in range(epochs):
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        kept.append(copy.deepcopy(model.state_dict()))  # expect: model-copies-kept
    return kept


def distances(net, loader):
    net.eval()
    found = []
    for x, _ in loader:
        x = Variable(x.cuda(), volatile=True)
        found.append(net(x))  # hint: graph-kept-in-list
    return torch.cat(found)


def best_of(net, z, x, steps, optimizer):
    best = torch.full((len(x),), 1e9)
    for _ in range(steps):
        loss = (net(z) - x).pow(2).mean(1)
        better = loss < best
        best[better] = loss[better]
        optimizer.zero_grad()
        loss.sum().backward()
        optimizer.step()
    return best
