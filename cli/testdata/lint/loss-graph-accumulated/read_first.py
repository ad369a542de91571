"""A value that is fetched before it is added to, the better of two, and a value that grows."""

import torch


class Moments:
    def __init__(self, parts):
        self.parts = parts

    def collect(self, model, full):
        for (module, name), weight in zip(self.parts, model.parameters()):
            mean = module.__getattr__(name + "_mean") * 0.9 + weight.data * 0.1
            if full:
                rows = module.__getattr__(name + "_rows")
                row = (weight.data - mean).view(1, -1)
                rows = torch.cat((rows, row), dim=0)  # hint: graph-kept-in-list
                module.__setattr__(name + "_rows", rows)
            module.__setattr__(name + "_mean", mean)


def train(model, loader, optimizer, loss_fn, best, summed):
    for x, y in loader:
        loss = loss_fn(model(x), y)
        part = 0.1 * loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        best = min(best, part)
        summed = summed + part  # expect: loss-graph-accumulated
    return best, summed
