"""Gradients with a graph in p.grad, in a loop, in a class and on several terms."""

import torch
from torch.nn import functional as F


def penalised(net, optimizer, loader, weight):
    for x, y in loader:
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward(create_graph=True)  # expect: backward-create-graph
        norm = sum(p.grad.square().sum() for p in net.parameters())
        (weight * norm).backward()
        optimizer.step()


class Curvature:
    def __init__(self, net, optimizer):
        self.net, self.optimizer = net, optimizer

    def loss(self, batch):
        x, y = batch
        return F.mse_loss(self.net(x), y)

    def epoch(self, loader):
        for batch in loader:
            self.optimizer.zero_grad()
            self.loss(batch).backward(create_graph=True)  # expect: backward-create-graph
            self.optimizer.step()


def second_order(model, sophia, batches, epochs):
    for epoch in range(epochs):
        for inputs in batches:
            out = model(**inputs)
            out.loss.backward(retain_graph=True, create_graph=True)  # expect: backward-create-graph
            sophia.step()
            sophia.zero_grad()
        torch.save(model.state_dict(), f"epoch_{epoch}.pt")
