"""Steps of one pass that is given back, inner loops of a learner, features of what is trained."""

import torch
from torch import nn


def unrolled(cell, first, state, length):
    states = torch.zeros(length, *state.shape)
    x = first
    for t in range(length):
        out, state = cell(x, state)
        states[t] = state
        x = torch.softmax(out, -1) @ cell.weight
    return states


class Learner:
    def support_loss(self, loader, weights):
        total = 0.0
        for x, y in loader:
            total += self.criterion(self.network(x, weights), y)
        return total

    def inner_loop_update(self, loader, weights):
        loss = self.support_loss(loader, weights)
        return torch.autograd.grad(loss, list(weights.values()))


def styled(transformer, vgg, loader, optimizer, gap):
    vgg.eval()
    for content in loader:
        made = transformer(content.cuda())
        found = vgg(made)
        wanted = vgg(content.cuda())  # expect: frozen-model-with-grad
        loss = gap(found, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def episodes(method, model, test_loader):
    method.eval()
    for support, query in test_loader:
        scores = method(support.cuda(), query.cuda(), model=model)  # hint: eval-without-no-grad
        print(scores.argmax(-1).tolist())


def latent_traversal(model, values):
    model.eval()
    for value in values:
        picture = model(value.cuda())  # hint: eval-without-no-grad
        print(picture.mean().item())


def evaluated(model: nn.Module, test_loader):
    model.eval()
    for x, y in test_loader:
        scores = model(x.cuda())  # expect: eval-without-no-grad
        print((scores.argmax(-1).cpu() == y).float().mean().item())
